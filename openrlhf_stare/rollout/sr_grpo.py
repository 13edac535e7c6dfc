"""SR-GRPO, soft-reward GRPO: one advantage for all responses of a prompt, a soft maximum of their rewards.

It has no paper that we know of; formula and defaults are those of the code at github.com/KAIST-AILab/SR-GRPO.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_stare.algorithms.groups import group_statistics
from openrlhf_stare.options import Options, option

EPSILON = 1e-5  # beside the std, which is 0 in a group of equal rewards; that code's


@dataclass(frozen=True)
class SrGrpoConfig(Options):
    """The option of SR-GRPO (`--advantage_estimator sr_grpo`), checked when made.

    Raises:
        ValueError: it is outside its range.
    """

    tau: float = option(
        0.5, "temperature of a group's soft reward: near 0 its best reward, large its mean reward", within="(0, inf)"
    )


@torch.no_grad()
def soft_advantage(rewards: Tensor, *, tau: float = SrGrpoConfig.tau, valid: Tensor | None = None) -> Tensor:
    """A_soft = Σ_i w_i r_i of each group, for every response of it: w = softmax(z/τ), z = (r − mean r)/(std r + 1e-5).

    The std is the sample's. All is computed in float64.

    There is no baseline: the advantage has the sign of the rewards.

    Args:
        rewards: (P, K), a row per prompt.
        tau: near 0 gives the best reward of the group, a large one the mean.
        valid: (P, K) bool; False leaves a response out of its group. None for all.

    Returns:
        (P, K) in the rewards' type, at least float32. NaN in a group without a valid response.

    Raises:
        ValueError: tau is not above 0, or a shape is not (P, K).
    """
    SrGrpoConfig(tau=tau)
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid
    if rewards.dim() != 2 or valid.shape != rewards.shape:
        raise ValueError(
            f"rewards and valid have the shapes {tuple(rewards.shape)} and {tuple(valid.shape)}: "
            "give both as (P, K), a row per prompt"
        )
    r = rewards.double().masked_fill(~valid, 0)
    _, deviation, std = group_statistics(r, valid)
    z = deviation / (std + EPSILON)
    w = (z / tau).masked_fill(~valid, -torch.inf).softmax(dim=-1)
    soft = (w * r).sum(dim=-1, keepdim=True).expand_as(r)
    return soft.to(torch.promote_types(rewards.dtype, torch.float32))
