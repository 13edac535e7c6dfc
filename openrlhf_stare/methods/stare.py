"""STARE (arXiv 2606.19236): more weight on the few unlikely tokens that raise entropy, less on those that lower it.

    s = -log pi_old                                    surprisal, nats
    T+ = {A > 0}, T- = {A < 0}                         candidates: action tokens of the rollout, over all ranks
    tau = the k-th largest s of the set, k = ceil(P n)
    L+ = {T+ and s >= tau+}, L- = {T- and s >= tau-}   entropy-critical
    weight = W on L+, under C2 also M on L-, 1 elsewhere

Published constants (7B): P 0.1, W 1.1, M 0.9. The published code ranks the tokens of one micro-batch of one rank by
their current log-probs. Here the pool is the whole rollout and the log-probs are pi_old's, so neither the number of
ranks nor the micro-batch matters, and the sets stay fixed for the whole `fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.selection import SELECTIONS, kth_largest
from openrlhf_stare.algorithms.surprisal import surprisal
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option

VARIANTS = ("O1", "C2")


@dataclass(frozen=True)
class StareOptions(Options):
    """The options of STARE, checked when made. The schedule `pi` does not use `reweight_w` and `reweight_m`, and has
    defaults of its own: see `Stare.of_schedule`.

    Raises:
        ValueError: an option is outside its range. The message starts with the option's name and its value and ends
            with the remedy.
    """

    variant: str = option("O1", "O1 raises the weight of L+ only; C2 also lowers the weight of L-", VARIANTS)
    top_p_ratio: float = option(
        0.1, "P: share of T+ (and of T-) that is entropy-critical, between 0 and 1", within="[0, 1]"
    )
    reweight_w: float = option(1.1, "W: weight of L+, at least 1; under adaptive its start", within="[1, inf)")
    reweight_m: float = option(0.9, "M: weight of L- under C2, above 0, at most 1", within="(0, 1]")
    w_max: float = option(1.5, "ceiling of W under adaptive and pi", within="[1, inf)")
    m_min: float = option(0.5, "floor of M under adaptive and pi", within="(0, 1]")
    selection: str = option(
        "auto", "how thresholds are found: gathering (kthvalue), counting (radix), by batch size (auto)", SELECTIONS
    )


class Stare(Method):
    """The strengths are W and, under C2, M. Ratios and the mean in the figures are over all action tokens."""

    Options = StareOptions
    options: StareOptions
    control = {"schedule": "gate"}
    # What this repository's studies hold their targets with; launch/any_task_study.sh tries it where nobody tuned it.
    of_schedule = {"pi": {"variant": "C2", "top_p_ratio": 0.05, "w_max": 60.0, "m_min": 0.3}}
    sets = ("L+", "L-")
    threshold_figures = ("stare/tau_positive", "stare/tau_negative")

    @property
    def strengths(self) -> tuple[Strength, ...]:
        w_max, m_min = self.options.w_max, self.options.m_min
        w = Strength("reweight_w", 1.0, self.options.reweight_w, w_max, "log", counter=1 / w_max)
        m = Strength("reweight_m", 1.0, self.options.reweight_m, m_min, "log", counter=1 / m_min)
        return (w, m) if self.options.variant == "C2" else (w,)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        found = candidates(tokens.log_probs, tokens.advantages, tokens.action_mask)
        self.thresholds = pool_thresholds(found, self.options, group)
        self.reweight_w, self.reweight_m = strengths["reweight_w"], strengths.get("reweight_m", 1.0)
        weights = self._weights(found)
        is_reweighted, of_tokens = weights != 1, weights[tokens.action_mask].double()
        own = [of_tokens.numel(), found.positive, found.negative]
        own += [found.positive & is_reweighted, found.negative & is_reweighted, of_tokens]
        n, *sums = all_reduce_sums([float(torch.as_tensor(values).sum()) for values in own], group).tolist()
        means = [total / max(n, 1.0) for total in sums]
        return {
            "stare/tau_positive": self.thresholds[0].item(),
            "stare/tau_negative": self.thresholds[1].item(),
            "stare/positive_candidate_ratio": means[0],
            "stare/negative_candidate_ratio": means[1],
            "stare/positive_reweight_ratio": means[2],
            "stare/negative_reweight_ratio": means[3],
            "stare/mean_weight": means[4],
        }

    def weights(self, tokens: Tokens) -> Tensor | None:
        if self.reweight_w == self.reweight_m == 1:
            return None
        return self._weights(candidates(tokens.log_probs, tokens.advantages, tokens.action_mask))

    def _weights(self, found: Candidates) -> Tensor:
        return weights_from_thresholds(
            found, *self.thresholds, config=self.options, reweight_w=self.reweight_w, reweight_m=self.reweight_m
        )


class Candidates(NamedTuple):
    """The tokens that are ranked, of one shape (B, A) or (N,)."""

    positive: Tensor  # bool, T+: mask and A > 0
    negative: Tensor  # bool, T-: mask and A < 0
    surprisal: Tensor  # float32, nats


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
def candidates(log_probs: Tensor, advantages: Tensor, action_mask: Tensor) -> Candidates:
    """T⁺ and T⁻ of a batch. A token whose log-prob or advantage is not finite is in neither.

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
    ranked = (action_mask != 0) & log_probs.float().isfinite() & advantages.isfinite()
    return Candidates(ranked & (advantages > 0), ranked & (advantages < 0), surprisal(log_probs))


