"""What of this package computes on a GPU, tried with torch and transformers alone: python launch/gpu_parts.py

Entropy, the head without logits, torch's attention over packed sequences, selection and every method's weights, each
held to another way of computing the same; with the time, and on a GPU the peak memory. Ray, vLLM and OpenRLHF are
neither needed nor imported, nor has the package to be installed. Prints a table for docs/cost.md. Ends with status 1
if something differs. `--device cpu` does the same in small.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from openrlhf_stare.algorithms.draw import places_of  # noqa: E402
from openrlhf_stare.algorithms.entropy import chunked_entropy  # noqa: E402
from openrlhf_stare.algorithms.fused_head import fused_log_probs  # noqa: E402
from openrlhf_stare.algorithms.selection import kth_largest  # noqa: E402
from openrlhf_stare.methods import base  # noqa: E402

REPEATS = 3
SMALL_TOKENS = 64  # of which the exact results, in float64, are known


@dataclass(frozen=True)
class Sizes:
    tokens: int
    hidden: int
    vocabulary: int
    candidates: int  # of a selection


SIZES = {
    "cuda": Sizes(tokens=4096, hidden=3584, vocabulary=152_064, candidates=16_000_000),  # a head of Qwen2.5-7B
    "cpu": Sizes(tokens=128, hidden=64, vocabulary=1000, candidates=100_000),
}

ROOMY = 24 * 2**30  # bytes of a GPU: the head with logits takes half of them


@dataclass(frozen=True)
class Row:
    """A line of the table: how far the two ways are apart, and how far they may be."""

    part: str
    difference: float | None
    allowed: float | None
    cost: str

    @property
    def ok(self) -> bool:
        return self.difference is None or self.difference <= self.allowed  # NaN is not


def measured(call: Callable[[], object], device: str) -> str:
    """The median time of a call, and its peak memory besides what there was."""
    call()  # what only a first call pays
    times, peak = [], ""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    if device == "cuda":
        peak = f", {(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB"
    return f"{1e3 * sorted(times)[REPEATS // 2]:.1f} ms{peak}"


def exact(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies in float64."""
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    return log_probs.gather(-1, labels[:, None]).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference; NaN if there is one."""
    return float((found.to(expected.dtype) - expected).abs().max())


def entropy(device: str, sizes: Sizes) -> Iterator[Row]:
    logits = torch.randn(sizes.tokens, sizes.vocabulary, device=device) * 3
    few = logits[:SMALL_TOKENS]
    expected = exact(few, few.argmax(-1))[1]
    yield Row("entropy of logits / float64", apart(chunked_entropy(few), expected), 1e-4, "")
    yield Row(
        f"the same, {sizes.tokens} tokens in chunks / one by one",
        apart(chunked_entropy(logits)[-SMALL_TOKENS:], chunked_entropy(logits[-SMALL_TOKENS:])),
        1e-5,
        measured(lambda: chunked_entropy(logits), device),
    )


def fused_head(device: str, sizes: Sizes) -> Iterator[Row]:
    weight = (torch.randn(sizes.vocabulary, sizes.hidden, device=device) * 0.05).bfloat16().requires_grad_()
    hidden = torch.randn(sizes.tokens, sizes.hidden, device=device).bfloat16().requires_grad_()
    labels = torch.randint(0, sizes.vocabulary, (sizes.tokens,), device=device)

    def with_logits() -> tuple[Tensor, Tensor]:
        logits = torch.nn.functional.linear(hidden, weight).float()
        log_probs = torch.log_softmax(logits, dim=-1).gather(-1, labels[:, None]).squeeze(-1)
        return log_probs, chunked_entropy(logits.detach())

    def without() -> tuple[Tensor, Tensor]:
        return fused_log_probs(hidden, weight, labels)

    def gradients(way: Callable[[], tuple[Tensor, Tensor]]) -> list[Tensor]:
        return list(torch.autograd.grad(way()[0].sum(), (hidden, weight)))

    few, blocks = hidden[:SMALL_TOKENS].detach().double(), weight.detach().split(2**14)
    few = torch.cat([few @ block.double().T for block in blocks], dim=-1)
    expected = exact(few, labels[:SMALL_TOKENS])
    del few
    with torch.no_grad():
        for name, way in (("with logits", with_logits), ("without", without)):
            found = way()
            for what, value, right in zip(("log-probs", "entropies"), found, expected, strict=True):
                cost = measured(way, device) if what == "log-probs" else ""
                # What bfloat16 does to a logit: 8 bits of some 20.
                yield Row(f"head {name}: {what} / float64", apart(value[:SMALL_TOKENS], right), 0.15, cost)
    plain, ours = gradients(with_logits), gradients(without)
    for what, a, b in zip(("hidden states", "weights"), plain, ours, strict=True):
        scale = float(a.abs().max())
        yield Row(f"head without / with logits: gradient of the {what}, relative", apart(b, a) / scale, 0.02, "")
    del plain, ours
    for name, way in (("with logits", with_logits), ("without", without)):
        yield Row(f"head {name}: forward and backward", None, None, measured(lambda w=way: gradients(w), device))


def packed_attention(device: str, sizes: Sizes) -> Iterator[Row]:
    """Two sequences in a row, with position ids that start again, as OpenRLHF packs them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model("qwen2", vocab_size=512, hidden_size=256, intermediate_size=512, **heads)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(device).eval()
    one, other = (torch.randint(0, 512, (1, length), device=device) for length in (37, 91))
    places = torch.cat([torch.arange(37, device=device), torch.arange(91, device=device)])[None]
    with torch.no_grad():
        packed = model(torch.cat([one, other], dim=1), position_ids=places, use_cache=False).logits
        apiece = torch.cat([model(tokens, use_cache=False).logits for tokens in (one, other)], dim=1)
    yield Row("sdpa over two packed sequences / over each", apart(packed, apiece), 1e-2, "")


