"""A model that is not finite is not saved, a full disk is called one, and a job without a checkpoint begins.

OpenRLHF 0.11.2 saves NaN parameters, from which every resumed job goes on. Of a full disk torch says only that it
found itself at an unexpected position in the file. With `--ckpt.load_enable` and no finished checkpoint OpenRLHF's
trainer ends with a KeyError.
"""

from __future__ import annotations

import shutil
from types import ModuleType

import torch

from openrlhf_stare.algorithms.distributed import all_reduce_sums


def guard(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ray.ppo_actor`: how the policy's ranks save, and what they say of what they loaded."""
    actor_class = module.PolicyModelActor.__ray_metadata__.modified_class
    save, loaded_states = actor_class.save_checkpoint, actor_class.get_checkpoint_states
    save_at_the_end = actor_class.save_model

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        refuse_non_finite(self.actor.model, "actor", f"checkpoint {tag}")
        try:
            save(self, tag, client_states, metric_value, metric_key)
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

    def get_checkpoint_states(self) -> dict:
        beginning = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}
        return loaded_states(self) or beginning

    def save_model(self) -> None:
        refuse_non_finite(self.actor.model, "actor", "final model")
        save_at_the_end(self)

    actor_class.save_checkpoint, actor_class.get_checkpoint_states = save_checkpoint, get_checkpoint_states
    actor_class.save_model = save_model


def guard_critic(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ray.ppo_critic`: how the critic's ranks save a checkpoint."""
    critic_class = module.CriticModelActor.__ray_metadata__.modified_class
    save = critic_class.save_checkpoint

    def save_checkpoint(self, tag, metric_value=None, metric_key=None) -> None:
        refuse_non_finite(self.critic, "critic", f"checkpoint {tag}")
        save(self, tag, metric_value, metric_key)

    critic_class.save_checkpoint = save_checkpoint


def remedy(model: str) -> str:
    """What to do about a `model` (actor or critic) that is not finite any more."""
    # A scheduler that was loaded goes on with the learning rate that it was saved with, whatever the flag says.
    return (
        f"resume from the last checkpoint with a lower --{model}.max_norm, or start again with a lower "
        f"--{model}.adam.lr, since a resumed job keeps its checkpoint's learning rate"
    )


def refuse_non_finite(model: torch.nn.Module, name: str, unwritten: str) -> None:
    """Look through the parameters of all ranks: the last optimizer step may have broken them.

    Args:
        name: the first part of the model's flags.
        unwritten: what is not saved then.

    Raises:
        FloatingPointError: some are not finite, on all ranks at once.
    """
    values = [own_values(parameter) for parameter in model.parameters()]
    bad = sum(int((~torch.isfinite(value)).sum()) for value in values)
    # Over all ranks, as ZeRO-3 shards over all of them: one that found nothing would save and wait for the rest.
    bad = all_reduce_sums([bad], torch.distributed.group.WORLD).item()
    if bad:
        raise FloatingPointError(
            f"{bad:.0f} values in the {name}'s parameters are not finite, and the {unwritten} was not written: "
            f"{remedy(name)}"
        )


def _is_about_files(error: Exception) -> bool:
    """Whether the error of a save is about the disk, and not about memory or another rank.

    Of a full disk torch says in a RuntimeError that its writer (inline_container.cc) is at an unexpected position.
    """
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError)
    return "inline_container.cc" in str(error)


def own_values(parameter: torch.nn.Parameter) -> torch.Tensor:
    """What this rank holds of a parameter: its share under ZeRO-3, less the padding, which nobody initialises."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    share = parameter.ds_tensor
    start = parameter.ds_zero_partition_rank * share.ds_numel
    return share[: max(0, parameter.ds_numel - start)]