def pool_thresholds(found: Candidates, config: StareOptions, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """τ⁺ and τ⁻, 0-d float32 in nats, of the candidates of all ranks of `group`, all of which must call it."""

    def k(n: int) -> int:
        return critical_count(n, config.top_p_ratio)

    both, masks = [found.surprisal.flatten()] * 2, [found.positive.flatten(), found.negative.flatten()]
    positive, negative = kth_largest(both, [k, k], masks=masks, group=group, selection=config.selection)
    return positive, negative


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
        selection: kthvalue, radix, or auto; see `kth_largest`.

    Returns:
        Two 0-d float32 tensors on the device of `surprisal`, the same on all ranks; +inf for a set whose k is 0.

    Raises:
        ValueError: the shapes or an option are wrong; or, on all ranks at once, a surprisal is NaN or below 0 or an
            advantage is NaN on any rank.
    """
    config = StareOptions(top_p_ratio=top_p_ratio, selection=selection)
    if surprisal.dim() != 1 or surprisal.shape != advantages.shape:
        shapes = f"{tuple(surprisal.shape)} and {tuple(advantages.shape)}"
        raise ValueError(f"surprisal and advantages have the shapes {shapes}: give two tensors of one shape (N,)")
    values = surprisal.float()
    # A rank that raised on its own would leave the others waiting, so what is wrong is summed first.
    # min is NaN where any value is, and one quick pass; tokens are counted only where something is wrong.
    is_valid = not values.numel() or (values.min() >= 0 and advantages.min() == advantages.min())
    own_invalid = 0 if is_valid else int(torch.count_nonzero(~(values >= 0) | advantages.isnan()))
    if n_invalid := int(all_reduce_sums([own_invalid], group)):
        raise ValueError(
            f"{n_invalid} of the group's tokens have a surprisal that is NaN or below 0, or an advantage that is NaN: "
            "give candidates only, and surprisal(log_probs) of them"
        )
    return pool_thresholds(Candidates(advantages > 0, advantages < 0, values), config, group)


@torch.no_grad()
def weights_from_thresholds(
    found: Candidates,
    tau_positive: Tensor | float,
    tau_negative: Tensor | float,
    *,
    config: StareOptions,
    reweight_w: float,
    reweight_m: float,
) -> Tensor:
    """The weights ω given the thresholds, without a collective. Ties at a threshold are all in.

    A token of surprisal 0 (probability 1) is never entropy-critical, whatever the threshold is, unless P = 1.

    Args:
        found: of the log-probs that were ranked.
        tau_positive, tau_negative: nats, from `pool_thresholds`.
        config: gives the variant and P.
        reweight_w, reweight_m: W and M.

    Returns:
        float32 of the shape of the candidates, on their device.
    """
    uncertain = (found.surprisal > 0) | (config.top_p_ratio == 1)
    weights = torch.ones_like(found.surprisal)
    weights = weights.masked_fill(found.positive & uncertain & (found.surprisal >= tau_positive), reweight_w)
    if config.variant == "C2":
        weights = weights.masked_fill(found.negative & uncertain & (found.surprisal >= tau_negative), reweight_m)
    return weights


@torch.no_grad()
def token_weights(
    log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    *,
    config: StareOptions,
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
    found = candidates(log_probs, advantages, action_mask)
    if not gate_on:
        return torch.ones_like(found.surprisal)
    return weights_from_thresholds(
        found,
        *pool_thresholds(found, config, group),
        config=config,
        reweight_w=config.reweight_w if reweight_w is None else reweight_w,
        reweight_m=config.reweight_m if reweight_m is None else reweight_m,
    )
