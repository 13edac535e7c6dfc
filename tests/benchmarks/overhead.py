"""What STARE costs: a step, its log-prob pass, its loss and its peak memory, in ratios to OpenRLHF's own.

    python tests/benchmarks/overhead.py --pairs 30 --ranks 2 --json figures.json
    python tests/benchmarks/overhead.py --only mathematics --device cuda --vocabulary 151936 --tokens 1024

The steps are those of one actor group (overhead_group.py) on a fixed rollout and a random Qwen2, without vLLM: a
step of OpenRLHF's own actor and loss, one of STARE's with exact and one with sampled entropy, in all orders in turn.
The ratios are to the OpenRLHF step of the same turn; the table has their median and quartiles. `entropy/seconds` is
the figure that every run logs. `--policy_loss kl_cov clip_cov` measures the steps of other methods in STARE's place.
`--only mathematics` needs torch alone: the loss, and the entropy beside the log-probs from the same logits. Where
OpenRLHF is not installed, its PolicyLoss with the default options is written out here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from openrlhf_stare import StareOptions
from openrlhf_stare.algorithms.entropy import chunked_entropy
from openrlhf_stare.methods import base
from openrlhf_stare.runtime import CPU_VARIABLE

if TYPE_CHECKING:
    from harness import ActorGroup

WAYS = ("openrlhf", "exact", "sampled")  # OpenRLHF's own actor and loss, and STARE's by their entropy
GATE_ON = 100.0  # nats; no policy reaches this target, so the weights always act
PROMPT = 16  # tokens
MEMORY_TURNS = 7
CALLS = 20  # of a loss in one measurement


@dataclass
class Figure:
    """What was measured, once a turn, and what is asked of the median."""

    name: str
    values: list[float]
    at_most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third


def ratios(turns: list[dict[str, float]], way: str, to: str) -> list[float]:
    return [turn[way] / turn[to] for turn in turns]


def alternate(ways: dict[str, Callable[[], object]], turns: int, minutes: float = math.inf) -> list[dict]:
    """What each way gives, turn by turn, the ways in another order each time; a turn before the first only warms up.

    No turn begins after `minutes`, but for the first two.
    """
    orders, results, start = list(permutations(ways)), [], time.monotonic()
    for turn in range(-1, turns):
        if len(results) > 2 and time.monotonic() - start > 60 * minutes:
            break
        results.append({way: ways[way]() for way in orders[turn % len(orders)]})
    return results[1:]


# ── the actor group ──


def step_figures(options: argparse.Namespace) -> list[Figure]:
    from overhead_group import make_model, measured_groups  # needs OpenRLHF

    with tempfile.TemporaryDirectory() as folder:
        others, vocabulary = make_model(Path(folder), options)
        print(f"Qwen2 with {others / 1e6:.1f} million parameters besides the embedding, vocabulary {vocabulary}")
        return [
            figure
            for method, group in measured_groups(folder, options, PROMPT, GATE_ON)
            for figure in method_figures(method, group, options)
        ]


def method_figures(method: str, group: ActorGroup, options: argparse.Namespace) -> list[Figure]:
    # What needs the entropies themselves is refused with sampled ones.
    all_ways = WAYS[:2] if base.find(method).needs_entropy else WAYS
    steps = {way: lambda way=way: group.run("step", way) for way in all_ways}
    turns = alternate(steps, options.pairs, options.minutes)
    peaks = alternate({way: lambda way=way: group.run("log_prob_peak", way) for way in all_ways}, MEMORY_TURNS)
    work = {str(rank["work"]) for turn in turns for ranks in turn.values() for rank in ranks}
    if len(work) != 1:
        raise AssertionError(f"the steps are of unequal work: {work}")

    def over_ranks(key: str, reduce: Callable = max) -> list[dict[str, float]]:
        return [{way: reduce(rank[key] for rank in turn[way]) for way in all_ways} for turn in turns]

    steps = over_ranks("step")
    seconds = statistics.median(turn["openrlhf"] for turn in steps)
    print(f"{method}: OpenRLHF's step: {seconds:.2f} s, each rank {work.pop()}", flush=True)
    figures = []
    for name, key in (("step", "step"), ("log-prob pass", "log_probs")):
        for way in all_ways[1:]:
            figures.append(Figure(f"{method}: {name}, {way} / OpenRLHF", ratios(over_ranks(key), way, "openrlhf")))
            if options.device == "cpu":  # other programs on the machine hardly change it
                processor = over_ranks(f"{key}_processor", sum)
                figures.append(Figure("  the same in processor time", ratios(processor, way, "openrlhf")))
    for way, at_most in zip(all_ways[1:], (0.03, 0.01), strict=False):
        shares = [turn[way][0]["stare"] / step[way] for turn, step in zip(turns, steps, strict=True)]
        figures.append(Figure(f"{method}: entropy/seconds / step, {way}", shares, at_most))
    figures += [
        Figure(f"{method}: peak memory of the log-prob pass, exact / OpenRLHF", memory_ratios(peaks, "peak"), 1.05),
        Figure("  the same above what the process held before", memory_ratios(peaks, "rise"), 1.05),
    ]
    return figures


def memory_ratios(peaks: list[dict], key: str) -> list[float]:
    return ratios(
        [{way: sum(rank[key] for rank in ranks) for way, ranks in turn.items()} for turn in peaks], "exact", "openrlhf"
    )


# ── the mathematics alone ──


class PlainLoss(torch.nn.Module):
    """What OpenRLHF's PolicyLoss computes with its default options."""

    def forward(self, log_probs, old_log_probs, advantages, action_mask) -> tuple:
        def mean(values):
            return (values * action_mask).sum() / action_mask.sum()

        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.clamp(min=-20, max=20).exp()
        plain, clipped = ratio * advantages, ratio.clamp(0.8, 1.2) * advantages
        loss = mean(-torch.min(plain, clipped))
        return loss, mean((clipped < plain).float()), mean(-log_ratio.detach()), None, None


