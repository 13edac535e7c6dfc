"""Target Policy Optimization, TPO (arXiv 2604.06159): a target over the K responses of a prompt, and its loss.

P prompts of K responses each. All sums are float64. A response that is not valid (it has no action token) is left out
of everything: of its group's statistics and softmaxes, with probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_stare.algorithms.groups import group_range, group_statistics
from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class TpoConfig(Options):
    """The options of TPO, checked when made.

    Raises:
        ValueError: an option is outside its range.
    """

    eta: float = option(
        1.0,
        "temperature of the target: small puts all weight on the best response, large keeps the policy",
        within="(0, inf)",
    )
    length_normalize: bool = option(True, "divide a response's log-prob by its tokens; off for short responses only")


def sequence_log_probs(log_probs: Tensor, action_mask: Tensor, *, length_normalize: bool) -> Tensor:
    """ℓ, the log-prob of each response in nats: its tokens' sum, or their mean with `length_normalize`.

    Args:
        log_probs: (..., A) of the tokens.
        action_mask: (..., A), 1 for the response's own tokens.

    Returns:
        (...) float64, 0 for a response without a token. Differentiable.
    """
    mask = action_mask.bool()
    sums = log_probs.double().masked_fill(~mask, 0).sum(dim=-1)
    return sums / mask.sum(dim=-1).clamp(min=1) if length_normalize else sums


def group_log_softmax(sequence_log_probs: Tensor, valid: Tensor) -> Tensor:
    """log p of the softmax over each group's valid responses. (P, K), (P, K) bool -> (P, K); 0 where not valid."""
    return sequence_log_probs.double().masked_fill(~valid, -torch.inf).log_softmax(dim=-1).masked_fill(~valid, 0)


def target_distribution(
    old_sequence_log_probs: Tensor, rewards: Tensor, *, valid: Tensor | None = None, eta: float = TpoConfig.eta
) -> Tensor:
    """The target q ∝ p_old · exp(u/η), u being the rewards less their group's mean over its population std.

    Args:
        old_sequence_log_probs: (P, K) ℓ of π_old.
        rewards: (P, K) after length penalties. Only their order and relative distances within the group matter; where
            all are equal, u is 0 and q is p_old.
        valid: (P, K) bool; None for all.
        eta: the temperature η, above 0. Small: all on the best response. Large: p_old.

    Returns:
        (P, K) float64. Each group with a valid response adds up to 1.

    Raises:
        ValueError: `eta` is not above 0.
    """
    if not eta > 0:
        raise ValueError(f"eta {eta} is not above 0: give a temperature such as 1")
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    rewards = rewards.double()
    # Within [0, 1] no square of a deviation can overflow or vanish.
    lowest, highest = group_range(rewards, valid)
    differ = highest > lowest
    shares = torch.where(valid & differ, (rewards - lowest) / (highest - lowest), 0)
    _, deviations, std = group_statistics(shares, valid, correction=0)
    u = torch.where(differ, deviations / std, 0)
    tilted = group_log_softmax(old_sequence_log_probs, valid) + u / eta
    return group_log_softmax(tilted, valid).exp() * valid


def target_policy_loss(sequence_log_probs: Tensor, target: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """-Σ q log p, p being the softmax over each group, averaged over the prompts that have a valid response.

    The gradient with respect to each ℓ is (p - q) / prompts: zero exactly where the policy matches the target.

    Args:
        sequence_log_probs: (P, K) ℓ of the policy in training.
        target: (P, K) q, 0 where not valid.
        valid: (P, K) bool; None for all.

    Returns:
        0-d float64, differentiable; 0 if no response is valid.
    """
    if valid is None:
        valid = torch.ones_like(target, dtype=torch.bool)
    prompts = valid.any(dim=-1).sum().clamp(min=1)
    return -(target * group_log_softmax(sequence_log_probs, valid)).sum() / prompts
