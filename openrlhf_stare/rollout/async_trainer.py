"""The trainer of `--train.async_enable`; see trainer.py."""

from __future__ import annotations

import openrlhf.trainer.ppo_trainer_async as ppo_trainer_async

from openrlhf_stare.replacing import plain_class
from openrlhf_stare.rollout.trainer import TellsTheStep


class TrainingActor(TellsTheStep, plain_class(ppo_trainer_async.TrainingActor)):
    """OpenRLHF's `TrainingActor`. It has that name, since Ray puts an actor's before each line that it prints."""
