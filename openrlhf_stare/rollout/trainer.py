"""OpenRLHF's trainer, which tells the actor's ranks the step that is logged for the rollout they are to train on.

- OpenRLHF's trainer counts steps, over restarts and while it trains a critic alone, and tells its actors nothing.
- Of the steps of `--critic.freezing_steps` it leaves the rollouts with the actor, which would train on all of them,
  and by the advantages of an untrained critic, in its first step. Here they are dropped.
- The coefficient that `--algo.kl.target` adapts is in none of its checkpoints. Here a resumed job goes on with it.
- It takes the metric of the best checkpoint from the checkpoint, whatever `--ckpt.best_metric_key` says. Here the flag
  wins, and the best value of another metric is forgotten.
"""

from __future__ import annotations

import math
from typing import Any

import openrlhf.trainer.ppo_trainer as ppo_trainer
import ray

from openrlhf_stare.actor_group.checkpoints import refuse_other_folder
from openrlhf_stare.actor_group.token_record import responses_to_record
from openrlhf_stare.replacing import plain_class

PlainTrainer: Any = plain_class(ppo_trainer.PPOTrainer)


class StareTrainer(ppo_trainer.BasePPOTrainer):
    """Mixed into a trainer of OpenRLHF."""

    best_eval_metric_key: str

    def __init__(self, pretrain: str, strategy: Any, *others, **named) -> None:
        refuse_other_folder(strategy.args)
        super().__init__(pretrain, strategy, *others, **named)

    def ppo_train(self, global_steps: int) -> dict:
        if responses_to_record(self.args):
            ray.get(self.actor_model_group.async_run_method("begin_step", step=global_steps + 1))
        if global_steps <= self.args.critic.freezing_steps:
            ray.get(self.actor_model_group.async_run_method("drop_rollout"))
        return super().ppo_train(global_steps)

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: dict | None = None, client_states: dict | None = None
    ) -> None:
        super().save_logs_and_checkpoints(global_step, logs_dict, self._with_kl(client_states))

    def save_best_checkpoint(self, eval_metrics: dict, global_step: int, client_states: dict | None = None) -> None:
        super().save_best_checkpoint(eval_metrics, global_step, self._with_kl(client_states))

    def _with_kl(self, states: dict | None) -> dict:
        """A checkpoint's states, with the coefficient and what it started from."""
        kl = self.args.algo.kl
        return {**(states or {}), "kl_coefficient": (kl.init_coef, float(self.kl_ctl.value))}

    def restore_best_checkpoint_state(self, checkpoint_states: dict) -> None:
        """What OpenRLHF's trainer takes back from a checkpoint, sync or async, besides its counts."""
        kl, flag = self.args.algo.kl, self.best_eval_metric_key
        super().restore_best_checkpoint_state(checkpoint_states)
        saved = self.best_eval_metric_key
        # Without the flag the one that OpenRLHF has found stays, but not the word that it is to find none.
        if flag != saved and (flag or saved == "none"):
            self.best_eval_metric_key, self.best_eval_metric_value = flag, -math.inf
            self._latest_eval_metric_value = None
        start, value = checkpoint_states.get("kl_coefficient", (None, None))
        if kl.target and start == kl.init_coef and math.isfinite(value):  # one KL that is NaN makes it NaN for good
            self.kl_ctl.value = value


class PPOTrainer(StareTrainer, PlainTrainer):
    """OpenRLHF's `PPOTrainer`. It has that name, since Ray puts an actor's before each line that it prints."""
