"""The policy actor: OpenRLHF's, in which the entropy's meter, the controller and the method meet once a rollout."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from unittest.mock import patch

import openrlhf.trainer.ray.ppo_actor as ppo_actor
import ray
import torch

from openrlhf_stare.actor_group.entropy_meter import EntropyMeter
from openrlhf_stare.actor_group.policy_loss import MethodLoss
from openrlhf_stare.actor_group.token_record import TokenRecord, record_folder
from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.algorithms.controller import StareController
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.fixes.saving import DIVERGED
from openrlhf_stare.methods import base
from openrlhf_stare.notices import ENGINES_READY, notice
from openrlhf_stare.tpo.trainer import TargetTrainer


class StarePolicyActor(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """OpenRLHF's `PolicyModelActor` with the entropy of each rollout measured.

    `--policy_loss` is the name of a method, or openrlhf, or tpo, which has a trainer of its own. The state of the
    controller is a handful of numbers, the same on all ranks.

    Attributes:
        loss: the loss with the method in it; None without a method.
        controller: what sets the method's strengths.
    """

    def init_model_from_pretrained(self, strategy, pretrain, max_steps=None, vllm_engines=None):
        if vllm_engines:
            # An engine that failed to start would leave rank 0 waiting for it for ever in the weight-sync group.
            ray.get([engine.get_num_unfinished_requests.remote() for engine in vllm_engines])
            notice(ENGINES_READY)
        args, self.stare = strategy.args, StareConfig(**vars(strategy.args.stare))
        has_method = args.policy_loss in base.names()
        trainer, loss = ppo_actor.ActorPPOTrainer, ppo_actor.PolicyLoss
        if args.policy_loss == "tpo":
            trainer = TargetTrainer
        elif has_method:
            loss = functools.partial(MethodLoss, base.find(args.policy_loss), self.stare)
        # The names by which OpenRLHF's code makes the two.
        with patch.multiple(ppo_actor, ActorPPOTrainer=trainer, PolicyLoss=loss):
            super().init_model_from_pretrained(strategy, pretrain, max_steps, vllm_engines)
        self.dp_group = strategy.ds_device_mesh["dp"].get_group()
        self.meter = EntropyMeter(self.actor, self.stare.entropy)
        self.loss = self.trainer.actor_loss_fn if has_method else None
        if has_method:
            self.loss.group = self.dp_group
            self.controller = StareController(self.stare)
            self._restore(self.checkpoint_states.get("stare"))
        self.record = None
        if self.stare.record_tokens and strategy.is_rank_0():
            self.record = TokenRecord(record_folder(args), self.stare.record_tokens, self.tokenizer)

    # ── the log-prob pass ──

    def forward(self, *args, **kwargs) -> torch.Tensor:
        with self.meter.measuring():
            return super().forward(*args, **kwargs)

    # ── training on one rollout ──

    def begin_step(self, step: int) -> None:
        """The step under which the coming rollout is logged, told by the trainer (`token_record.tell_the_step`)."""
        self.step = step

    def fit(self, kl_ctl: float = 0) -> dict:
        start = time.perf_counter()
        figures = self._open_rollout()
        if self.record:
            self.record.write(self.step, self.trainer.replay_buffer.items, self.loss and self.loss.method, figures)
        own_seconds = time.perf_counter() - start
        status = super().fit(kl_ctl)
        if self.loss:
            own_seconds += self.loss.take_seconds()
        own_seconds += self.meter.take_seconds()
        # Over all ranks, since those with the same responses took times of their own.
        own_seconds = all_reduce_sums([own_seconds], torch.distributed.group.WORLD).item()
        figures["stare/seconds"] = own_seconds / torch.distributed.get_world_size()
        return status | figures

    def _open_rollout(self) -> dict[str, float]:
        """Entropy, strengths and statistics of the rollout in the buffer, before the first optimizer step."""
        tokens = self._buffered_tokens()
        entropy = self._batch_entropy(tokens)
        figures = {"stare/batch_entropy": entropy}
        if not self.loss:
            return figures
        if not self.controller.update(entropy):
            self._notice(f"The batch entropy is {entropy}: gate, W and M stay as they are")
        figures |= {
            "stare/target_entropy": self.stare.target_entropy,
            "stare/gate_on": float(self.controller.gate_on),
            "stare/reweight_w": self.controller.reweight_w,
            "stare/reweight_m": self.controller.reweight_m,
        }
        return figures | self.loss.open_rollout(tokens, self.controller.strengths())

    def _buffered_tokens(self) -> base.Tokens:
        """(N,), this rank's action tokens, all responses of the replay buffer."""
        items = self.trainer.replay_buffer.items
        masks = [item.action_mask.bool() for item in items]

        def of_tokens(values: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([torch.empty(0), *(value[mask] for value, mask in zip(values, masks, strict=True))])

        log_probs = of_tokens([item.action_log_probs for item in items])
        advantages = of_tokens([item.advantages for item in items])
        return base.Tokens(log_probs, advantages, torch.ones_like(log_probs, dtype=torch.bool))

    def _batch_entropy(self, tokens: base.Tokens) -> float:
        """The mean entropy of the log-prob pass's tokens over all ranks, in nats; NaN without any.

        Raises:
            FloatingPointError: a log-prob of the policy is not finite, on any rank.
        """
        bad_log_probs = int((~torch.isfinite(tokens.log_probs)).sum())
        sums = all_reduce_sums([*self.meter.take(), bad_log_probs], self.dp_group)
        total, count, bad_entropies, bad_log_probs = sums.tolist()
        if bad_entropies or bad_log_probs:
            raise FloatingPointError(
                f"The policy gives {bad_log_probs:.0f} non-finite log-probs and {bad_entropies:.0f} non-finite "
                f"entropies on this rollout, and no optimizer step was taken on it: {DIVERGED}"
            )
        return total / count if count else math.nan

    def _notice(self, sentence: str) -> None:
        if self.strategy.is_rank_0():
            notice(sentence)

    # ── checkpoints ──

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        if self.loss:
            state = {"config": dataclasses.asdict(self.stare), "controller": self.controller.state_dict()}
            client_states = {**(client_states or {}), "stare": state}
        super().save_checkpoint(tag, client_states, metric_value, metric_key)

    def _restore(self, state: dict | None) -> None:
        """Take the controller's state from the checkpoint that OpenRLHF has loaded, as far as the flags allow."""
        if not self.checkpoint_states:
            return
        if state is None:
            self._notice("The checkpoint was made without STARE: its controller starts fresh")
            return
        saved, flags = state["config"], dataclasses.asdict(self.stare)
        differing = [name for name, value in flags.items() if saved.get(name, value) != value]  # one may be newer
        # What W and M start from, or how they move: their saved values would not be those that the flags ask for.
        fresh = not {"schedule", "reweight_w", "reweight_m"}.isdisjoint(differing)
        if differing:
            changes = ", ".join(f"{name} {saved[name]} -> {flags[name]}" for name in differing)
            start = "starts fresh" if fresh else "goes on from the checkpoint"
            self._notice(f"STARE follows the flags where the checkpoint differs ({changes}); its controller {start}")
        if not fresh:
            self.controller.load_state_dict(state["controller"])
