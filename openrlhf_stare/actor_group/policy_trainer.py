"""OpenRLHF's trainer of the policy, with the method in its loss, and with steps without a token made safe."""

from __future__ import annotations

import inspect
from typing import Any

import openrlhf.trainer.ray.ppo_actor as ppo_actor
import torch
from openrlhf.models import Actor, PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_stare.actor_group.empty_steps import NO_TOKENS, divisible_counts
from openrlhf_stare.actor_group.entropy_meter import EntropyMeter
from openrlhf_stare.actor_group.policy_loss import MethodLoss
from openrlhf_stare.methods import base


class PolicyTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's `ActorPPOTrainer`, made in its place by the policy actor.

    Attributes:
        actor_loss_fn: what OpenRLHF's training step calls with log-probs, old ones, advantages, mask and counts.
        dp_group: the data-parallel group.
        control: the options of the entropy's controller.
        loss: the loss with the method in it; None without a method.
        meter: what takes the entropies of the policy's passes.
        rows: the numbers of the responses of the micro-batch that is trained on; None where nobody gave them any.
    """

    actor_loss_fn: Any

    def __init__(self, strategy: Any, actor: Actor, *others, **named) -> None:
        super().__init__(strategy, actor, *others, **named)
        args, self.dp_group = strategy.args, strategy.ds_device_mesh["dp"].get_group()
        method = base.chosen(args.policy_loss)
        self.control = base.control_of(args)
        self.loss: MethodLoss | None = None
        self.rows: list[int] | None = None
        if method:
            options = base.options_of(method, args)
            # PolicyLoss keeps each of its arguments under the argument's name.
            of_openrlhf = {
                name: getattr(self.actor_loss_fn, name) for name in inspect.signature(PolicyLoss).parameters
            }
            self.loss = MethodLoss(method, options, **of_openrlhf)
            self.loss.group = self.dp_group
            self.actor_loss_fn = self._loss_of_the_pass
        self.meter = EntropyMeter(actor, self.control.measure, needs_tokens=bool(method and method.needs_entropy))

    def _loss_of_the_pass(self, *of_openrlhf, **named) -> tuple:
        """The policy loss as OpenRLHF's training step calls it, with the entropies of the pass that it just made and
        the numbers of its responses."""
        assert self.loss is not None
        return self.loss(*of_openrlhf, entropies=self.meter.of_training, rows=self.rows, **named)

    def training_step(
        self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self.rows = experience.index
        counts = divisible_counts(self, experience, step, loss_batch_info)
        result = super().training_step(experience, kl_ctl, step, counts)
        if not result["num_action_tokens"]:
            for name, weight in result["weights"].items():
                if weight == "token":
                    result["metrics"][name] = torch.zeros_like(result["metrics"][name])
            result["num_action_tokens"] = NO_TOKENS
        return result
