"""The token weights ω of STARE (arXiv 2606.19236): W on L⁺, under C2 also M on L⁻, 1 everywhere else."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.algorithms.thresholds import surprisal, surprisal_thresholds


class Candidates(NamedTuple):
    """The tokens that are ranked, as bool masks of one shape (B, A), and the number of tokens that cannot be."""

    positive: Tensor  # T+: mask and A > 0
    negative: Tensor  # T-: mask and A < 0
    non_finite: Tensor  # 0-d int64: tokens under the mask whose log-prob or advantage is not finite


@torch.no_grad()
def candidates(log_probs: Tensor, advantages: Tensor, action_mask: Tensor) -> Candidates:
    """T⁺ and T⁻ of a batch, and how many tokens under the mask are left out because a number is not finite.

    Args:
        log_probs: (B, A) nats, any floating type.
        advantages: (B, A).
        action_mask: (B, A) bool, integer or float; 0 for prompt, tool output and padding.

    All three may be (N,) as well, the tokens of a whole buffer one after the other.

    Raises:
        ValueError: the three shapes differ.
    """
    if not log_probs.shape == advantages.shape == action_mask.shape:
        raise ValueError(
            f"log_probs, advantages and action_mask have the shapes {tuple(log_probs.shape)}, "
            f"{tuple(advantages.shape)} and {tuple(action_mask.shape)}: give three tensors of one shape"
        )
    mask = action_mask != 0
    finite = log_probs.float().isfinite() & advantages.isfinite()
    ranked = mask & finite
    return Candidates(ranked & (advantages > 0), ranked & (advantages < 0), torch.count_nonzero(mask & ~finite))


@torch.no_grad()
def entropy_critical(
    log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    tau_positive: Tensor | float,
    tau_negative: Tensor | float,
    *,
    top_p_ratio: float,
) -> tuple[Tensor, Tensor]:
    """L⁺ and L⁻: the candidates whose surprisal reaches their set's threshold. Ties are all in.

    A token of surprisal 0 (probability 1) is never in, whatever the threshold is, unless P = 1.

    Args:
        log_probs, advantages, action_mask: (B, A) or (N,), as for `candidates`; the log-probs that were ranked.
        tau_positive, tau_negative: nats, from `surprisal_thresholds`.
        top_p_ratio: the P that gave the thresholds.

    Returns:
        Two bool tensors of the shape of `log_probs`.

    Raises:
        ValueError: the three shapes differ.
    """
    positive, negative, _ = candidates(log_probs, advantages, action_mask)
    s = surprisal(log_probs)
    if top_p_ratio < 1:
        positive, negative = positive & (s > 0), negative & (s > 0)
    return positive & (s >= tau_positive), negative & (s >= tau_negative)


@torch.no_grad()
def weights_from_thresholds(
    log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    tau_positive: Tensor | float,
    tau_negative: Tensor | float,
    *,
    config: StareConfig,
    gate_on: bool = True,
    reweight_w: float | None = None,
    reweight_m: float | None = None,
) -> Tensor:
    """The weights ω given the thresholds: no collective, so a loss can call it for each micro-batch.

    Args:
        log_probs, advantages, action_mask: (B, A) or (N,), as for `candidates`; the log-probs that were ranked.
        tau_positive, tau_negative: nats, from `surprisal_thresholds`.
        config: gives the variant, P, and W and M where they are not given.
        gate_on: the controller's gate; off means ones.
        reweight_w, reweight_m: the controller's W and M; None for the config's.

    Returns:
        float32 of the shape of `log_probs`, on its device.

    Raises:
        ValueError: the three shapes differ.
    """
    reweight_w = config.reweight_w if reweight_w is None else reweight_w
    reweight_m = config.reweight_m if reweight_m is None else reweight_m
    l_positive, l_negative = entropy_critical(
        log_probs, advantages, action_mask, tau_positive, tau_negative, top_p_ratio=config.top_p_ratio
    )
    weights = torch.ones(log_probs.shape, dtype=torch.float32, device=log_probs.device)
    if gate_on:
        weights[l_positive] = reweight_w
        if config.variant == "C2":
            weights[l_negative] = reweight_m
    return weights


@torch.no_grad()
def token_weights(
    log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    *,
    config: StareConfig,
    gate_on: bool = True,
    reweight_w: float | None = None,
    reweight_m: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """The weights ω of this rank's tokens, ranked against the pooled tokens of all ranks of `group`.

    With the gate on every rank of `group` must call it, also with an empty (0, A) share. With the gate off, on all
    ranks or on none, nothing is communicated.

    Args:
        log_probs: (B, A) nats, any floating type.
        advantages: (B, A).
        action_mask: (B, A) bool, integer or float; 0 for prompt, tool output and padding. All three may be (N,).
        config: gives the variant, P, the selection, and W and M where they are not given.
        gate_on: the controller's gate; off means ones.
        reweight_w, reweight_m: the controller's W and M; None for the config's.
        group: the data-parallel group; None for this process alone.

    Returns:
        float32 of the shape of `log_probs`, on its device.

    Raises:
        ValueError: the three shapes differ.
    """
    positive, negative, _ = candidates(log_probs, advantages, action_mask)
    taus = (0.0, 0.0)  # not looked at with the gate off
    if gate_on:
        ranked = positive | negative
        taus = surprisal_thresholds(
            surprisal(log_probs)[ranked],
            advantages[ranked],
            top_p_ratio=config.top_p_ratio,
            group=group,
            selection=config.selection,
        )
    return weights_from_thresholds(
        log_probs,
        advantages,
        action_mask,
        *taus,
        config=config,
        gate_on=gate_on,
        reweight_w=reweight_w,
        reweight_m=reweight_m,
    )
