"""What `--actor.fused_head` costs and saves: time and peak memory of the head in a pass, with logits and without.

    python tests/benchmarks/fused_head.py --vocabularies 32000 152000 --tokens 1024 8192 --gradients 1 0.7
    python tests/benchmarks/fused_head.py --dtype float32 --vocabularies 49152 --hidden 576 --tokens 1500
    python tests/benchmarks/fused_head.py --errors --tokens 1024
    python tests/benchmarks/fused_head.py --within 8

The first two measure the head alone: the log-prob pass with entropies and the training pass, forward and backward,
each in turns with logits (as OpenRLHF makes them, with our chunked entropy) and without. `training 0.7` is that pass
where seven tenths of the tokens have a gradient and the others an advantage of 0. `products` are the matrix products
of a training pass alone, three with logits and four without. `cpu` is the process's own time, which others on the
machine lengthen less than the clock's. `peak` is memory beyond weight, hidden states and their gradients.
The third says how far results and gradients of both ways are from those in float64. The last looks for the largest
micro-batch of a training pass of OpenRLHF's actor within so many GiB, by trying: each trial is a process whose memory
is limited (RLIMIT_DATA).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from openrlhf_stare import worker

worker.install()

from openrlhf.models.utils import log_probs_from_logits  # noqa: E402

from openrlhf_stare.algorithms.entropy import chunked_entropy  # noqa: E402
from openrlhf_stare.algorithms.fused_head import Logits, fused_log_probs  # noqa: E402

TEMPERATURE = 0.9
WORDS = 1024  # of a block, where the products are measured alone
SEQUENCE = 1024  # tokens of a response in the search for the largest micro-batch
TOO_MUCH = "allocate memory", "MemoryError", "bad_alloc"  # what torch, Python and oneDNN say


def passes(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, action_share: float, gradient_shares: list[float]
) -> dict[str, dict[str, Callable]]:
    """Pass -> way -> what runs it once. The last tokens are action tokens, and the last of those have a gradient."""
    tokens, action = len(labels), round(len(labels) * action_share)
    wanted = labels.where(torch.arange(tokens) >= tokens - action, -1)

    def logits() -> torch.Tensor:
        return torch.nn.functional.linear(hidden, weight).to(torch.float32).div_(TEMPERATURE)

    def log_probs_with_logits() -> None:
        with torch.no_grad():
            x = logits()
            chunked_entropy(x)
            log_probs_from_logits(x, labels)

    def log_probs_without() -> None:
        with torch.no_grad():
            fused_log_probs(hidden, weight, wanted, logits=Logits(TEMPERATURE))

    def training_with_logits(advantages: torch.Tensor) -> None:
        (log_probs_from_logits(logits(), labels) * advantages).sum().backward()

    def training_without(advantages: torch.Tensor) -> None:
        log_probs, _ = fused_log_probs(hidden, weight, wanted, logits=Logits(TEMPERATURE), entropy=False)
        (log_probs * advantages).sum().backward()

    def products(count: int) -> None:
        with torch.no_grad():
            for block in weight.split(WORDS):
                x = torch.mm(hidden, block.T)
                for _ in range(count - 3):
                    torch.mm(hidden, block.T, out=x)
                torch.mm(x, block)
                torch.mm(x.T, hidden)

    found = {"log-probs": {"with": log_probs_with_logits, "without": log_probs_without}}
    for share in gradient_shares:
        advantages = (torch.arange(tokens) >= tokens - round(action * share)).float()
        found[f"training {share:g}"] = {
            "with": functools.partial(training_with_logits, advantages),
            "without": functools.partial(training_without, advantages),
        }
    return found | {"products": {"with": functools.partial(products, 3), "without": functools.partial(products, 4)}}


def peak_bytes(call: Callable[[], None]) -> int:
    """The most memory that the call has besides what there was."""
    ctypes.CDLL(None).malloc_trim(0)  # or what was freed before would be taken again, unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def inputs(vocabulary: int, tokens: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight and labels: the same values in every type, with surprisals as in a model's first steps."""
    random = torch.Generator().manual_seed(0)
    weight = (torch.randn(vocabulary, size, generator=random) * 0.1).bfloat16().to(dtype).requires_grad_()
    hidden = torch.randn(tokens, size, generator=random).bfloat16().to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (tokens,), generator=random)


def measure(vocabulary: int, tokens: int, options: argparse.Namespace) -> list[dict]:
    hidden, weight, labels = inputs(vocabulary, tokens, options.hidden, getattr(torch, options.dtype))
    rows = []
    of_pass = passes(hidden, weight, labels, options.action, options.gradients)
    for name, ways in of_pass.items():
        peaks = {}
        for way, call in ways.items():
            weight.grad = hidden.grad = None
            peak = peak_bytes(call)
            # Both ways make the gradients.
            peaks[way] = peak - sum(leaf.grad.nbytes for leaf in (weight, hidden) if leaf.grad is not None)
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(options.repeats):
            for way, call in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                call()
                times[way].append((time.process_time() - cpu, time.perf_counter() - wall))
        cpu, wall = ({way: statistics.median(t[i] for t in times[way]) for way in ways} for i in (0, 1))
        where = {"vocabulary": vocabulary, "tokens": tokens, "pass": name}
        rows.append(where | {"cpu_seconds": cpu, "wall_seconds": wall, "peak_bytes": peaks})
    return rows


