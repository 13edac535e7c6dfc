"""The flags that a checkpoint was made with, and what a job that goes on from it with others is told.

OpenRLHF 0.11.2 takes weights and optimizer from the checkpoint and all else from the flags, and says neither. Of the
options of controller and method policy_actor.py tells, of Adam's saving.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace

from openrlhf_stare.actor_group.settings import flat
from openrlhf_stare.notices import without_secrets

# The parts of the flags that say what is trained and how.
PARTS = ("actor", "algo", "critic", "data", "policy_loss", "reward", "rollout", "sr_grpo", "tool", "tpo", "train")
# What of these only says where, how fast or how long; and the clip range that OpenRLHF makes eps_clip_low_high of.
NOT_TOLD = re.compile(
    r".*\.(num_nodes|num_gpus_per_node|offload|micro_batch_size|max_tokens_per_gpu|fused_head|num_episodes"
    r"|gradient_checkpointing_\w+|colocate_\w+|dataloader_num_workers|save_value_network|adam\.\w+|eps_clip)"
)
MODEL = "actor.model_name_or_path"


def training_flags(args: SimpleNamespace) -> dict[str, object]:
    """What a checkpoint keeps, by flag.

    Args:
        args: OpenRLHF's nested arguments.
    """
    found = {flag: value for flag, value in flat(vars(args)).items() if flag.partition(".")[0] in PARTS}
    # Of a pair the default is a tuple, and what is given a list.
    flags = {
        flag: list(value) if isinstance(value, tuple) else value
        for flag, value in found.items()
        if not NOT_TOLD.fullmatch(flag)
    }
    if isinstance(urls := flags.get("reward.remote_url"), list):
        flags["reward.remote_url"] = [without_secrets(url) for url in urls]
    return flags


def other_flags(saved: Mapping[str, object], args: SimpleNamespace) -> str | None:
    """A sentence about the flags that are not those of the checkpoint; None if all are.

    Args:
        saved: the checkpoint's; empty for one of before it kept them. A flag that it does not have is newer.
        args: OpenRLHF's nested arguments of the job that goes on.
    """
    flags = training_flags(args)
    differing = [flag for flag, value in flags.items() if flag in saved and saved[flag] != value]
    if not differing:
        return None
    changes = ", ".join(f"{flag} {_shown(saved[flag])} -> {_shown(flags[flag])}" for flag in differing)
    weights = f", but the weights are the checkpoint's and not those of --{MODEL}" if MODEL in differing else ""
    return f"The checkpoint was made with other flags ({changes}): from here on this job's hold{weights}"


def _shown(value: object) -> str:
    return str(value).replace("\n", "\\n")  # of a template
