"""The surprisal thresholds τ⁺ and τ⁻ of STARE (arXiv 2606.19236): the k-th largest surprisal of T⁺ and of T⁻.

Two ways give the same bits. `kthvalue` gathers every rank's values, which reads like the definition. `radix` counts
values by the leading bits of their float32 patterns and moves counts only, so its traffic does not grow with N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.config import SELECTIONS
from openrlhf_stare.algorithms.distributed import all_reduce_sums, gather_uneven

RADIX_FROM = 2**20  # candidates over the group from which `auto` takes radix
_FIRST_BITS, _LATER_BITS = 12, (10, 9)  # together the 31 bits of a float32 without its sign
# Values handled at a time: few enough that what lies between two steps stays in the processor's cache, and enough
# that torch's threads, which wait for each other after every step, do so rarely.
_BLOCK = 2**17


def surprisal(log_probs: Tensor) -> Tensor:
    """Surprisal -log π in nats: float32, the shape of `log_probs`, at least +0.0. NaN stays NaN.

    A log-prob that rounding put above 0 (+1e-7) has surprisal 0. `abs` makes -0.0 into +0.0, which clamp leaves alone.
    """
    return (-log_probs.float()).clamp(min=0).abs()


def critical_count(n: int, top_p_ratio: float) -> int:
    """k, the number of tokens that make the threshold of a set of `n` candidates: a ceiling of P·n with a tolerance.

    The tolerance undoes rounding: 0.07 · 100 is 7.000000000000001 in double precision, and k must be 7.

    Raises:
        ValueError: `n` is negative or `top_p_ratio` is outside [0, 1].
    """
    if n < 0:
        raise ValueError(f"n {n} is below 0: give the number of candidates")
    if not 0 <= top_p_ratio <= 1:
        raise ValueError(f"top_p_ratio {top_p_ratio} is outside [0, 1]: give a share such as 0.1")
    if n == 0 or top_p_ratio == 0:
        return 0
    return min(n, max(1, math.floor(top_p_ratio * n + 0.999999)))


@torch.no_grad()
def surprisal_thresholds(
    surprisal: Tensor,
    advantages: Tensor,
    *,
    top_p_ratio: float,
    group: dist.ProcessGroup | None = None,
    selection: str = "auto",
) -> tuple[Tensor, Tensor]:
    """τ⁺ and τ⁻, the k-th largest surprisal among the tokens with A > 0 and among those with A < 0, over all ranks.

    Every rank of `group` must call it, also with no candidate at all: the collectives are the same on all ranks.

    Args:
        surprisal: (N,) nats, this rank's candidates, at least 0; taken as float32. +inf ranks highest.
        advantages: (N,) their advantages. Tokens whose advantage is 0 belong to neither set.
        top_p_ratio: P, from which `critical_count` gives each set's k.
        group: the data-parallel group whose tokens are pooled; None for this process alone.
        selection: kthvalue, radix, or auto: radix from 2**20 candidates over the group, which costs at most
            88 KiB of counts per rank whatever the number of candidates; both give the same bits.

    Returns:
        Two 0-d float32 tensors on the device of `surprisal`, the same on all ranks; +inf for a set whose k is 0.

    Raises:
        ValueError: the shapes or an option are wrong; or, on all ranks at once, a surprisal is NaN or below 0 or an
            advantage is NaN on any rank.
    """
    if selection not in SELECTIONS:
        raise ValueError(f"selection {selection} is not one of {', '.join(SELECTIONS)}: choose one of them")
    if surprisal.dim() != 1 or surprisal.shape != advantages.shape:
        shapes = f"{tuple(surprisal.shape)} and {tuple(advantages.shape)}"
        raise ValueError(f"surprisal and advantages have the shapes {shapes}: give two tensors of one shape (N,)")
    values = surprisal.float()
    # A rank that raised on its own would leave the others waiting: what is wrong is summed with the counts.
    own_counts = torch.tensor([int(torch.count_nonzero(advantages)), _count_invalid(values, advantages)])
    n_candidates, n_invalid = all_reduce_sums(own_counts, group).tolist()
    if n_invalid:
        raise ValueError(
            f"{n_invalid} of the group's tokens have a surprisal that is NaN or below 0, or an advantage that is NaN: "
            "give candidates only, and surprisal(log_probs) of them"
        )
    if selection == "radix" or (selection == "auto" and n_candidates >= RADIX_FROM):
        taus = _by_radix(values, advantages, top_p_ratio, group)
    else:
        taus = _by_kthvalue(values, advantages, top_p_ratio, group)
    return taus[0].to(surprisal.device), taus[1].to(surprisal.device)


def _count_invalid(values: Tensor, advantages: Tensor) -> int:
    # min is NaN where any value is, and is one quick pass; tokens are counted only where something is wrong.
    if values.numel() == 0 or (values.min() >= 0 and advantages.min() == advantages.min()):
        return 0
    return int(torch.count_nonzero(~(values >= 0) | advantages.isnan()))


def _by_kthvalue(values: Tensor, advantages: Tensor, top_p_ratio: float, group: dist.ProcessGroup | None) -> Tensor:
    """(2,) τ⁺ and τ⁻ from the gathered values: the definition, and the reference of `_by_radix`."""
    taus = torch.full((2,), math.inf)
    for i, own_set in enumerate((advantages > 0, advantages < 0)):
        # On the CPU, because the kthvalue of a GPU raises under torch.use_deterministic_algorithms.
        pooled = gather_uneven(values[own_set].abs(), group).cpu()
        if k := critical_count(pooled.numel(), top_p_ratio):
            taus[i] = torch.kthvalue(pooled, pooled.numel() - k + 1).values
    return taus


def _by_radix(values: Tensor, advantages: Tensor, top_p_ratio: float, group: dist.ProcessGroup | None) -> Tensor:
    """(2,) τ⁺ and τ⁻ by their leading bits, then the next ones, then the rest; each step is one all-reduce of counts.

    Float32 numbers from +0.0 to +inf order like their bit patterns read as integers. The first table says in which
    interval of patterns the k-th largest lies; only the values inside it, as a rule a few hundredths, go on.
    """
    any_neutral = bool(torch.count_nonzero(advantages) < advantages.numel())
    shift, bins = 31 - _FIRST_BITS, 2**_FIRST_BITS
    tables = torch.zeros(2 * bins, dtype=torch.int64, device=values.device)
    for keys in _signed_keys(values, advantages, any_neutral):
        tables += torch.bincount(keys.bitwise_right_shift_(shift).add_(bins), minlength=2 * bins)
    tables = all_reduce_sums(tables, group).cpu().view(2, bins).flip(0)  # T⁺, then T⁻
    tables[1, -1] = 0  # the tokens of neither set
    ks = [critical_count(int(table.sum()), top_p_ratio) for table in tables]
    found, ranks = zip(*map(_bin_of_kth_largest, tables, ks), strict=True)
    patterns, ranks = [b << shift for b in found], list(ranks)

    inside = [torch.empty(0, dtype=torch.int32, device=values.device)]
    for keys in _signed_keys(values, advantages, any_neutral):
        leading = keys >> shift
        # The product is 0 where the leading bits are those of one of the two intervals.
        in_interval = (leading - found[0]).mul_(leading.sub_(found[1] - bins)).eq_(0)
        inside.append(keys[in_interval.nonzero().squeeze(1)])
    inside = torch.cat(inside)
    kept = [inside[inside >= 0], inside[inside < 0] & 0x7FFFFFFF]

    for bits in _LATER_BITS:
        shift, bins = shift - bits, 2**bits
        digits = [keys >> shift & (bins - 1) for keys in kept]
        tables = torch.stack([torch.bincount(digit, minlength=bins) for digit in digits])
        for i, table in enumerate(all_reduce_sums(tables, group).cpu()):
            if ks[i]:
                digit, ranks[i] = _bin_of_kth_largest(table, ranks[i])
                kept[i] = kept[i][digits[i] == digit]
                patterns[i] |= digit << shift
    taus = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    return torch.where(torch.tensor(ks) > 0, taus, math.inf)


def _signed_keys(values: Tensor, advantages: Tensor, any_neutral: bool) -> Iterator[Tensor]:
    """The values' float32 patterns as int32, a block at a time, in one buffer; the sign bit is the advantage's.

    So T⁺ has the keys from 0 up, and T⁻ the same keys less 2**31. A surprisal of -0.0 counts as +0.0. Tokens of
    neither set (`any_neutral`: there are some) have the key -1, a NaN's pattern, which is in the last bin of T⁻, where
    no surprisal is.
    """
    buffer = torch.empty(min(_BLOCK, values.numel()), dtype=torch.float32, device=values.device)
    for block, signs in zip(values.split(_BLOCK), advantages.split(_BLOCK), strict=True):
        keys = torch.copysign(block, signs, out=buffer[: block.numel()]).view(torch.int32)
        if any_neutral:
            keys.bitwise_or_((signs == 0).int().neg_())  # twice as fast as masked_fill_
        yield keys


def _bin_of_kth_largest(table: Tensor, k: int) -> tuple[int, int]:
    """The bin that holds the k-th largest value and that value's rank within the bin; `table` counts values per bin.

    For k = 0, an empty set or none wanted: a bin whose values nobody will use.
    """
    if k == 0:
        return 0, 0
    from_top = table.flip(0).cumsum(0)
    steps_down = int(torch.searchsorted(from_top, k))
    above = int(from_top[steps_down - 1]) if steps_down else 0
    return table.numel() - 1 - steps_down, k - above
