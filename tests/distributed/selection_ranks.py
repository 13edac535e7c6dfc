"""The program of the ranks of test_selection_gloo.py: `python selection_ranks.py STORE`.

A script of its own, because processes that spawn starts must be able to import what they run.
"""

from __future__ import annotations

import math
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from openrlhf_stare.algorithms.distributed import all_reduce_sums, collective_device, gather_uneven
from openrlhf_stare.methods.stare import StareOptions, surprisal_thresholds, token_weights
from openrlhf_stare.without_flash_attn.padding import all_gather

WORLDS = (2, 3, 4)


def batch(rows: int = 37, columns: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log_probs, advantages and action_mask (rows, columns) with ties, certain tokens, zeros and holes."""
    random = torch.Generator().manual_seed(rows)
    log_probs = torch.rand(rows, columns, generator=random).mul(40).round().div(-8)
    advantages = torch.randn(rows, 1, generator=random).mul(2).round().expand(rows, columns)
    return log_probs, advantages, torch.rand(rows, columns, generator=random) < 0.8


def splits(rows: int, world: int) -> list[list[int]]:
    """Ways to deal the rows to the ranks: even, uneven, all on one rank, none at all on the last."""
    even = [rows // world] * world
    even[0] += rows - sum(even)
    uneven = [1] * world
    uneven[world // 2] += rows - world
    return [even, uneven, [rows] + [0] * (world - 1), [0] * (world - 1) + [rows]]


def assert_same_on_all_ranks(values: torch.Tensor, group) -> None:
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, values, group=group)
    assert all(torch.equal(values, other) for other in gathered)


def check_splits(rank: int, world: int, group: dist.ProcessGroup) -> None:
    for rows in (0, 1, 37):
        whole = batch(rows)
        flat = [x.flatten() for x in (-whole[0], whole[1])]
        for share_sizes in splits(rows, world) if rows >= world else [[rows] + [0] * (world - 1)]:
            own = [x.split(share_sizes)[rank] for x in whole]
            own_flat = [x.split([n * 40 for n in share_sizes])[rank] for x in flat]
            for selection in ("kthvalue", "radix", "auto"):
                for p in (0.0, 0.07, 0.5, 1.0):
                    here = surprisal_thresholds(*own_flat, top_p_ratio=p, group=group, selection=selection)
                    alone = surprisal_thresholds(*flat, top_p_ratio=p, selection="kthvalue")
                    assert here == alone
                    assert_same_on_all_ranks(torch.stack(here), group)
                    config = StareOptions(variant="C2", top_p_ratio=p, selection=selection)
                    expected = token_weights(*whole, config=config).split(share_sizes)[rank]
                    assert torch.equal(token_weights(*own, config=config, group=group), expected)


def check_nan(rank: int, world: int, group: dist.ProcessGroup) -> None:
    for selection in ("kthvalue", "radix", "auto"):
        for bad_rank in range(world):
            s, a = torch.rand(rank * 5), torch.randn(rank * 5)
            if rank == bad_rank:
                s, a = torch.cat([s, torch.tensor([math.nan])]), torch.cat([a, torch.tensor([1.0])])
            for surprisals, advantages in ((s, a), (a.nan_to_num().abs(), s)):  # NaN in the one, then in the other
                with pytest.raises(ValueError, match="^1 of the group's tokens"):
                    surprisal_thresholds(surprisals, advantages, top_p_ratio=0.5, group=group, selection=selection)
    # No rank was left behind: the next collective is the same one everywhere.
    assert all_reduce_sums([1.0], group).item() == world
    # Numbers that are not finite never get that far from a batch: token_weights leaves them out on their rank.
    log_probs = torch.tensor([[-1.0, -2.0, math.nan if rank == 0 else -3.0]])
    weights = token_weights(
        log_probs, torch.ones(1, 3), torch.ones(1, 3), config=StareOptions(top_p_ratio=1.0), group=group
    )
    assert weights[0, 2] == (1 if rank == 0 else weights[0, 0])


def check_helpers(rank: int, world: int, group: dist.ProcessGroup) -> None:
    assert collective_device(group) == collective_device(None) == torch.device("cpu")
    total = all_reduce_sums([0.1 * (rank + 1), 1.0], group)
    assert total.dtype == torch.float64
    assert total.tolist() == pytest.approx([0.1 * world * (world + 1) / 2, world], abs=1e-15)
    own = torch.tensor([[rank, 2**40]])
    assert all_reduce_sums(own, group).tolist() == [[world * (world - 1) // 2, world * 2**40]]
    assert own.tolist() == [[rank, 2**40]]  # not written
    gathered = gather_uneven(torch.full((rank,), float(rank)), group)  # rank 0 has nothing
    assert gathered.tolist() == [float(r) for r in range(world) for _ in range(r)]
    assert gather_uneven(torch.empty(0), group).numel() == 0


def check_traffic(rank: int, world: int, group: dist.ProcessGroup) -> None:
    """radix moves the same number of bytes whatever the number of candidates, and no rank's number differs."""
    moved = []
    original = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        moved.append(tensor.numel() * tensor.element_size())
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counted
    bytes_of = []
    for n in (0, 10, 100_000):
        moved.clear()
        s, a = torch.rand(n * (rank + 1)), torch.randn(n * (rank + 1))
        surprisal_thresholds(s, a, top_p_ratio=0.1, group=group, selection="radix")
        bytes_of.append(sum(moved))
        assert len(moved) == 5  # what is invalid, the sizes of the sets, and a table for each of three digits
    dist.all_reduce = original
    assert len(set(bytes_of)) == 1 and bytes_of[0] <= 256 * 2**10
    assert_same_on_all_ranks(torch.tensor(bytes_of), group)


def check_duplicated_ranks(rank: int) -> None:
    """Ring attention: ranks 0 and 1 hold one share, ranks 2 and 3 the other; 0 and 2, 1 and 3 are data-parallel."""
    data_parallel = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    whole = batch(20)
    share_sizes = [17, 3]
    own = [x.split(share_sizes)[rank // 2] for x in whole]
    differs = False
    for selection in ("kthvalue", "radix"):
        for p in (0.1, 0.5):
            config = StareOptions(variant="C2", top_p_ratio=p, selection=selection)
            expected = token_weights(*whole, config=config).split(share_sizes)[rank // 2]
            assert torch.equal(token_weights(*own, config=config, group=data_parallel), expected)
            differs |= not torch.equal(token_weights(*own, config=config), expected)
    # At least one rank's own ranking differs, so agreeing with the whole is no accident.
    assert all_reduce_sums([float(differs)], dist.group.WORLD).item() > 0
    assert all_reduce_sums([float(len(own[0]))], data_parallel).item() == 20


def check_gather_over_a_ring(rank: int) -> None:
    """Ranks 0 and 1 are one ring, 2 and 3 the other: values and gradients are those of the whole sequence."""
    ring = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    whole = torch.arange(6.0).view(6, 1).requires_grad_()
    factors = [torch.linspace(1, 2, 6).view(6, 1), torch.linspace(3, 5, 6).view(6, 1)]
    sum((whole * factor).square().sum() for factor in factors).backward()
    own = whole.detach().chunk(2)[rank % 2].clone().requires_grad_()
    gathered = all_gather(own, ring)
    assert torch.equal(gathered, whole)
    (gathered * factors[rank % 2]).square().sum().backward()  # this rank's part of the loss
    torch.testing.assert_close(own.grad, whole.grad.chunk(2)[rank % 2])


def run(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=max(WORLDS), timeout=timedelta(seconds=60)
    )
    for world in WORLDS:
        group = dist.new_group(range(world)) if world < max(WORLDS) else dist.group.WORLD
        if rank < world:
            for check in (check_splits, check_nan, check_helpers, check_traffic):
                check(rank, world, group)
    check_duplicated_ranks(rank)
    check_gather_over_a_ring(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=max(WORLDS))
