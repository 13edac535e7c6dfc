"""The k-th largest value of a set that is spread over the ranks: exact, and the same bits on any number of ranks.

Two ways give the same bits. `kthvalue` gathers every rank's values, which reads like the definition. `radix` counts
values by the leading bits of their float32 patterns and moves counts only, so its traffic does not grow with N.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.distributed import all_reduce_sums, gather_uneven

SELECTIONS = ("auto", "kthvalue", "radix")
RADIX_FROM = 2**20  # values over the group from which `auto` takes radix
_DIGITS = (12, 10, 10)  # the 32 bits of a float32, in the parts that are counted in turn
# Values handled at a time: few enough that what lies between two steps stays in the processor's cache, and enough
# that torch's threads, which wait for each other after every step, do so rarely.
_BLOCK = 2**17


@torch.no_grad()
def kth_largest(
    sets: Sequence[Tensor],
    counts: Sequence[Callable[[int], int]],
    *,
    masks: Sequence[Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
    selection: str = "auto",
) -> list[Tensor]:
    """The k-th largest value of each set, pooled over all ranks.

    Every rank of `group` must call it, one without any value too: the collectives are the same on all ranks.

    Args:
        sets: (N_i,) this rank's values of each set, taken as float32, of either sign, infinite too. No value of a set
            is NaN.
        counts: for each set its k, from 0 to n, as a function of n, its size over all ranks.
        masks: (N_i,) bool, which values belong to the set; None for all. Cheaper than `values[mask]`.
        group: the ranks whose values are pooled; None for this process alone.
        selection: kthvalue, radix, or auto: radix from 2**20 values over the group, which moves at most 48 KiB of
            counts a set and rank whatever the number of values; both give the same bits.

    Returns:
        A 0-d float32 tensor for each set, on its device, the same on all ranks; +inf for a set whose k is 0. -0.0
        counts as +0.0.

    Raises:
        ValueError: `selection` is none of the three.
    """
    if selection not in SELECTIONS:
        raise ValueError(f"selection {selection} is not one of {', '.join(SELECTIONS)}: choose one of them")
    masks = [torch.ones_like(values, dtype=torch.bool) for values in sets] if masks is None else masks
    sizes = all_reduce_sums(torch.tensor([int(torch.count_nonzero(mask)) for mask in masks]), group).tolist()
    ks = [count(size) for count, size in zip(counts, sizes, strict=True)]
    by_radix = selection == "radix" or (selection == "auto" and sum(sizes) >= RADIX_FROM)
    found = (_by_radix if by_radix else _by_kthvalue)(sets, masks, ks, group)
    return [value.to(values.device) for value, values in zip(found, sets, strict=True)]


def _by_kthvalue(
    sets: Sequence[Tensor], masks: Sequence[Tensor], ks: Sequence[int], group: dist.ProcessGroup | None
) -> Tensor:
    """(sets,) by gathering all values: the definition, and the reference of `_by_radix`."""
    found = torch.full((len(sets),), torch.inf)
    for i, (values, mask, k) in enumerate(zip(sets, masks, ks, strict=True)):
        # On the CPU, because the kthvalue of a GPU raises under torch.use_deterministic_algorithms.
        pooled = gather_uneven(values[mask].float() + 0.0, group).cpu()
        if k:
            found[i] = torch.kthvalue(pooled, pooled.numel() - k + 1).values
    return found


def _by_radix(
    sets: Sequence[Tensor], masks: Sequence[Tensor], ks: Sequence[int], group: dist.ProcessGroup | None
) -> Tensor:
    """(sets,) by their leading bits, then the next ones, then the rest; each step is one all-reduce of counts.

    The first table says in which interval of patterns the k-th largest lies; only the values inside it, as a rule a
    few hundredths, go on.
    """
    kept = [functools.partial(_ordered_blocks, values, mask) for values, mask in zip(sets, masks, strict=True)]
    ranks, patterns, shift = list(ks), [0] * len(sets), 32
    for bits in _DIGITS:
        shift, bins = shift - bits, 2**bits
        digit_of = functools.partial(_digit, shift=shift, bins=bins)
        counts = ((torch.bincount(digit_of(block), minlength=bins) for block in blocks()) for blocks in kept)
        tables = torch.stack([functools.reduce(torch.add, of_set) for of_set in counts])
        for i, table in enumerate(all_reduce_sums(tables, group).cpu()):
            if ks[i]:
                digit, ranks[i] = _bin_of_kth_largest(table, ranks[i])
                inside = torch.cat([block[digit_of(block) == digit] for block in kept[i]()])
                kept[i] = functools.partial(inside.split, _BLOCK)
                patterns[i] |= digit << shift
    found = _ordered_back(torch.tensor(patterns))
    return torch.where(torch.tensor(ks) > 0, found, torch.inf)


def _ordered_blocks(values: Tensor, mask: Tensor) -> Iterator[Tensor]:
    """Float32 numbers as int32 whose bits, read as an unsigned integer, have the order of the numbers, by blocks.

    The patterns of positive numbers are ordered already and get the top bit; those of negative ones are reversed.
    What the mask leaves out becomes the lowest, so that the k-th largest of the others stays.
    """
    for block, own in zip(values.split(_BLOCK), mask.split(_BLOCK), strict=True):
        patterns = (block.float() + 0.0).view(torch.int32)  # + 0.0 makes -0.0 into +0.0
        keys = patterns ^ (patterns >> 31 | -(2**31))
        yield keys.bitwise_and_(own.int().neg_())  # all bits or none; several times as fast as masked_fill_


def _digit(keys: Tensor, shift: int, bins: int) -> Tensor:
    return (keys >> shift).bitwise_and_(bins - 1)


def _ordered_back(keys: Tensor) -> Tensor:
    """int64 keys from 0 to 2**32 - 1 -> the float32 numbers."""
    patterns = torch.where(keys >= 2**31, keys - 2**31, -1 - keys)
    return patterns.to(torch.int32).view(torch.float32)


def _bin_of_kth_largest(table: Tensor, k: int) -> tuple[int, int]:
    """The bin that holds the k-th largest value and that value's rank in the bin; `table` counts values per bin."""
    from_top = table.flip(0).cumsum(0)
    steps_down = int(torch.searchsorted(from_top, k))
    above = int(from_top[steps_down - 1]) if steps_down else 0
    return table.numel() - 1 - steps_down, k - above
