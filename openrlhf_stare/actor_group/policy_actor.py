"""The policy actor: OpenRLHF's, in which the entropy's meter, the controller and the method meet once a rollout."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import openrlhf.trainer.ray.ppo_actor as ppo_actor
import ray
import torch

from openrlhf_stare.actor_group.checkpoints import refuse_other_folder
from openrlhf_stare.actor_group.fused_head import actor_class
from openrlhf_stare.actor_group.other_flags import other_flags, training_flags
from openrlhf_stare.actor_group.policy_trainer import PolicyTrainer
from openrlhf_stare.actor_group.saving import (
    BEGINNING,
    full_disk_is_told,
    kept_adam,
    refuse_non_finite,
    remedy,
)
from openrlhf_stare.actor_group.settings import write_settings
from openrlhf_stare.actor_group.target_trainer import TargetTrainer
from openrlhf_stare.actor_group.token_record import TokenRecord, record_folder, responses_to_record
from openrlhf_stare.algorithms.control import STUCK_ROLLOUTS, EntropyController, EntropyOutOfRange
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.draw import places_of
from openrlhf_stare.algorithms.verdict import AUTHORITY, BAND, EFFORT, ENTROPY, GATE, TARGET
from openrlhf_stare.methods import base
from openrlhf_stare.notices import ENGINES_READY, notice
from openrlhf_stare.replacing import plain_class, replaced

PolicyModelActor: Any = plain_class(ppo_actor.PolicyModelActor)
TRAINER = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer"
ACTOR = "openrlhf.trainer.ray.ppo_actor.Actor"
ENTROPY_COEF = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer.args.actor.entropy_coef"


class NothingTrained(ValueError):
    """The job is over and its policy is what it was at the start."""


class StarePolicyActor(PolicyModelActor):
    """OpenRLHF's `PolicyModelActor` with the entropy of each rollout measured.

    `--policy_loss` is the name of a method or a file with one, or openrlhf, or tpo, which has a trainer of its own.
    The state of the controller is a handful of numbers, the same on all ranks.

    Attributes:
        loss: the loss with the method in it; None without a method.
        controller: what sets the method's strengths; without a method it only watches for a collapse.
        part: the first part of the method's figures.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.step = 0  # under which the coming rollout is logged
        # DeepSpeed has garbage collected whenever it prepares a model: half a second, if among all that was imported.
        gc.freeze()

    def init_model_from_pretrained(
        self, strategy: Any, pretrain: str, max_steps: int | None = None, vllm_engines: list | None = None
    ) -> None:
        refuse_other_folder(strategy.args)
        if vllm_engines:
            # An engine that failed to start would leave rank 0 waiting for it for ever in the weight-sync group.
            ray.get([engine.get_num_unfinished_requests.remote() for engine in vllm_engines])
            if self._rank == 0:
                notice(ENGINES_READY)
        args, self.part = strategy.args, base.name_of(strategy.args.policy_loss)
        trainer = TargetTrainer if args.policy_loss == "tpo" else PolicyTrainer
        with replaced(TRAINER, trainer), replaced(ACTOR, actor_class(args)):
            super().init_model_from_pretrained(strategy, pretrain, max_steps, vllm_engines)
        self.dp_group, self.loss, self.meter = self.trainer.dp_group, self.trainer.loss, self.trainer.meter
        strengths = self.loss.method.strengths if self.loss else ()
        self.controller = EntropyController(self.trainer.control, strengths)
        self._restore(self.checkpoint_states)
        if sentence := other_flags(self.checkpoint_states.get("training_flags", {}), args):
            self._notice(sentence)
        adam = args.actor, "actor", self.actor_optim, self.actor_scheduler
        if self.checkpoint_states and (sentence := kept_adam(*adam)):
            self._notice(sentence)
        if sentence := self.controller.percentages:  # of the run's start, which the checkpoint has
            self._notice(sentence)
        self._told_of_no_advantage = self._told_of_a_bound = False
        self.record: TokenRecord | None = None
        if (responses := responses_to_record(args)) and strategy.is_rank_0():
            self.record = TokenRecord(record_folder(args), responses, self.tokenizer)
        if args.logger.tensorboard_dir and strategy.is_rank_0():
            write_settings(args, self.loss and self.loss.method, self._flags() if self.loss else {})

    # ── the log-prob pass ──

    def forward(self, *args, **kwargs) -> torch.Tensor:
        with self.meter.measuring():
            return super().forward(*args, **kwargs)

    # ── training on one rollout ──

    def begin_step(self, step: int) -> None:
        """The step under which the coming rollout is logged, told by the trainer (`rollout/trainer.py`)."""
        self.step = step

    def drop_rollout(self) -> None:
        """Forget the rollout in the buffer, on which only the critic trains."""
        self.trainer.replay_buffer.clear()
        self.meter.take()
        self.meter.take_tokens()

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        start = time.perf_counter()
        figures = self._open_rollout()
        if self.record:
            self.record.write(self.step, self.trainer.replay_buffer.items, self.loss and self.loss.method, figures)
        own_seconds = time.perf_counter() - start
        with self._training():
            status = super().fit(kl_ctl)
        if self.loss:
            own_seconds += self.loss.take_seconds()
        own_seconds += self.meter.take_seconds()
        # Over all ranks, since those with the same responses took times of their own.
        own_seconds = all_reduce_sums([own_seconds], torch.distributed.group.WORLD).item()
        figures["entropy/seconds"] = own_seconds / torch.distributed.get_world_size()
        return status | figures

    @contextmanager
    def _training(self) -> Iterator[None]:
        """What the method wants of the training passes: its entropy bonus, and entropies."""
        actor_args = self.strategy.args.actor
        bonus = self.loss.method.entropy_coefficient() if self.loss else None
        with (
            # At a bonus of 0 the pass is OpenRLHF's, without entropies.
            replaced(ENTROPY_COEF, bonus, on=actor_args) if bonus else nullcontext(),
            self.meter.without_gradient() if actor_args.entropy_coef is None and not bonus else nullcontext(),
        ):
            yield

    def _open_rollout(self) -> dict[str, float]:
        """Entropy, strengths and statistics of the rollout in the buffer, before the first optimizer step.

        Raises:
            EntropyOutOfRange: the entropy has stayed out of its bounds for too long, on all ranks.
        """
        tokens = self._buffered_tokens()
        entropy, authority = self._batch_entropy(tokens)
        figures = {ENTROPY: entropy, AUTHORITY: authority}
        controller, is_first = self.controller, self.controller.first_entropy is None
        strengths = controller.update(entropy)
        if is_first and (sentence := controller.percentages):
            self._notice(sentence)
        if controller.stop:
            raise EntropyOutOfRange(controller.stop)
        if not self.loss:
            return figures
        if not math.isfinite(entropy):
            self._notice(f"The batch entropy is {entropy}: gate and strengths stay as they are")
        figures |= {
            TARGET: controller.target,
            GATE: float(controller.gate_on),
            EFFORT: controller.effort,
        }
        figures |= {self.loss.method.figure(name): value for name, value in controller.values.items()}
        figures |= self.loss.open_rollout(tokens, strengths)
        self._tell_of_limits(authority)
        return figures

    def _tell_of_limits(self, authority: float) -> None:
        """Say once that the method cannot act, and once that it does all it may and it is too little."""
        stuck = self.controller.stuck_rollouts
        if stuck >= STUCK_ROLLOUTS and not self._told_of_a_bound:
            self._told_of_a_bound = True
            self._notice(
                f"For {stuck} rollouts in a row the entropy was more than {100 * BAND:.0f} % off its target with the "
                f"method at its bound, and {100 * authority:.0f} % of the tokens of the last one have an advantage: "
                "raise the bound, or where that share is small give prompts whose responses differ in reward"
            )
        if authority == 0 and not self._told_of_no_advantage and self.loss.method.needs_advantages:
            self._told_of_no_advantage = True
            self._notice(
                "No token of this rollout has an advantage, as where every group has equal rewards, so no method that "
                "acts through advantages can raise the entropy (entropy/authority)"
            )

    def _buffered_tokens(self) -> base.Tokens:
        """(N,), this rank's action tokens, all responses of the replay buffer."""
        items = self.trainer.replay_buffer.items
        masks = [item.action_mask.bool() for item in items]
        log_probs = _selected([item.action_log_probs for item in items], masks)
        advantages = _selected([item.advantages for item in items], masks)
        mask = torch.ones_like(log_probs, dtype=torch.bool)
        places = None
        if self.loss and self.loss.method.needs_places:
            rank, ranks = torch.distributed.get_rank(self.dp_group), torch.distributed.get_world_size(self.dp_group)
            for number, item in enumerate(items):  # a micro-batch has those of its responses
                item.index = [rank + number * ranks]
            none = torch.empty(0, dtype=torch.int64)
            own = (places_of(item.index, len(mask))[0, mask] for item, mask in zip(items, masks, strict=True))
            places = torch.cat([none, *own])
        return base.Tokens(log_probs, advantages, mask, self.meter.take_tokens(), places)

    def _batch_entropy(self, tokens: base.Tokens) -> tuple[float, float]:
        """The mean entropy in nats of the log-prob pass's tokens over all ranks, NaN without any; and the share of the
        action tokens that have an advantage.

        Raises:
            FloatingPointError: a log-prob of the policy is not finite, on any rank.
        """
        bad_log_probs = int((~torch.isfinite(tokens.log_probs)).sum())
        with_advantage = int(torch.count_nonzero(tokens.advantages))
        own = [*self.meter.take(), bad_log_probs, with_advantage, tokens.advantages.numel()]
        total, count, bad_entropies, bad_log_probs, with_advantage, n = all_reduce_sums(own, self.dp_group).tolist()
        if bad_entropies or bad_log_probs:
            raise FloatingPointError(
                f"The policy gives {bad_log_probs:.0f} non-finite log-probs and {bad_entropies:.0f} non-finite "
                f"entropies on this rollout, and no optimizer step was taken on it: {remedy('actor')}"
            )
        return total / count if count else math.nan, with_advantage / max(n, 1)

    def _notice(self, sentence: str) -> None:
        if self.strategy.is_rank_0():
            notice(sentence)

    # ── checkpoints ──

    def save_checkpoint(
        self,
        tag: str,
        client_states: dict[str, Any] | None = None,
        metric_value: float | None = None,
        metric_key: str | None = None,
    ) -> None:
        """
        Raises:
            FloatingPointError: the policy is not finite, on all ranks.
            OSError: the disk is full.
        """
        refuse_non_finite(self.actor.model, "actor", f"checkpoint {tag}")
        own = {"entropy": self._state(), "training_flags": training_flags(self.strategy.args)}
        client_states = {**(client_states or {}), **own}
        with full_disk_is_told(f"checkpoint {tag}", "--ckpt.path", self.strategy.args.ckpt.path):
            super().save_checkpoint(tag, client_states, metric_value, metric_key)

    def get_checkpoint_states(self) -> dict[str, Any]:
        states = super().get_checkpoint_states() or dict(BEGINNING)
        # A loader that has come to its end begins anew: OpenRLHF would go through the same episode twice.
        if states.get("data_loader_state_dict", {}).get("_iterator_finished"):
            states = {**states, "episode": states["episode"] + 1}
        return states

    def save_model(self) -> None:
        """The trained model, at the end of the job.

        Raises:
            NothingTrained: it is the model that the job started with, on all ranks.
            FloatingPointError: it is not finite, on all ranks.
            OSError: the disk is full.
        """
        refuse_non_finite(self.actor.model, "actor", "final model")
        if not self.actor.model.global_steps:  # DeepSpeed's count of optimizer steps, which a checkpoint keeps
            raise NothingTrained(
                "No optimizer step was made, so the model is the one that the job started with and is not saved: too "
                "few responses were kept for one step (the lines above say how many of each rollout were left out, "
                "and why). Give more prompts, a smaller --train.batch_size, or a --rollout.batch_size that leaves "
                "none out"
            )
        with full_disk_is_told("final model", "--ckpt.output_dir", self.strategy.args.ckpt.output_dir):
            super().save_model()

    def _state(self) -> dict:
        return {"method": self.part, "flags": self._flags(), "controller": self.controller.state_dict()}

    def _flags(self) -> dict[str, object]:
        """The options of the controller and of the method, by flag."""
        flags = {f"entropy.{name}": value for name, value in vars(self.controller.control).items()}
        return flags | (self.loss.method.flags() if self.loss else {})

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        """Take the controller's state from the checkpoint that OpenRLHF has loaded, as far as the flags allow."""
        if not checkpoint:
            return
        state, flags, method = checkpoint.get("entropy"), self._flags(), self.loss and self.loss.method
        if state is None:
            if method:
                self._notice("The checkpoint has no state of the entropy's controller, which starts fresh")
            return
        saved = state["flags"]
        differing = [flag for flag, value in flags.items() if saved.get(flag, value) != value]
        # What the strengths start from, or how they move: the saved values would not be what the flags ask for.
        names = {strength.name for strength in method.strengths} if method else set()
        starts = {method.figure(name).replace("/", ".") for name in names}
        fresh = (
            state["method"] != self.part
            or state["controller"]["values"].keys() != names  # STARE has another one under C2
            or not {"entropy.schedule", *starts}.isdisjoint(differing)
        )
        if method and state["method"] != self.part:
            self._notice(f"The checkpoint was made with {state['method']}: the controller starts fresh")
        elif method and differing:
            changes = ", ".join(f"{flag} {saved[flag]} -> {flags[flag]}" for flag in differing)
            start = "starts fresh" if fresh else "goes on from the checkpoint"
            self._notice(f"The flags win where the checkpoint differs ({changes}); the controller {start}")
        if fresh:
            self.controller.follow(state["controller"])
        else:
            self._load_controller(state, differing)

    def _load_controller(self, state: dict[str, Any], differing: list[str]) -> None:
        self.controller.load_state_dict(state["controller"])
        if differing:
            # Other flags are the remedy for a collapse: they get all of --entropy.stop_after rollouts to act.
            self.controller.count_anew()


def _selected(values: list[torch.Tensor], masks: list[torch.Tensor]) -> torch.Tensor:
    """(N,) what the masks select, one after the other."""
    return torch.cat([torch.empty(0), *(value[mask] for value, mask in zip(values, masks, strict=True))])
