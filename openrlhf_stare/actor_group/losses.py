"""The losses that take the place of OpenRLHF's `PolicyLoss` inside the policy actor."""

from __future__ import annotations

import math
import time

import torch
from openrlhf.models import PolicyLoss

from openrlhf_stare.algorithms.config import StareConfig, TpoConfig
from openrlhf_stare.algorithms.controller import StareController
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.target_policy import sequence_log_probs, target_policy_loss
from openrlhf_stare.algorithms.thresholds import surprisal, surprisal_thresholds
from openrlhf_stare.algorithms.weights import candidates, weights_from_thresholds

COUNTS = ("tokens", "positive", "negative", "critical_positive", "critical_negative", "weight")


class StarePolicyLoss(PolicyLoss):
    """OpenRLHF's policy loss on the advantages ω·A (arXiv 2606.19236; same forward arguments, same returned tuple).

    Every surrogate of `PolicyLoss` is positively homogeneous in the advantage, so this equals weighting the clipped,
    dual-clipped and importance-corrected loss of each token. With the gate off the call is OpenRLHF's, bit for bit.

    With `scope=rollout` the policy actor fixes the thresholds of the rollout (`set_thresholds`), and the old log-probs
    decide membership: the same bits that were ranked. Until then, and always with `scope=micro_batch`, the batch of
    the call over all ranks of `group` is the pool; under `micro_batch` the current policy's log-probs are ranked.

    Attributes:
        controller: gate, W and M; whoever trains updates it once a rollout.
        group: the data-parallel group; None for this process alone.
    """

    def __init__(self, stare: StareConfig, **options) -> None:
        super().__init__(**options)
        self.stare = stare
        self.controller = StareController(stare)
        self.group: torch.distributed.ProcessGroup | None = None
        self.thresholds: tuple[torch.Tensor, torch.Tensor] | None = None
        self._seconds = 0.0
        self._counts: list[torch.Tensor] = []
        self._pools: list[tuple[torch.Tensor, torch.Tensor]] = []

    def set_thresholds(self, tau_positive: torch.Tensor | float, tau_negative: torch.Tensor | float) -> None:
        """The surprisals (nats) from which a token of T⁺ and of T⁻ is entropy-critical, for all calls to come."""
        self.thresholds = (torch.as_tensor(tau_positive), torch.as_tensor(tau_negative))

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        *others,
        **named,
    ) -> tuple:
        """Log-probs, advantages and mask (B, A) -> OpenRLHF's five values; the other arguments are passed through."""
        start = time.perf_counter()
        mask = torch.ones_like(advantages) if action_mask is None else action_mask
        with torch.no_grad():
            if self.stare.scope == "micro_batch":
                weighted = self._weigh_pool(log_probs.detach(), advantages, mask)
            elif self.thresholds is None:
                weighted = self._weigh_pool(old_log_probs, advantages, mask)
            else:
                weighted = self._weigh(old_log_probs, advantages, mask, self.thresholds)
        self._seconds += time.perf_counter() - start
        loss, *metrics = super().forward(log_probs, old_log_probs, weighted, action_mask, *others, **named)
        if not mask.any():
            # OpenRLHF's means over no token are NaN: those of the metrics would spoil the figures of the whole step,
            # and that of the loss, where the step's other micro-batches are empty too, the parameters.
            loss = log_probs.sum() * 0
            metrics = [None if metric is None else torch.zeros_like(metric) for metric in metrics]
        return loss, *metrics

    # ── one rollout ──

    def open_rollout(self, log_probs: torch.Tensor, advantages: torch.Tensor) -> None:
        """Start a rollout of which this rank holds the action tokens (N,); called on all ranks of `group`.

        With `scope=rollout` this fixes the thresholds.
        """
        self._counts.clear()
        self._pools.clear()
        if self.stare.scope == "rollout":
            every_token = torch.ones_like(log_probs)
            self.thresholds = self._pool_thresholds(log_probs, advantages, every_token)
            self._count(log_probs, advantages, every_token, self.thresholds)

    def figures(self) -> dict[str, float]:
        """What happened to the rollout's tokens, the same on all ranks of `group`; called on all of them.

        Ratios and the mean are over action tokens: with `scope=rollout` all of the rollout, with `scope=micro_batch`
        those trained on (of several epochs each counts), whose thresholds are averaged over the micro-batches that
        have candidates. +inf where no candidate was.
        """
        own = torch.stack(self._counts).sum(dim=0) if self._counts else torch.zeros(len(COUNTS), dtype=torch.float64)
        sums = dict(zip(COUNTS, all_reduce_sums(own, self.group).tolist(), strict=True))
        tokens = max(sums["tokens"], 1.0)
        return {
            "stare/tau_positive": _mean_of_finite([tau for tau, _ in self._pools]),
            "stare/tau_negative": _mean_of_finite([tau for _, tau in self._pools]),
            "stare/positive_candidate_ratio": sums["positive"] / tokens,
            "stare/negative_candidate_ratio": sums["negative"] / tokens,
            "stare/positive_reweight_ratio": sums["critical_positive"] / tokens,
            "stare/negative_reweight_ratio": sums["critical_negative"] / tokens,
            "stare/mean_weight": sums["weight"] / tokens,
        }

    def take_seconds(self) -> float:
        """The time spent on weights in `forward` since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    # ── weights ──

    def _weigh(self, ranked, advantages, mask, thresholds):
        """ω·A; A itself, the same bits, with the gate off."""
        if not self.controller.gate_on:
            return advantages
        return self._weights(ranked, advantages, mask, thresholds).to(advantages.dtype) * advantages

    def _weigh_pool(self, ranked, advantages, mask):
        """ω·A with this call's tokens over all ranks as the pool."""
        thresholds = self._pool_thresholds(ranked, advantages, mask)
        self._count(ranked, advantages, mask, thresholds)
        return self._weigh(ranked, advantages, mask, thresholds)

    def _weights(self, ranked, advantages, mask, thresholds):
        return weights_from_thresholds(
            ranked,
            advantages,
            mask,
            *thresholds,
            config=self.stare,
            gate_on=self.controller.gate_on,
            reweight_w=self.controller.reweight_w,
            reweight_m=self.controller.reweight_m,
        )

    def _pool_thresholds(self, ranked, advantages, mask):
        positive, negative, _ = candidates(ranked, advantages, mask)
        in_pool = positive | negative
        thresholds = surprisal_thresholds(
            surprisal(ranked)[in_pool],
            advantages[in_pool],
            top_p_ratio=self.stare.top_p_ratio,
            group=self.group,
            selection=self.stare.selection,
        )
        self._pools.append(tuple(tau.cpu() for tau in thresholds))
        return thresholds

    def _count(self, ranked, advantages, mask, thresholds):
        positive, negative, _ = candidates(ranked, advantages, mask)
        weights = self._weights(ranked, advantages, mask, thresholds)[mask.bool()].double()
        counts = [weights.numel(), positive.sum(), negative.sum(), (weights > 1).sum(), (weights < 1).sum()]
        self._counts.append(torch.stack([torch.as_tensor(count).double().cpu() for count in [*counts, weights.sum()]]))


