"""The trainer of `--train.async_enable`; see trainer.py."""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ppo_trainer_async as ppo_trainer_async

from openrlhf_stare.replacing import plain_class
from openrlhf_stare.rollout.trainer import StareTrainer

PlainActor: Any = plain_class(ppo_trainer_async.TrainingActor)


class TrainingActor(StareTrainer, PlainActor):
    """OpenRLHF's `TrainingActor`. It has that name, since Ray puts an actor's before each line that it prints."""
