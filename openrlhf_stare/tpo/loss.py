"""TPO's loss in the place of OpenRLHF's `PolicyLoss`."""

from __future__ import annotations

from typing import Any

import torch

from openrlhf_stare.tpo.target import TpoConfig, sequence_log_probs, target_policy_loss


class TargetPolicyLoss(torch.nn.Module):
    """The loss of Target Policy Optimization (arXiv 2604.06159), with `PolicyLoss`'s arguments and returned tuple.

    Old log-probs serve the logged `ppo_kl` only; advantages are not used. Before each call, `open_micro_batch` says
    what the responses of the micro-batch are.
    """

    # Of the micro-batch, see `open_micro_batch`.
    _target: torch.Tensor
    _prompts: torch.Tensor | float
    _group_log_probs: torch.Tensor | None

    def __init__(self, tpo: TpoConfig, samples_per_prompt: int, accumulated: int = 1) -> None:
        """`accumulated`: the micro-batches of an optimizer step if the trainer averages their losses; 1 if it adds."""
        super().__init__()
        self.tpo = tpo
        self.samples_per_prompt = samples_per_prompt
        self.accumulated = accumulated
        self._fit_kls: list[torch.Tensor] = []

    def open_micro_batch(
        self, target: torch.Tensor, prompts: torch.Tensor | float, group_log_probs: torch.Tensor | None = None
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
        **normalisers: Any,
    ) -> tuple:
        """Log-probs and mask (B, A) -> the loss and OpenRLHF's four metrics, those of the corrections being None.

        Averaged over `dp_size` ranks and `accumulated` micro-batches, the loss is the mean over the step's prompts.
        """
        mask = action_mask.bool()
        own = sequence_log_probs(log_probs, mask, length_normalize=self.tpo.length_normalize)
        target, valid = self._target.to(own.device, non_blocking=True), mask.any(dim=-1)
        if self._group_log_probs is None:
            own, q, valid = (values.view(-1, self.samples_per_prompt) for values in (own, target, valid))
            loss = target_policy_loss(own, q, valid=valid) * valid.any(dim=-1).sum()
        else:
            log_p = self._group_log_probs.to(own.device, non_blocking=True)
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
