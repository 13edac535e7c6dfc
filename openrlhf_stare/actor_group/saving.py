"""What the actors' overrides say and look at when they save: a model that is not finite, a full disk.

OpenRLHF 0.11.2 saves NaN parameters, from which every resumed job goes on. Of a full disk torch says only that it
found itself at an unexpected position in the file, and nobody says which folder is full. With `--ckpt.load_enable` and
no finished checkpoint OpenRLHF's trainer ends with a KeyError.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from openrlhf_stare.algorithms.distributed import all_reduce_sums

# What OpenRLHF's trainer reads of a checkpoint, where there is none.
BEGINNING = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}


@contextmanager
def full_disk_is_told(saved: str, flag: str, path: str) -> Iterator[None]:
    """Save what the sentence calls `saved` in the folder `path`, the value of the flag, in this context.

    Raises:
        OSError: the disk took no more; the message has the room that is left and the remedy.
    """
    try:
        yield
    except Exception as error:
        if not _is_about_files(error):
            raise
        there = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
        free = shutil.disk_usage(there).free / 2**20
        raise OSError(
            f"The {saved} could not be written to {flag} {path}, where {free:.0f} MiB are free "
            f"({' '.join(str(error).split())}): make room there, then --ckpt.load_enable goes on from the last "
            "complete checkpoint, if there is one"
        ) from error


def remedy(model: str) -> str:
    """What to do about a `model` (actor or critic) that is not finite any more."""
    # A scheduler that was loaded goes on with the learning rate that it was saved with, whatever the flag says.
    return (
        f"resume from the last checkpoint with a lower --{model}.max_norm, or start again with a lower "
        f"--{model}.adam.lr, since a resumed job keeps its checkpoint's learning rate"
    )


def kept_adam(options: Any, model: str, optimizer: Any, scheduler: Any) -> str | None:
    """Of a model that was loaded from a checkpoint: that its Adam is not the flags'; None if it is.

    Args:
        options: the model's nested arguments.
        model: the first part of its flags.
        optimizer, scheduler: DeepSpeed's and torch's, as the checkpoint has set them.
    """
    if options.optim != "adam":
        return None
    group = max(optimizer.param_groups, key=lambda group: group["weight_decay"])  # the other one has none of it
    flags = {name: getattr(options.adam, name) for name in ("lr", "betas", "eps", "weight_decay")}
    kept = {**group, "lr": scheduler.base_lrs[0]}
    differing = [name for name in flags if _words(flags[name]) != _words(kept[name])]
    if not differing:
        return None
    given = ", ".join(f"--{model}.adam.{name} {_words(flags[name])}" for name in differing)
    in_force = ", ".join(f"{name} {_words(kept[name])}" for name in differing)
    return (
        f"{given} {'has' if len(differing) == 1 else 'have'} no effect: the job goes on with the checkpoint's "
        f"optimizer, which has {in_force}. To change that, start from the saved model, without --ckpt.load_enable"
    )


def _words(value: Any) -> str:
    """A number, or several, as on the command line."""
    return " ".join(f"{number:g}" for number in (value if isinstance(value, list | tuple) else [value]))


def refuse_non_finite(model: torch.nn.Module, name: str, unwritten: str) -> None:
    """Look through the parameters of all ranks: the last optimizer step may have broken them.

    Args:
        name: the first part of the model's flags.
        unwritten: what is not saved then.

    Raises:
        FloatingPointError: some are not finite, on all ranks at once.
    """
    values = [own_values(parameter) for parameter in model.parameters()]
    own = sum(int((~torch.isfinite(value)).sum()) for value in values)
    # Over all ranks, as ZeRO-3 shards over all of them: one that found nothing would save and wait for the rest.
    bad = all_reduce_sums([own], torch.distributed.group.WORLD).item()
    if bad:
        raise FloatingPointError(
            f"{bad:.0f} values in the {name}'s parameters are not finite, and the {unwritten} was not written: "
            f"{remedy(name)}"
        )


def _is_about_files(error: Exception) -> bool:
    """Whether the error of a save is about the disk, and not about memory or another rank.

    Of a full disk torch says in a RuntimeError that its writer (inline_container.cc) is at an unexpected position.
    safetensors and tokenizers, which are written in Rust, raise no OSError and end their message with its number.
    """
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError)
    return "inline_container.cc" in str(error) or "(os error " in str(error)


def own_values(parameter: Any) -> torch.Tensor:
    """What this rank holds of a parameter: its share under ZeRO-3, less the padding, which nobody initialises."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    share = parameter.ds_tensor
    start = parameter.ds_zero_partition_rank * share.ds_numel
    return share[: max(0, parameter.ds_numel - start)]
