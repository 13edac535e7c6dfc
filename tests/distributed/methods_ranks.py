"""The program of the ranks of test_methods_gloo.py: `python methods_ranks.py STORE`.

A script of its own, because processes that spawn starts must be able to import what they run.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from openrlhf_stare.algorithms.control import EntropyController
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.draw import places_of
from openrlhf_stare.methods import base

WORLDS = (1, 2, 4)
ROWS, COLUMNS = 22, 30
# Options with which a method has much to select.
OPTIONS = {
    "kl_cov": [{"share": 0.002}, {"share": 0.1}, {"share": 1.0}],
    "clip_cov": [{"share": 0.02, "low": 0.5}, {"share": 0.9, "bound": 1.0}, {"share": 0.0}],
    "high_entropy": [{"share": 0.2}, {"share": 0.037, "bound": 0.01}, {"share": 1.0}],
    "stare": [{"variant": "C2"}],
    "repo": [{"zeta": 0.3}, {"zeta": 0.0}],
}
NAMES = ("log_probs", "advantages", "mask", "entropies", "places")
COMPOSITIONS = ["stare+repo+entropy_bonus", "kl_cov+sign_weights"]  # with the defaults of each


def rollout() -> dict[str, torch.Tensor]:
    """(ROWS, COLUMNS) with holes, an empty row, ties, certain tokens, a row like another one and a group without
    advantages."""
    random = torch.Generator().manual_seed(1)
    values = {
        "log_probs": torch.rand(ROWS, COLUMNS, generator=random).mul(40).round().div(-8),
        "advantages": torch.randn(ROWS, 1, generator=random).expand(ROWS, COLUMNS).clone(),
        "entropies": torch.rand(ROWS, COLUMNS, generator=random).mul(30).round().div(10),
        "new_log_probs": -torch.rand(ROWS, COLUMNS, generator=random).mul(4),
    }
    values["log_probs"][::2] -= torch.rand(ROWS // 2, COLUMNS, generator=random).mul(0.01)
    values = {name: torch.cat([tensor[:-1], tensor[:1]]) for name, tensor in values.items()}
    mask = torch.rand(ROWS, COLUMNS, generator=random) < 0.8
    mask[-1], mask[3] = mask[0], False
    values["advantages"][5:8] = 0
    values = {name: tensor.masked_fill(~mask, 0) for name, tensor in values.items()}
    return values | {"mask": mask, "places": places_of(range(ROWS), COLUMNS)}


def splits(world: int) -> list[list[int]]:
    """Rows of each rank: even, and all but one on the last rank, with nothing on the first."""
    even = [ROWS // world] * world
    even[0] += ROWS - sum(even)
    return [even, [0] * (world - 2) + [1, ROWS - 1]] if world > 1 else [even]


def flat(share: dict[str, torch.Tensor]) -> base.Tokens:
    return base.Tokens(*(share[name][share["mask"]] for name in NAMES))


def in_training(method: base.Method, share: dict, rows: int, padded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and penalties (2, tokens) of this rank's action tokens, found in micro-batches of so many rows."""
    found = [torch.empty(2, 0)]
    for start in range(0, len(share["mask"]), rows):
        batch = {name: tensor[start : start + rows] for name, tensor in share.items()}
        if padded:
            padding = {"log_probs": -1.0, "advantages": 0.0, "entropies": 9.0, "new_log_probs": -5.0, "mask": False}
            padding["places"] = 0
            batch = {
                name: torch.nn.functional.pad(tensor, (3, 4), value=padding[name]) for name, tensor in batch.items()
            }
        tokens = base.Tokens(*(batch[name] for name in NAMES))
        weights, penalty = method.weights(tokens), method.penalty(batch["new_log_probs"], tokens)
        ones, zeros = torch.ones_like(batch["log_probs"]), torch.zeros_like(batch["log_probs"])
        both = torch.stack([ones if weights is None else weights, zeros if penalty is None else penalty])
        found.append(both[:, batch["mask"]])
    return torch.cat(found, dim=1)


def check(name: str, options: dict, rank: int, world: int, group: dist.ProcessGroup) -> None:
    whole, method = rollout(), base.chosen(name)
    made = method.Options(**options) if options else None
    alone, here = method(made), method(made)
    starts = {strength.name: strength.start for strength in alone.strengths}
    expected_figures = alone.open_rollout(flat(whole), starts, None)
    for share_sizes in splits(world):
        share = {key: tensor.split(share_sizes)[rank] for key, tensor in whole.items()}
        figures = here.open_rollout(flat(share), starts, group)
        assert figures == pytest.approx(expected_figures, abs=1e-12)
        per_row = [int(mask.sum()) for mask in whole["mask"].split(share_sizes)]
        expected = in_training(alone, whole, ROWS, padded=False).split(per_row, dim=1)[rank]
        for rows in (1, 2, 4):
            for padded in (False, True):
                assert torch.equal(in_training(here, share, rows, padded), expected)
        if name == "clip_cov":
            dropped = all_reduce_sums([int((expected[0] == 0).sum())], group).item()
            n = int(whole["mask"].sum())
            assert dropped == round(figures["clip_cov/dropped_ratio"] * n)
            assert dropped == min(round(figures["clip_cov/band_ratio"] * n), int(starts["share"] * n))


def check_empty(rank: int, group: dist.ProcessGroup) -> None:
    """A rollout without a token on any rank: nothing waits, nothing raises."""
    nothing = base.Tokens(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.bool), torch.empty(0))
    for name in base.names():
        method = base.find(name)()
        strengths = {strength.name: strength.start for strength in method.strengths}
        figures = method.open_rollout(nothing, strengths, group)
        assert all(value == 0 for key, value in figures.items() if key.endswith("_ratio"))


def check_controllers(rank: int, world: int, group: dist.ProcessGroup) -> None:
    """From sums of entropies that differ between the ranks, the strengths are the same on all of them."""
    random = torch.Generator().manual_seed(rank)
    for name in [*base.names(), *COMPOSITIONS]:
        method = base.chosen(name)()
        for schedule in ("gate", "adaptive", "pi") if method.strengths else ("open",):
            given = {"schedule": schedule, "target": "50%"}
            if schedule == "pi" and any(strength.counter is not None for strength in method.strengths):
                given["sides"] = "both"
            controller = EntropyController(base.entropy_control(type(method), given), method.strengths)
            for _ in range(5):
                own = torch.rand(3 + rank, generator=random)
                total, count = all_reduce_sums([own.sum().item(), len(own)], group).tolist()
                strengths = list(controller.update(total / count).values())
                gathered = [None] * world
                dist.all_gather_object(gathered, strengths, group=group)
                assert gathered == [strengths] * world


def run(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=max(WORLDS), timeout=timedelta(seconds=60)
    )
    groups = {world: dist.new_group(range(world)) for world in WORLDS}
    for world, group in groups.items():
        if rank < world:
            for name in [*base.names(), *COMPOSITIONS]:
                for options in OPTIONS.get(name, [{}]):
                    check(name, options, rank, world, group)
            check_empty(rank, group)
            check_controllers(rank, world, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=max(WORLDS))
