"""TPO inside the policy actor: OpenRLHF's training loop with a prompt's responses kept together.

The softmax over a prompt's K responses needs the log-probs of all of them. They are on one rank and in one optimizer
step. Where a micro-batch consists of whole groups, that is all it takes. Otherwise each optimizer step has two stages:
a pass without gradient gives the log-probs of all its responses, and with them the softmax, which each micro-batch
then takes as a constant for its own responses.
"""

from __future__ import annotations

import openrlhf.trainer.ray.ppo_actor as ppo_actor
import torch
from openrlhf.trainer.ppo_utils.experience import make_experience_batch
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch.utils.data import DataLoader

from openrlhf_stare.algorithms.distributed import all_reduce_sums, collective_device
from openrlhf_stare.algorithms.groups import all_equal
from openrlhf_stare.replacing import replaced
from openrlhf_stare.tpo.loss import TargetPolicyLoss
from openrlhf_stare.tpo.target import TpoConfig, group_log_softmax, sequence_log_probs, target_distribution
from openrlhf_stare.tpo.whole_groups import WholeGroups, number_of


class TargetTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's `ActorPPOTrainer` with TPO's loss and its figures."""

    def __init__(self, strategy, *args, **kwargs) -> None:
        super().__init__(strategy, *args, **kwargs)
        self.tpo = TpoConfig(**vars(strategy.args.tpo))
        self.samples_per_prompt = strategy.args.rollout.n_samples_per_prompt
        self.dp_group = strategy.ds_device_mesh["dp"].get_group()
        self.dynamic = strategy.args.train.dynamic_batch_enable
        # OpenRLHF has DeepSpeed average over the micro-batches of a step, and add up dynamic ones.
        accumulated = 1 if self.dynamic else strategy.accumulated_gradient
        self.actor_loss_fn = TargetPolicyLoss(self.tpo, self.samples_per_prompt, accumulated)
        self.two_stages = self.dynamic or self.micro_train_batch_size % self.samples_per_prompt > 0

    def ppo_train(self, kl_ctl: float) -> dict:
        figures = self._open_rollout()
        with replaced("openrlhf.trainer.ray.ppo_actor.DataLoader", self._data_loader):
            status = super().ppo_train(kl_ctl)
        fit_kl = all_reduce_sums([self.actor_loss_fn.take_fit_kl()], self.dp_group).item()
        return status | figures | {"tpo/fit_kl": fit_kl / max(float(self.prompts_trained), 1)}

    def training_step(self, experience, kl_ctl: float, step: int, loss_batch_info: dict | None = None) -> dict:
        if not self.step_ahead:
            self._open_step(step)
        self.actor_loss_fn.open_micro_batch(*self.step_ahead.pop(0))
        return super().training_step(experience, kl_ctl, step, loss_batch_info)

    def _data_loader(self, buffer, batch_size: int, shuffle: bool, drop_last: bool, **options) -> DataLoader:
        if self.dynamic:
            return DataLoader(buffer, batch_size=batch_size, **options)
        self.sampler = WholeGroups(len(self.valid), self.samples_per_prompt, batch_size, shuffle)
        return DataLoader(buffer, batch_sampler=self.sampler, **options)

    # ── once a rollout ──

    def _open_rollout(self) -> dict[str, float]:
        """The target of the rollout in the buffer, and figures of it that are the same on all ranks."""
        items, size = self.replay_buffer.items, self.samples_per_prompt
        items.sort(key=number_of)
        numbers = [number_of(item) for item in items]
        starts = [number // size * size for number in numbers[::size]]
        if numbers != [start + place for start in starts for place in range(size)]:
            raise RuntimeError(f"The {len(items)} responses of this rank are not whole groups of {size} for a prompt")

        def of_groups(values):
            return torch.stack(values).view(-1, size)

        self.valid = of_groups([item.action_mask.bool().any() for item in items])
        rewards = of_groups([item.rewards for item in items])
        self.log_probs = of_groups(
            [self._sequence_log_probs(item.action_log_probs, item.action_mask) for item in items]
        )
        self.target = target_distribution(self.log_probs, rewards, valid=self.valid, eta=self.tpo.eta)
        self.log_probs_are_current = True  # until the first optimizer step
        self.step_ahead: list[tuple] = []  # what the loss is told of the micro-batches left in the optimizer step
        self.prompts_trained = 0.0

        prompts = self.valid.any(dim=-1)
        old = group_log_softmax(self.log_probs, self.valid)
        target_kl = (torch.xlogy(self.target, self.target) - self.target * old).sum()
        effective = (1 / self.target.square().sum(dim=-1)[prompts]).sum()
        zero_variance = (all_equal(rewards, self.valid).squeeze(-1) & prompts).sum()
        sums = [float(value) for value in (prompts.sum(), target_kl, effective, zero_variance)]
        count, target_kl, effective, zero_variance = all_reduce_sums(sums, self.dp_group).tolist()
        return {
            "tpo/target_kl": target_kl / count,
            "tpo/effective_responses": effective / count,
            "tpo/zero_variance_groups": zero_variance,
        }

    # ── once an optimizer step ──

    def _open_step(self, step: int) -> None:
        """Prepare what the loss is told of each micro-batch of the optimizer step that begins with number `step`."""
        if self.dynamic:
            end = self.replay_buffer.dynamic_optimizer_step.index(1, step) + 1
            micro_batches = self.replay_buffer.dynamic_indices[step:end]
        else:
            micro_batches = self.sampler.micro_batches[step : step + self.strategy.accumulated_gradient]
        rows = torch.tensor([row for batch in micro_batches for row in batch])
        in_groups = rows.sort().values.view(-1, self.samples_per_prompt)
        valid = self.valid.view(-1)[in_groups]
        # Nothing here waits for a GPU: what is read is on the CPU, and what the GPU computes stays there.
        own_prompts = float(valid.any(dim=-1).sum())
        own_prompts = torch.full((), own_prompts, dtype=torch.float64, device=collective_device(self.dp_group))
        prompts = all_reduce_sums(own_prompts, self.dp_group).clamp(min=1)
        self.prompts_trained = self.prompts_trained + prompts
        shares = [None] * len(micro_batches)
        if self.two_stages:
            if self.log_probs_are_current:
                log_probs = self.log_probs.view(-1)[rows]
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
        self.log_probs_are_current = False
        target = self.target.view(-1)
        self.step_ahead = [(target[batch], prompts, share) for batch, share in zip(micro_batches, shares, strict=True)]

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
