"""Groups of equal rewards under a method: an advantage of exactly 0.

The estimators that subtract a mean of the group leave its rounding there, which a method would take for advantages
(STARE's T⁺ and T⁻ would fill with noise), and `group_norm` divides it by a std that is as small.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_stare.algorithms.groups import all_equal
from openrlhf_stare.methods import base

GROUP_BASELINES = ("group_norm", "rloo", "reinforce_baseline", "dr_grpo")  # those that subtract a mean of the group


def shape(rewards: Tensor, valid: Tensor, args: SimpleNamespace) -> tuple[Tensor | None, dict[str, float]]:
    """0 (P, K) for the groups of equal rewards, before `reinforce_baseline` whitens over the rollout; their number."""
    if args.policy_loss in base.WITHOUT_METHOD:
        return None, {}
    equal = all_equal(rewards, valid) & (valid.sum(dim=-1, keepdim=True) > 1)
    figures = {"entropy/zero_variance_groups": float(equal.sum())}
    if args.algo.advantage.estimator not in GROUP_BASELINES:
        return None, figures
    return torch.full_like(rewards, torch.nan).masked_fill(equal, 0), figures
