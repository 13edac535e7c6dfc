"""Statistics of groups of which some members do not count: (P, K) values, a row per prompt, and bool `valid`."""

from __future__ import annotations

import torch
from torch import Tensor

# OpenRLHF's estimators that subtract a mean of the group.
GROUP_BASELINES = ("group_norm", "rloo", "reinforce_baseline", "dr_grpo")


def group_statistics(values: Tensor, valid: Tensor, correction: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """What each group's valid values are about.

    Args:
        values: (P, K) floating; those that are not valid may be anything.
        valid: (P, K) bool.
        correction: 1 for the sample's std, 0 for the population's.

    Returns:
        Mean (P, 1), deviations from it (P, K), 0 where not valid, and std (P, 1), in the type of `values`. In a group
        with too few valid values for a std it is 0; without any, the mean too.
    """
    count = valid.sum(dim=-1, keepdim=True)
    mean = values.masked_fill(~valid, 0).sum(dim=-1, keepdim=True) / count.clamp(min=1)
    deviations = (values - mean).masked_fill(~valid, 0)
    std = (deviations.square().sum(dim=-1, keepdim=True) / (count - correction).clamp(min=1)).sqrt()
    return mean, deviations, std


def group_range(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest and the highest valid value of each group, both (P, 1); +inf and -inf where there is none."""
    lowest = values.masked_fill(~valid, torch.inf).amin(dim=-1, keepdim=True)
    return lowest, values.masked_fill(~valid, -torch.inf).amax(dim=-1, keepdim=True)


def all_equal(values: Tensor, valid: Tensor) -> Tensor:
    """(P, 1) bool: whether all valid values of a group are the same. True for a group without any."""
    lowest, highest = group_range(values, valid)
    return highest <= lowest