def selection(device: str, sizes: Sizes) -> Iterator[Row]:
    values = torch.rand(sizes.candidates, device=device).log_().neg_()  # surprisals of an exponential tail
    k = sizes.candidates // 10
    right = torch.sort(values, descending=True).values[k - 1]
    ways: dict[str, Callable[[], Tensor]] = {
        "torch.sort": lambda: torch.sort(values, descending=True).values[k - 1],
        "torch.topk": lambda: torch.topk(values, k).values[-1],
        "radix": lambda: kth_largest([values], [lambda n: k], selection="radix")[0],
        "kthvalue": lambda: kth_largest([values], [lambda n: k], selection="kthvalue")[0],
    }
    for name, way in ways.items():
        yield Row(
            f"threshold of {sizes.candidates:,} candidates, {name}", apart(way(), right), 0, measured(way, device)
        )


def method_weights(device: str, sizes: Sizes) -> Iterator[Row]:
    """Weights and penalty of every method, on the device and on the CPU."""
    shape, random = (64, sizes.tokens), torch.Generator().manual_seed(0)
    log_probs = torch.rand(shape, generator=random).log_()
    tokens = base.Tokens(
        log_probs,
        torch.randn(shape[0], 1, generator=random).expand(shape).contiguous(),
        torch.rand(shape, generator=random) < 0.8,
        torch.rand(shape, generator=random),
        places_of(range(shape[0]), shape[1]),
    )
    mask = tokens.action_mask
    pool = base.Tokens(*(value[mask] for value in vars(tokens).values()))
    there = base.Tokens(*(value.to(device) for value in vars(tokens).values()))
    new = (log_probs + 0.1 * torch.randn(shape, generator=random)).clamp(max=0)
    for name in base.names():
        method = base.find(name)()
        method.open_rollout(pool, {strength.name: strength.start for strength in method.strengths}, None)
        found = (method.weights(there), method.penalty(new.to(device), there))
        right = (method.weights(tokens), method.penalty(new, tokens))
        pairs = [(f.cpu()[mask], r[mask]) for f, r in zip(found, right, strict=True) if r is not None]
        difference = max((apart(*pair) for pair in pairs), default=0.0)
        cost = measured(lambda m=method: (m.weights(there), m.penalty(new.to(device), there)), device)
        yield Row(f"{name}: weights and penalty / on the CPU", difference, 1e-5, cost)


PARTS = (entropy, fused_head, packed_attention, selection, method_weights)


def table(rows: list[Row], device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    lines = [f"{name}, torch {torch.__version__}", "", "| Part | Difference | Allowed | Cost |", "|---|---|---|---|"]
    for row in rows:
        figures = "– | –" if row.difference is None else f"{row.difference:.2g} | {row.allowed:g}"
        lines.append(f"| {row.part}{'' if row.ok else ' **differs**'} | {figures} | {row.cost} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows, sizes = [], SIZES[options.device]
    if options.device == "cuda" and torch.cuda.mem_get_info()[1] < ROOMY:
        sizes = replace(sizes, tokens=sizes.tokens // 4)
    for part in PARTS:
        rows += part(options.device, sizes)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    text = table(rows, options.device)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(not all(row.ok for row in rows))


if __name__ == "__main__":
    main()
