"""OpenRLHF's trainer, which tells the actor's ranks the step that is logged for the rollout they are to train on.

OpenRLHF's trainer counts steps, over restarts and while it trains a critic alone, and tells its actors nothing. Of the
steps of `--critic.freezing_steps` it leaves the rollouts with the actor, which would train on all of them, and by the
advantages of an untrained critic, in its first step. Here they are dropped.
"""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ppo_trainer as ppo_trainer
import ray

from openrlhf_stare.actor_group.checkpoints import refuse_other_folder
from openrlhf_stare.actor_group.token_record import responses_to_record
from openrlhf_stare.replacing import plain_class

PlainTrainer: Any = plain_class(ppo_trainer.PPOTrainer)


class StareTrainer(ppo_trainer.BasePPOTrainer):
    """Mixed into a trainer of OpenRLHF."""

    def __init__(self, pretrain: str, strategy: Any, *others, **named) -> None:
        refuse_other_folder(strategy.args)
        super().__init__(pretrain, strategy, *others, **named)

    def ppo_train(self, global_steps: int) -> dict:
        if responses_to_record(self.args):
            ray.get(self.actor_model_group.async_run_method("begin_step", step=global_steps + 1))
        if global_steps <= self.args.critic.freezing_steps:
            ray.get(self.actor_model_group.async_run_method("drop_rollout"))
        return super().ppo_train(global_steps)


class PPOTrainer(StareTrainer, PlainTrainer):
    """OpenRLHF's `PPOTrainer`. It has that name, since Ray puts an actor's before each line that it prints."""