def loss_classes() -> tuple[type, type]:
    """OpenRLHF's loss and STARE's, which extends it."""
    import openrlhf_stare

    try:
        stare = openrlhf_stare.StarePolicyLoss
    except ModuleNotFoundError as missing:
        if missing.name != "openrlhf":
            raise
        models = ModuleType("openrlhf.models")
        models.PolicyLoss = PlainLoss
        sys.modules.update({"openrlhf": ModuleType("openrlhf"), "openrlhf.models": models})
        stare = openrlhf_stare.StarePolicyLoss
    return stare.__bases__[0], stare


def seconds(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls


def loss_figures(options: argparse.Namespace, device: torch.device) -> list[Figure]:
    plain_class, stare_class = loss_classes()
    stare = stare_class(StareOptions(variant="C2"))
    random = torch.Generator().manual_seed(0)
    shape = (options.micro_batch, options.tokens)
    old_log_probs = torch.rand(shape, generator=random).log_().to(device)
    log_probs = (old_log_probs + 0.1 * torch.randn(shape, generator=random).to(device)).requires_grad_()
    advantages = torch.randn(shape[0], 1, generator=random).expand(shape).to(device)
    mask = torch.ones(shape, device=device)
    stare.open_rollout(base.Tokens(old_log_probs.flatten(), advantages.flatten(), mask.flatten().bool()))

    def forward_and_backward(loss: torch.nn.Module) -> None:
        log_probs.grad = None
        loss(log_probs, old_log_probs, advantages, action_mask=mask)[0].backward()

    losses = {"openrlhf": plain_class(), "stare": stare}
    turns = alternate(
        {
            way: lambda loss=loss: seconds(lambda: forward_and_backward(loss), device, CALLS)
            for way, loss in losses.items()
        },
        options.pairs,
    )
    plain, ours = (1e3 * statistics.median(turn[way] for turn in turns) for way in losses)
    print(f"{plain_class.__name__} on {shape} tokens, forward and backward: {plain:.3f} ms, STARE's: {ours:.3f} ms")
    return [Figure(f"loss forward and backward, STARE / {plain_class.__name__}", ratios(turns, "stare", "openrlhf"))]


def entropy_figures(options: argparse.Namespace, device: torch.device) -> list[Figure]:
    tokens = options.micro_batch * (PROMPT + options.tokens)
    logits = torch.randn(tokens, options.vocabulary, device=device)
    labels = torch.randint(options.vocabulary, (tokens, 1), device=device)

    def log_probs() -> None:
        """As OpenRLHF computes them where flash_attn is not installed."""
        for part, label in zip(logits.split(1024), labels.split(1024), strict=True):
            part.gather(-1, label).squeeze(-1) - part.logsumexp(dim=-1)

    def with_entropy() -> None:
        log_probs()
        chunked_entropy(logits)

    calls = {"log-probs": log_probs, "both": with_entropy}
    turns = alternate({way: lambda c=call: seconds(c, device) for way, call in calls.items()}, options.pairs)
    plain, ours = (1e3 * statistics.median(turn[way] for turn in turns) for way in calls)
    print(f"log-probs from {tuple(logits.shape)} logits: {plain:.2f} ms, with the exact entropy: {ours:.2f} ms")
    figures = [Figure("log-probs from logits, with exact entropy / without", ratios(turns, "both", "log-probs"))]
    if device.type == "cuda":

        def peak(call: Callable[[], object]) -> int:
            torch.cuda.reset_peak_memory_stats()
            call()
            return torch.cuda.max_memory_allocated()

        turns = alternate({way: lambda c=call: peak(c) for way, call in calls.items()}, MEMORY_TURNS)
        figures.append(Figure("  the same for the peak memory", ratios(turns, "both", "log-probs"), 1.05))
    return figures


# ── the table ──


def table(figures: list[Figure]) -> str:
    lines = [f"{'figure':<66}{'median':>8}{'quartiles':>18}{'n':>4}{'at most':>9}"]
    for figure in figures:
        quartiles = " – ".join(f"{quartile:.4f}" for quartile in figure.quartiles)
        asked = ""
        if figure.at_most is not None:
            asked = f"{figure.at_most:>9.2f}  {'holds' if figure.median <= figure.at_most else 'EXCEEDED'}"
        lines.append(f"{figure.name:<66}{figure.median:>8.4f}{quartiles:>18}{len(figure.values):>4}{asked}")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="turns, each with one step of every way")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no turn later; fewer turns than asked")
    parser.add_argument(
        "--policy_loss", nargs="+", default=["stare"], metavar="METHOD", help="whose steps are measured"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 64, the size of a head")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--responses", type=int, default=8, help="of one rollout, which is one optimizer step")
    parser.add_argument("--tokens", type=int, default=64, help=f"of a response, after a prompt of {PROMPT}")
    parser.add_argument("--micro-batch", type=int, default=2, help="responses")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=("steps", "mathematics"), help="half of the benchmark")
    parser.add_argument("--json", type=Path, help="also write the figures, each with all its values, to this file")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2, for a spread")
    if options.responses % 4 or options.responses % (options.ranks * options.micro_batch):
        parser.error("--responses must be a multiple of 4 and of ranks times micro-batch")
    return options


def main() -> None:
    options = parse()
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")  # the actors' progress bars would bury the table
    if options.device == "cpu":
        os.environ[CPU_VARIABLE] = "1"
        torch.set_num_threads(1)  # like a rank on the CPU
    figures = []
    if options.only != "mathematics":
        figures += step_figures(options)
    if options.only != "steps":
        figures += loss_figures(options, torch.device(options.device))
        figures += entropy_figures(options, torch.device(options.device))

    command = shlex.join(["python", "tests/benchmarks/overhead.py", *sys.argv[1:]])
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"\n{command}\ntorch {torch.__version__}, Python {sys.version.split()[0]}, {where}\n\n{table(figures)}")
    if options.json:
        rows = [{**asdict(figure), "median": figure.median, "quartiles": figure.quartiles} for figure in figures]
        options.json.write_text(json.dumps({"command": command, "where": where, "figures": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
