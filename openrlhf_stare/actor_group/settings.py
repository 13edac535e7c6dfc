"""What a run was started with, as `settings.json` beside its TensorBoard logs, for the report.

    policy_loss            the method's name
    strengths              the figures with its strengths
    sets                   what its sets of tokens among A > 0 and A < 0 are called, or null
    facts                  what the verdict asks, see `algorithms/verdict.py`
    flags, arguments       the options of ours in force, and OpenRLHF's arguments, by flag

The logger's arguments are left out, which may have keys, and the reward's, whose address may have a password.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

from openrlhf_stare.actor_group.token_record import record_folder
from openrlhf_stare.methods import base
from openrlhf_stare.notices import notice

FILE = "settings.json"
LEFT_OUT = ("logger", "reward")


def write_settings(args: SimpleNamespace, method: base.Method | None, flags: dict[str, object]) -> None:
    """Write the file, in the place of one of an earlier start. A disk that cannot be written to costs the file alone.

    Args:
        args: OpenRLHF's nested arguments.
        flags: the options of the controller and the method that are in force, by flag.
    """
    ours = {"entropy", *base.names()} | ({part.name for part in method.parts} if method else set())
    arguments = {
        flag: value
        for flag, value in flat(vars(args)).items()
        if flag.partition(".")[0] not in {*ours, *LEFT_OUT} and flag != "ckpt.resume_from" and value is not None
    }
    settings = {
        "policy_loss": base.name_of(args.policy_loss),
        "strengths": base.strength_figures(method),
        "sets": method and method.sets,
        "facts": base.facts(method, args) if method else {},
        "flags": flags,
        "arguments": arguments,
    }
    path = record_folder(args) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half_written = path.with_suffix(".tmp")
        half_written.write_text(json.dumps(settings, indent=1, default=str))
        os.replace(half_written, path)
    except OSError as error:
        notice(f"The settings could not be written for the report, and training goes on: {error}")


def flat(nested: dict[str, Any], before: str = "") -> dict[str, Any]:
    """OpenRLHF's nested arguments by flag."""
    flags: dict[str, Any] = {}
    for name, value in nested.items():
        is_part = isinstance(value, SimpleNamespace)
        flags |= flat(vars(value), f"{before}{name}.") if is_part else {before + name: value}
    return flags
