"""TPO inside the policy actor: OpenRLHF's training loop with a prompt's responses kept together.

The softmax over a prompt's K responses needs the log-probs of all of them. They are on one rank and in one optimizer
step. Where a micro-batch consists of whole groups, that is all it takes. Otherwise each optimizer step has two stages:
a pass without gradient gives the log-probs of all its responses, and with them the softmax, which each micro-batch
then takes as a constant for its own responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch.utils.data import DataLoader

from openrlhf_stare.actor_group.policy_trainer import PolicyTrainer
from openrlhf_stare.algorithms.distributed import all_reduce_sums, collective_device
from openrlhf_stare.algorithms.groups import all_equal
from openrlhf_stare.replacing import replaced
from openrlhf_stare.tpo.loss import TargetPolicyLoss
from openrlhf_stare.tpo.target import TpoConfig, group_log_softmax, sequence_log_probs, target_distribution
from openrlhf_stare.tpo.whole_groups import WholeGroups, check_whole_groups


@dataclass
class Rollout:
    """The rollout in the buffer: P prompts of K responses."""

    valid: torch.Tensor  # (P, K) bool: a response with a token
    log_probs: torch.Tensor  # (P, K) of the policy that sampled it
    target: torch.Tensor  # (P, K) q
    log_probs_are_current: bool = True  # until the first optimizer step
    # What the loss is told of each micro-batch that is left in the optimizer step: target, prompts and log p.
    step_ahead: list[tuple] = field(default_factory=list)
    prompts_trained: torch.Tensor | float = 0.0  # of all steps so far, over all ranks


class TargetTrainer(PolicyTrainer):
    """The policy's trainer with TPO's loss and its figures."""

    rollout: Rollout  # the one that is trained on
    sampler: WholeGroups  # of its micro-batches, unless they are dynamic ones

    def __init__(self, strategy: Any, *others, **named) -> None:
        super().__init__(strategy, *others, **named)
        self.tpo = TpoConfig(**vars(strategy.args.tpo))
        self.samples_per_prompt = strategy.args.rollout.n_samples_per_prompt
        self.dynamic = strategy.args.train.dynamic_batch_enable
        # OpenRLHF has DeepSpeed average over the micro-batches of a step, and add up dynamic ones.
        accumulated = 1 if self.dynamic else strategy.accumulated_gradient
        self.target_loss = TargetPolicyLoss(self.tpo, self.samples_per_prompt, accumulated)
        self.actor_loss_fn = self.target_loss
        self.two_stages = self.dynamic or self.micro_train_batch_size % self.samples_per_prompt > 0

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        self.rollout, figures = self._opened_rollout()
        with replaced("openrlhf.trainer.ray.ppo_actor.DataLoader", self._data_loader):
            status = super().ppo_train(kl_ctl)
        fit_kl = all_reduce_sums([self.target_loss.take_fit_kl()], self.dp_group).item()
        return status | figures | {"tpo/fit_kl": fit_kl / max(float(self.rollout.prompts_trained), 1)}

    def training_step(
        self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if not self.rollout.step_ahead:
            self._open_step(self.rollout, step)
        self.target_loss.open_micro_batch(*self.rollout.step_ahead.pop(0))
        return super().training_step(experience, kl_ctl, step, loss_batch_info)

    def _data_loader(self, buffer: Any, batch_size: int, shuffle: bool, drop_last: bool, **options) -> DataLoader:
        if self.dynamic:
            return DataLoader(buffer, batch_size=batch_size, **options)
        self.sampler = WholeGroups(len(self.rollout.valid), self.samples_per_prompt, batch_size, shuffle)
        return DataLoader(buffer, batch_sampler=self.sampler, **options)

    # ── once a rollout ──

    def _opened_rollout(self) -> tuple[Rollout, dict[str, float]]:
        """The rollout in the buffer with its target, and figures of it that are the same on all ranks."""
        items, size = self.replay_buffer.items, self.samples_per_prompt
        check_whole_groups(items, size)

        own = [self._sequence_log_probs(item.action_log_probs, item.action_mask) for item in items]
        log_probs = torch.stack(own).view(-1, size)
        valid = torch.stack([item.action_mask.bool().any() for item in items]).view(-1, size)
        rewards = torch.stack([item.rewards for item in items]).view(-1, size)
        target = target_distribution(log_probs, rewards, valid=valid, eta=self.tpo.eta)

        prompts = valid.any(dim=-1)
        old = group_log_softmax(log_probs, valid)
        target_kl = (torch.xlogy(target, target) - target * old).sum()
        effective = (1 / target.square().sum(dim=-1)[prompts]).sum()
        zero_variance = (all_equal(rewards, valid).squeeze(-1) & prompts).sum()
        sums = [float(value) for value in (prompts.sum(), target_kl, effective, zero_variance)]
        count, target_kl, effective, zero_variance = all_reduce_sums(sums, self.dp_group).tolist()
        return Rollout(valid, log_probs, target), {
            "tpo/target_kl": target_kl / count,
            "tpo/effective_responses": effective / count,
            "tpo/zero_variance_groups": zero_variance,
        }

    # ── once an optimizer step ──

    def _open_step(self, rollout: Rollout, step: int) -> None:
        """Prepare what the loss is told of each micro-batch of the optimizer step that begins with number `step`."""
        if self.dynamic:
            end = self.replay_buffer.dynamic_optimizer_step.index(1, step) + 1
            micro_batches = self.replay_buffer.dynamic_indices[step:end]
        else:
            micro_batches = self.sampler.micro_batches[step : step + self.strategy.accumulated_gradient]
        rows = torch.tensor([row for batch in micro_batches for row in batch])
        in_groups = rows.sort().values.view(-1, self.samples_per_prompt)
        valid = rollout.valid.view(-1)[in_groups]
        # Nothing here waits for a GPU: what is read is on the CPU, and what the GPU computes stays there.
        count = float(valid.any(dim=-1).sum())
        own_prompts = torch.full((), count, dtype=torch.float64, device=collective_device(self.dp_group))
        prompts = all_reduce_sums(own_prompts, self.dp_group).clamp(min=1)
        rollout.prompts_trained = rollout.prompts_trained + prompts
        shares: Sequence[torch.Tensor | None] = [None] * len(micro_batches)
        if self.two_stages:
            if rollout.log_probs_are_current:
                log_probs = rollout.log_probs.view(-1)[rows]
            else:
                log_probs = torch.cat([self._current_log_probs(batch) for batch in micro_batches])
            places = rows.argsort().to(log_probs.device, non_blocking=True)
            log_p = group_log_softmax(
                log_probs[places].view(in_groups.shape), valid.to(log_probs.device, non_blocking=True)
            )
            shares = (
                torch.empty_like(log_probs)
                .index_copy(0, places, log_p.view(-1))
                .split([len(batch) for batch in micro_batches])
            )
        rollout.log_probs_are_current = False
        target = rollout.target.view(-1)
        pairs = zip(micro_batches, shares, strict=True)
        rollout.step_ahead = [(target[batch], prompts, share) for batch, share in pairs]

    @torch.no_grad()
    def _current_log_probs(self, rows: list[int]) -> torch.Tensor:
        """ℓ (B,) of these rows of the buffer, in the batch and the mode of the training pass but without gradient."""
        items = [self.replay_buffer.items[row] for row in rows]
        experience = make_experience_batch(items, self.replay_buffer.packing_samples)
        device = torch.cuda.current_device()
        experience.to_device(device)
        mm_inputs = {}
        if experience.mm_train_inputs and getattr(self.actor, "is_vlm", False):
            mm_inputs = merge_mm_train_inputs(experience.mm_train_inputs, device)
        self.actor.train()
        log_probs = self.actor(
            experience.sequences,
            experience.action_mask,
            attention_mask=experience.attention_mask,
            ring_attn_group=self.strategy.ring_attn_group,
            **mm_inputs,
        )
        return self._sequence_log_probs(log_probs, experience.action_mask)

    def _sequence_log_probs(self, log_probs: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        return sequence_log_probs(log_probs, action_mask, length_normalize=self.tpo.length_normalize)
