"""Micro-batches and optimizer steps without a token are safe.

Responses that were left out have an empty action mask. OpenRLHF 0.11.2's means over no token are NaN: one empty
micro-batch spoils the figures of its whole step, and an optimizer step of nothing else the parameters.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType

import torch
from openrlhf.utils.loss_utils import get_loss_batch_info


def survive(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ray.ppo_actor`: the same bits wherever each micro-batch has a token."""
    training_step = module.ActorPPOTrainer.training_step

    @functools.wraps(training_step)
    def safe_training_step(self, experience, kl_ctl: float, step: int, loss_batch_info: dict | None = None) -> dict:
        result = training_step(self, experience, kl_ctl, step, _divisible(self, experience, step, loss_batch_info))
        if not result["num_action_tokens"]:
            for name, weight in result["weights"].items():
                if weight == "token":
                    result["metrics"][name] = torch.zeros_like(result["metrics"][name])
            # The figures are divided by the micro-batch's tokens over all ranks, of which there may be none.
            result["num_action_tokens"] = 1e-6
        return result

    module.ActorPPOTrainer.training_step = safe_training_step


def survive_in_critic(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ray.ppo_critic` likewise."""
    training_step = module.CriticPPOTrainer.training_step

    @functools.wraps(training_step)
    def safe_training_step(self, experience, step: int, loss_batch_info: dict | None = None) -> dict:
        status = training_step(self, experience, step, _divisible(self, experience, step, loss_batch_info))
        # Its mean over the micro-batches is not weighted, so that one without a token has to count as something.
        if not experience.action_mask.any() and math.isnan(status["values"]):
            status["values"] = 0.0
        return status

    module.CriticPPOTrainer.training_step = safe_training_step


def _divisible(trainer, experience, step: int, loss_batch_info: dict | None) -> dict:
    """The counts by which a loss is divided, as OpenRLHF makes them, but at least 1."""
    if loss_batch_info is None:
        loss_batch_info = get_loss_batch_info(
            trainer.strategy,
            experience.action_mask,
            replay_buffer=trainer.replay_buffer,
            step=step,
            dynamic_batch=trainer.args.train.dynamic_batch_enable,
        )
    counts = {name: loss_batch_info[name] for name in ("batch_num_tokens", "global_batch_size")}
    return {**loss_batch_info, **{name: torch.where(count > 0, count, 1) for name, count in counts.items()}}
