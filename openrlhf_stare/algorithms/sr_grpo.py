"""SR-GRPO, soft-reward GRPO: one advantage for all responses of a prompt, a soft maximum of their rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_stare.algorithms.config import SrGrpoConfig

EPSILON = 1e-5  # beside the std, which is 0 in a group of equal rewards; the source code's


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
    count = valid.sum(dim=-1, keepdim=True)
    deviation = (r - r.sum(dim=-1, keepdim=True) / count).masked_fill(~valid, 0)
    std = (deviation.square().sum(dim=-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    z = deviation / (std + EPSILON)
    w = (z / tau).masked_fill(~valid, -torch.inf).softmax(dim=-1)
    soft = (w * r).sum(dim=-1, keepdim=True).expand_as(r)
    return soft.to(torch.promote_types(rewards.dtype, torch.float32))
