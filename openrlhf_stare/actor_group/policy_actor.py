"""The policy actor: OpenRLHF's, which measures the entropy of its rollouts and trains with STARE's loss.

The state of the method (controller, running entropy, thresholds) lives here, is small and the same on all ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import shutil
import time

import openrlhf.trainer.ray.ppo_actor as ppo_actor
import ray
import torch

from openrlhf_stare.actor_group.entropy_meter import EntropyMeter
from openrlhf_stare.actor_group.losses import StarePolicyLoss
from openrlhf_stare.actor_group.policy_trainer import PolicyTrainer
from openrlhf_stare.actor_group.target_trainer import TargetTrainer
from openrlhf_stare.actor_group.token_record import TokenRecord, record_folder, steps_before
from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.notices import ENGINES_READY, notice

# A scheduler that was loaded goes on with the learning rate that it was saved with, whatever the flag says.
DIVERGED = (
    "resume from the last checkpoint with a lower --actor.max_norm, or start again with a lower --actor.adam.lr, "
    "since a resumed job keeps its checkpoint's learning rate"
)


class StarePolicyActor(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """OpenRLHF's `PolicyModelActor` with the entropy of each rollout measured and, under `--policy_loss stare`, the
    entropy-critical tokens of the rollout found before OpenRLHF's own training loop runs. Under `tpo` it has a trainer
    of its own (`target_trainer`)."""

    def init_model_from_pretrained(self, strategy, pretrain, max_steps=None, vllm_engines=None):
        if vllm_engines:
            # An engine that failed to start would leave rank 0 waiting for it for ever in the weight-sync group.
            ray.get([engine.get_num_unfinished_requests.remote() for engine in vllm_engines])
            notice(ENGINES_READY)
        self.stare = StareConfig(**vars(strategy.args.stare))
        self.reweights = strategy.args.policy_loss == "stare"
        # This process trains nothing else.
        ppo_actor.ActorPPOTrainer = TargetTrainer if strategy.args.policy_loss == "tpo" else PolicyTrainer
        if self.reweights:
            # OpenRLHF's trainer makes the loss from its flags.
            ppo_actor.PolicyLoss = functools.partial(StarePolicyLoss, stare=self.stare)
        super().init_model_from_pretrained(strategy, pretrain, max_steps, vllm_engines)
        self.dp_group = strategy.ds_device_mesh["dp"].get_group()
        self.meter = EntropyMeter(self.actor, self.stare.entropy)
        self.left_out_tokens = 0
        if self.reweights:
            self.loss = self.trainer.actor_loss_fn
            self.loss.group = self.dp_group
            self._restore(self.checkpoint_states.get("stare"))
        self.record = None
        if self.stare.record_tokens and strategy.is_rank_0():
            past = steps_before(strategy.args, self.checkpoint_states)
            self.record = TokenRecord(
                record_folder(strategy.args), self.stare.record_tokens, self.tokenizer, steps_before=past
            )

    # ── the log-prob pass ──

    def forward(self, *args, **kwargs) -> torch.Tensor:
        with self.meter.measuring():
            return super().forward(*args, **kwargs)

    # ── training on one rollout ──

    def append(self, experience) -> None:
        # A response that was left out comes with an empty mask and a NaN advantage on each of its former tokens.
        left_out = torch.isnan(experience.advantages)
        if left_out.any():
            self.left_out_tokens += int(left_out.sum())
            experience.advantages = experience.advantages.masked_fill(left_out, 0)
        super().append(experience)

    def fit(self, kl_ctl: float = 0) -> dict:
        start = time.perf_counter()
        figures = self._open_rollout()
        if self.record:
            self._record_tokens()
        own_seconds = time.perf_counter() - start
        status = super().fit(kl_ctl)
        start = time.perf_counter()
        if self.reweights:
            figures |= self.loss.figures()
            own_seconds += self.loss.take_seconds()
        own_seconds += self.meter.take_seconds() + time.perf_counter() - start
        ranks = torch.distributed.get_world_size(self.dp_group)
        figures["stare/seconds"] = all_reduce_sums([own_seconds], self.dp_group).item() / ranks
        status.update(figures)
        return status

    def _open_rollout(self) -> dict[str, float]:
        """Entropy, gate and weights, thresholds of the rollout in the buffer, before the first optimizer step."""
        log_probs, advantages = self._buffered_tokens()
        entropy_sum, entropy_tokens, bad_entropies = self.meter.take()
        bad_log_probs = int((~torch.isfinite(log_probs)).sum())
        entropy_sum, entropy_tokens, bad_entropies, bad_log_probs, left_out = all_reduce_sums(
            [entropy_sum, entropy_tokens, bad_entropies, bad_log_probs, self.left_out_tokens], self.dp_group
        ).tolist()
        self.left_out_tokens = 0
        if bad_entropies or bad_log_probs:
            raise FloatingPointError(
                f"The policy gives {bad_log_probs:.0f} non-finite log-probs and {bad_entropies:.0f} non-finite "
                f"entropies on this rollout, and no optimizer step was taken on it: {DIVERGED}"
            )
        batch_entropy = entropy_sum / entropy_tokens if entropy_tokens else math.nan
        figures = {"stare/batch_entropy": batch_entropy, "stare/nonfinite_tokens": left_out}
        if not self.reweights:
            return figures

        controller = self.loss.controller
        if not controller.update(batch_entropy):
            self._notice(f"The batch entropy is {batch_entropy}: gate, W and M stay as they are")
        figures |= {
            "stare/target_entropy": self.stare.target_entropy,
            "stare/gate_on": float(controller.gate_on),
            "stare/reweight_w": controller.reweight_w,
            "stare/reweight_m": controller.reweight_m,
        }
        self.loss.open_rollout(log_probs, advantages)
        return figures

    def _notice(self, sentence: str) -> None:
        if self.strategy.is_rank_0():
            notice(sentence)

    def _record_tokens(self) -> None:
        items = self.trainer.replay_buffer.items
        if self.reweights:
            self.record.write(items, self.loss.controller, self.loss.thresholds)
        else:
            self.record.write(items)

    def _buffered_tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and advantages (N,) of this rank's action tokens, all responses of the replay buffer."""
        items = self.trainer.replay_buffer.items
        masks = [item.action_mask.bool() for item in items]
        empty = [torch.empty(0)]
        log_probs = torch.cat(empty + [item.action_log_probs[mask] for item, mask in zip(items, masks, strict=True)])
        advantages = torch.cat(empty + [item.advantages[mask] for item, mask in zip(items, masks, strict=True)])
        return log_probs, advantages

    # ── checkpoints ──

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        self._refuse_to_save_non_finite(tag)
        if self.reweights:
            state = {"config": dataclasses.asdict(self.stare), "controller": self.loss.controller.state_dict()}
            client_states = {**(client_states or {}), "stare": state}
        try:
            super().save_checkpoint(tag, client_states, metric_value, metric_key)
        except (OSError, RuntimeError) as error:
            if not _is_about_files(error):
                raise
            path = self.strategy.args.ckpt.path
            free = shutil.disk_usage(path).free / 2**20
            raise OSError(
                f"The checkpoint {tag} could not be written to --ckpt.path {path}, where {free:.0f} MiB are free "
                f"({' '.join(str(error).split())}): make room there, then --ckpt.load_enable goes on from the last "
                "complete checkpoint"
            ) from error

    def _refuse_to_save_non_finite(self, tag: str) -> None:
        # The last optimizer step may have broken the policy, which the next log-prob pass would find too late.
        values = [_own_values(parameter) for parameter in self.actor.model.parameters()]
        bad = sum(int((~torch.isfinite(value)).sum()) for value in values)
        # Over all ranks, as ZeRO-3 shards over all of them: one that found nothing would save and wait for the rest.
        bad = all_reduce_sums([bad], torch.distributed.group.WORLD).item()
        if bad:
            raise FloatingPointError(
                f"{bad:.0f} values in the ranks' parameters are not finite, and the checkpoint {tag} was not written: "
                f"{DIVERGED}"
            )

    def get_checkpoint_states(self) -> dict:
        # Where no checkpoint was ever finished nothing is loaded, and OpenRLHF's trainer would miss these.
        beginning = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}
        return super().get_checkpoint_states() or beginning

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
            self.loss.controller.load_state_dict(state["controller"])


def _is_about_files(error: Exception) -> bool:
    """Whether the error of a save is about the disk, and not about memory or another rank.

    Of a full disk torch says in a RuntimeError that its writer (inline_container.cc) is at an unexpected position.
    """
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError)
    return "inline_container.cc" in str(error)


def _own_values(parameter: torch.nn.Parameter) -> torch.Tensor:
    """What this rank holds of a parameter: its share under ZeRO-3, less the padding, which nobody initialises."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    share = parameter.ds_tensor
    start = parameter.ds_zero_partition_rank * share.ds_numel
    return share[: max(0, parameter.ds_numel - start)]