def errors(vocabulary: int, tokens: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Way -> what -> the norm of its distance from float64, relative to the norm of the truth."""

    def results(dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
        hidden, weight, labels = inputs(vocabulary, tokens, options.hidden, dtype)
        if fused:
            log_probs, entropies = fused_log_probs(hidden, weight, labels, logits=Logits(TEMPERATURE))
        else:
            x = torch.nn.functional.linear(hidden, weight)
            x = (x if dtype == torch.float64 else x.to(torch.float32)).div_(TEMPERATURE)
            log_probs, p = log_probs_from_logits(x, labels), x.detach().softmax(-1)
            entropies = x.detach().logsumexp(-1) - p.mul_(x.detach()).sum(-1)
        advantages = torch.randn(tokens, generator=torch.Generator().manual_seed(1))
        (log_probs * advantages).mean().backward()
        found = {"log-probs": log_probs, "entropies": entropies, "by hidden": hidden.grad, "by weight": weight.grad}
        return {name: value.detach().double() for name, value in found.items()}

    truth = results(torch.float64, False)
    dtype = getattr(torch, options.dtype)
    return {
        way: {name: ((value - truth[name]).norm() / truth[name].norm()).item() for name, value in found.items()}
        for way, found in (("with", results(dtype, False)), ("without", results(dtype, True)))
    }


def line(row: dict) -> str:
    ratios = (row[figure]["without"] / row[figure]["with"] for figure in ("cpu_seconds", "wall_seconds", "peak_bytes"))
    cpu, peak = row["cpu_seconds"], {way: value / 2**20 for way, value in row["peak_bytes"].items()}
    return (
        f"{row['vocabulary']:>10} {row['tokens']:>6} {row['pass']:>12} {cpu['with']:>8.2f} {cpu['without']:>8.2f} "
        + "{:>6.2f} {:>6.2f} ".format(*ratios)
        + f"{peak['with']:>9.0f} {peak['without']:>9.0f} {peak['without'] / peak['with']:>6.3f}"
    )


HEADER = f"{'vocabulary':>10} {'tokens':>6} {'pass':>12} {'cpu s':>8} {'without':>8} {'ratio':>6} {'wall':>6} " + (
    f"{'peak MiB':>9} {'without':>9} {'ratio':>6}"
)


def train_once(model: str, way: str, responses: int, gib: float) -> None:
    """A training pass of one micro-batch under a limit of memory. In a process of its own."""
    from openrlhf.models.actor import Actor

    from openrlhf_stare.actor_group.fused_head import FusedHeadActor

    of_way = {"with": Actor, "without": functools.partial(FusedHeadActor, lambda: False)}
    resource.setrlimit(resource.RLIMIT_DATA, (int(gib * 2**30),) * 2)
    actor = of_way[way](model, "sdpa", temperature=TEMPERATURE)
    actor.train()
    sequences = torch.randint(0, 1000, (responses, SEQUENCE), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(responses, SEQUENCE - 1, dtype=torch.long)
    actor(sequences, mask, torch.ones_like(sequences)).sum().backward()


def largest_micro_batch(way: str, model: str, options: argparse.Namespace) -> int:
    """The most responses of a training pass that fit, up to --most, which is tried first."""

    def fits(responses: int) -> bool:
        words = ["--train_once", model, way, str(responses), "--within", str(options.within)]
        words += ["--threads", str(options.threads)]
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
        if done.returncode and not any(sign in done.stderr for sign in TOO_MUCH):
            raise RuntimeError(done.stderr)
        print(f"{way} logits, {responses} responses: {'too much' if done.returncode else 'fits'}", flush=True)
        return not done.returncode

    low, high, responses = 0, options.most + 1, options.most
    while high - low > 1:
        low, high = (responses, high) if fits(responses) else (low, responses)
        responses = (low + high) // 2
    return low


def make_model(folder: str, vocabulary: int, size: int) -> str:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": size, "intermediate_size": 4 * size, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "qwen2", vocab_size=vocabulary, **sizes, num_key_value_heads=4, tie_word_embeddings=True
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 152_000])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--hidden", type=int, default=896, help="size of a hidden state")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--action", type=float, default=1.0, help="of the tokens; the others are a prompt's")
    parser.add_argument(
        "--gradients",
        type=float,
        nargs="+",
        default=[1.0],
        help="of the action tokens, a pass for each",
    )
    parser.add_argument("--errors", action="store_true", help="how far from float64 instead")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch's; a rank of a job without a GPU has one")
    parser.add_argument("--within", type=float, metavar="GIB", help="look for the largest micro-batch instead")
    parser.add_argument("--most", type=int, default=64, help="responses that search begins with")
    parser.add_argument("--train_once", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.train_once:
        model, way, responses = options.train_once
        train_once(model, way, int(responses), options.within)
        return
    print(f"torch {torch.__version__}, {options.threads} threads, hidden states of {options.hidden}, {options.dtype}")
    if options.errors:
        rows = {f"{v} {t}": errors(v, t, options) for v in options.vocabularies for t in options.tokens}
        for sizes, of_way in rows.items():
            for way, of_what in of_way.items():
                figures = ", ".join(f"{name} {error:.2e}" for name, error in of_what.items())
                print(f"{sizes}, {way} logits: {figures}")
    elif options.within:
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(folder, options.vocabularies[-1], options.hidden)
            rows = {way: largest_micro_batch(way, model, options) for way in ("with", "without")}
        print(f"largest micro-batch of {SEQUENCE} tokens a response within {options.within:g} GiB: {rows}")
    else:
        print(HEADER)
        rows = []
        for vocabulary in options.vocabularies:
            for tokens in options.tokens:
                for row in measure(vocabulary, tokens, options):
                    rows.append(row)
                    print(line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