def _mean_of_finite(taus: list[torch.Tensor]) -> float:
    finite = [tau.item() for tau in taus if torch.isfinite(tau)]
    return sum(finite) / len(finite) if finite else math.inf


class TargetPolicyLoss(torch.nn.Module):
    """The loss of Target Policy Optimization (arXiv 2604.06159), with `PolicyLoss`'s arguments and returned tuple.

    Old log-probs serve the logged `ppo_kl` only; advantages are not used. Before each call, `open_micro_batch` says
    what the responses of the micro-batch are.
    """

    def __init__(self, tpo: TpoConfig, samples_per_prompt: int, accumulated: int = 1) -> None:
        """`accumulated`: the micro-batches of an optimizer step if the trainer averages their losses; 1 if it adds."""
        super().__init__()
        self.tpo = tpo
        self.samples_per_prompt = samples_per_prompt
        self.accumulated = accumulated
        self._fit_kls: list[torch.Tensor] = []

    def open_micro_batch(
        self, target: torch.Tensor, prompts: float, group_log_probs: torch.Tensor | None = None
    ) -> None:
        """Say what the next call is about.

        Args:
            target: (B,) q of its responses.
            prompts: the prompts of the optimizer step, over all ranks.
            group_log_probs: (B,) log p within the groups, found at the same weights in a pass over the whole step.
                None: the micro-batch consists of whole groups, one after the other.
        """
        self._target, self._prompts, self._group_log_probs = target, prompts, group_log_probs

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
        rollout_log_probs: torch.Tensor | None = None,
        dp_size: int = 1,
        **normalisers,
    ) -> tuple:
        """Log-probs and mask (B, A) -> the loss and OpenRLHF's four metrics, those of the corrections being None.

        Averaged over `dp_size` ranks and `accumulated` micro-batches, the loss is the mean over the step's prompts.
        """
        mask = action_mask.bool()
        own = sequence_log_probs(log_probs, mask, length_normalize=self.tpo.length_normalize)
        target, valid = self._target.to(own.device), mask.any(dim=-1)
        if self._group_log_probs is None:
            own, q, valid = (values.view(-1, self.samples_per_prompt) for values in (own, target, valid))
            loss = target_policy_loss(own, q, valid=valid) * valid.any(dim=-1).sum()
        else:
            log_p = self._group_log_probs.to(own.device)
            # The gradient is Σ (p - q) ∇ℓ, the value -Σ q log p.
            surrogate = ((log_p.exp() * valid - target) * own).sum()
            loss = surrogate + (-(target * log_p).sum() - surrogate).detach()
        self._fit_kls.append((loss + torch.xlogy(target, target).sum()).detach())
        loss = (loss * dp_size * self.accumulated / self._prompts).to(log_probs.dtype)
        log_ratio = (old_log_probs - log_probs).detach().masked_fill(~mask, 0)
        return loss, torch.zeros_like(loss), log_ratio.sum() / mask.sum().clamp(min=1), None, None

    def take_fit_kl(self) -> float:
        """The sum of KL(q‖p) over this rank's prompts, one for each time that a prompt was trained on since the last
        call."""
        total = sum(kl.item() for kl in self._fit_kls)
        self._fit_kls.clear()
        return total
