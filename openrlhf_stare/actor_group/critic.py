"""OpenRLHF's critic, with steps without a token made safe, not saved when it is not finite, and a full disk told."""

from __future__ import annotations

import math
from typing import Any

import openrlhf.trainer.ray.ppo_critic as ppo_critic
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_stare.actor_group.checkpoints import refuse_other_folder
from openrlhf_stare.actor_group.empty_steps import divisible_counts
from openrlhf_stare.actor_group.saving import full_disk_is_told, kept_adam, refuse_non_finite
from openrlhf_stare.notices import notice
from openrlhf_stare.replacing import plain_class

CriticModelActor: Any = plain_class(ppo_critic.CriticModelActor)


class CriticTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's `CriticPPOTrainer`."""

    def training_step(
        self, experience: Experience, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, float]:
        counts = divisible_counts(self, experience, step, loss_batch_info)
        status = super().training_step(experience, step, counts)
        # Its mean over the micro-batches is not weighted, so that one without a token has to count as something.
        if not experience.action_mask.any() and math.isnan(status["values"]):
            status["values"] = 0.0
        return status


class StareCriticActor(CriticModelActor):
    """OpenRLHF's `CriticModelActor`."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str, max_steps: int) -> None:
        refuse_other_folder(strategy.args)
        super().init_model_from_pretrained(strategy, pretrain, max_steps)
        adam = strategy.args.critic, "critic", self.critic_optim, self.critic_scheduler
        if strategy.args.ckpt.load_enable and (sentence := kept_adam(*adam)) and strategy.is_rank_0():
            notice(sentence)

    def save_checkpoint(self, tag: str, metric_value: float | None = None, metric_key: str | None = None) -> None:
        refuse_non_finite(self.critic, "critic", f"checkpoint {tag}")
        with full_disk_is_told(f"critic's checkpoint {tag}", "--ckpt.path", self.strategy.args.ckpt.path):
            super().save_checkpoint(tag, metric_value, metric_key)

    def save_model(self) -> None:
        refuse_non_finite(self.critic, "critic", "final model")
        with full_disk_is_told("critic's final model", "--ckpt.output_dir", self.strategy.args.ckpt.output_dir):
            super().save_model()
