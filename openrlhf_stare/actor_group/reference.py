"""The reference model: OpenRLHF's, with the head that the policy has."""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ray.launcher as launcher

from openrlhf_stare.actor_group.fused_head import actor_class
from openrlhf_stare.replacing import plain_class, replaced

ReferenceModelActor: Any = plain_class(launcher.ReferenceModelActor)


class StareReferenceActor(ReferenceModelActor):
    """OpenRLHF's `ReferenceModelActor`, without logits under `--actor.fused_head`."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        with replaced("openrlhf.trainer.ray.launcher.Actor", actor_class(strategy.args)):
            super().init_model_from_pretrained(strategy, pretrain)
