"""How long the surprisal thresholds take, and what they move: radix, torch.kthvalue and torch.topk after a gather.

    python tests/benchmarks/selection.py --sizes 10000 1000000 16000000 --ranks 1 --device cpu --json figures.json

Every way finds τ⁺ and τ⁻ of the same N candidates, dealt evenly to the ranks; half of them have A > 0. The time is the
median over the repetitions of rank 0's time from a barrier to the result. `topk` gathers as kthvalue does and then
runs torch.topk on each set. The bytes are what one rank receives from the collectives: a table for a table, all shares
for a gather; without a group nothing is moved. With NCCL (--device cuda) each rank needs a GPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from openrlhf_stare.algorithms.distributed import gather_uneven
from openrlhf_stare.methods.stare import critical_count, surprisal_thresholds

TOP_P_RATIO = 0.1


def by_topk(s: torch.Tensor, advantages: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, ...]:
    """(τ⁺, τ⁻) with torch.topk over the gathered values of each set."""
    pools = [gather_uneven(s[own_set], group) for own_set in (advantages > 0, advantages < 0)]
    return tuple(torch.topk(pool, critical_count(pool.numel(), TOP_P_RATIO)).values[-1] for pool in pools)


def ways(group: dist.ProcessGroup | None) -> dict[str, Callable]:
    def by(selection: str) -> Callable:
        return lambda s, a: surprisal_thresholds(s, a, top_p_ratio=TOP_P_RATIO, group=group, selection=selection)

    return {"radix": by("radix"), "kthvalue": by("kthvalue"), "topk": lambda s, a: by_topk(s, a, group)}


def count_received_bytes(call: Callable, *args) -> int:
    received = 0
    reduce, gather = dist.all_reduce, dist.all_gather

    def counted_reduce(tensor, **kwargs):
        nonlocal received
        received += tensor.numel() * tensor.element_size()
        return reduce(tensor, **kwargs)

    def counted_gather(tensors, own, **kwargs):
        nonlocal received
        received += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return gather(tensors, own, **kwargs)

    dist.all_reduce, dist.all_gather = counted_reduce, counted_gather
    try:
        call(*args)
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather
    return received


def measure(rank: int, options: argparse.Namespace, store: str, results: str) -> None:
    device = torch.device("cuda", rank) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(options.threads)
    group = None
    if options.ranks > 1:
        backend = "nccl" if options.device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=options.ranks)
        group = dist.group.WORLD

    def wait() -> None:
        if options.device == "cuda":
            torch.cuda.synchronize()
        if group is not None:
            dist.barrier(group)

    rows = []
    for size in options.sizes:
        random = torch.Generator().manual_seed(rank)
        own = size // options.ranks
        s = torch.rand(own, generator=random).log_().neg_().to(device)  # the surprisal of an exponential tail
        advantages = torch.randn(own, generator=random).to(device)
        seconds, answers, received = {}, {}, {}
        calls = ways(group)
        for name, call in calls.items():
            # The first call also warms up what only a first call pays.
            received[name] = count_received_bytes(call, s, advantages)
            seconds[name] = []
        for _ in range(options.repeats):
            for name, call in calls.items():  # one after the other, so that a busy moment of the machine hits all
                wait()
                start = time.perf_counter()
                answers[name] = call(s, advantages)
                if options.device == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - start)
        if not all(answer == answers["kthvalue"] for answer in answers.values()):
            raise AssertionError(f"the ways disagree at {size} candidates: {answers}")
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        rows.append({"candidates": size, "ranks": options.ranks, "seconds": medians, "received_bytes": received})
    if rank == 0:
        Path(results).write_text(json.dumps(rows))
    if group is not None:
        dist.destroy_process_group()


def table(rows: list[dict]) -> str:
    lines = [
        f"{'candidates':>11} {'ranks':>5} {'radix ms':>9} {'kthvalue ms':>11} {'topk ms':>9} "
        f"{'kth/radix':>9} {'topk/radix':>10} {'radix KiB':>9} {'gather KiB':>10}"
    ]
    for row in rows:
        radix, kthvalue, topk = (1e3 * row["seconds"][name] for name in ("radix", "kthvalue", "topk"))
        moved, gathered = (row["received_bytes"][name] / 1024 for name in ("radix", "kthvalue"))
        lines.append(
            f"{row['candidates']:>11} {row['ranks']:>5} {radix:>9.2f} {kthvalue:>11.2f} {topk:>9.2f} "
            f"{kthvalue / radix:>9.2f} {topk / radix:>10.2f} {moved:>9.1f} {gathered:>10.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch's threads per rank on the CPU; default: cores / ranks")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.ranks)
    with tempfile.TemporaryDirectory() as folder:
        store, results = str(Path(folder, "store")), str(Path(folder, "results.json"))
        if options.ranks == 1:
            measure(0, options, store, results)
        else:
            mp.spawn(measure, args=(options, store, results), nprocs=options.ranks)
        rows = json.loads(Path(results).read_text())
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"cpu, {options.threads} threads per rank"
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {where}, medians of {options.repeats}")
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
