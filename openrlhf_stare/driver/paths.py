"""Paths as absolute ones, for the processes of the job.

A Ray worker runs in the folder where its node's Ray was started, and would look for the driver's relative paths there,
and write to them.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_stare.methods import base
from openrlhf_stare.rules import Finding


def make_absolute(args: SimpleNamespace) -> None:
    """Change the paths among the nested arguments that OpenRLHF's `train` gets.

    A job that was submitted with a working directory keeps its own: every node has a copy and runs its workers there.
    """
    if "working_dir" in submitted_environment():
        return
    args.ckpt.path, args.ckpt.output_dir = os.path.abspath(args.ckpt.path), os.path.abspath(args.ckpt.output_dir)
    if args.logger.tensorboard_dir:
        args.logger.tensorboard_dir = os.path.abspath(args.logger.tensorboard_dir)
    parts = base.parts_of(args.policy_loss)
    args.policy_loss = "+".join(os.path.abspath(part) if part.endswith(".py") else part for part in parts)
    if args.train.agent_func_path:
        args.train.agent_func_path = os.path.abspath(args.train.agent_func_path)
    if args.reward.remote_url:
        urls = args.reward.remote_url  # addresses, files, or OpenRLHF's word for an agent
        args.reward.remote_url = [os.path.abspath(url) if url.endswith(".py") else url for url in urls]
    for model in (args.actor, args.critic, args.reward):
        if model.model_name_or_path and os.path.isdir(model.model_name_or_path):  # else an id of the Hub
            model.model_name_or_path = os.path.abspath(model.model_name_or_path)
    args.data.prompt_dataset, args.eval.dataset = map(_datasets, (args.data.prompt_dataset, args.eval.dataset))


def _datasets(names: str | None) -> str | None:
    """Of data sets between commas, named as OpenRLHF names them, the local ones with absolute paths."""
    if not names:
        return names
    parts = [name.strip() for name in names.split(",")]
    return ",".join(os.path.abspath(name) if glob.glob(name.partition("@")[0]) else name for name in parts)


def lost_with_the_job(args: SimpleNamespace) -> Iterator[Finding]:
    """What a job with a working directory trains and logs does not go into one of that directory's copies."""
    written = {
        "--ckpt.path": args.ckpt.path,
        "--ckpt.output_dir": args.ckpt.output_dir,
        "--logger.tensorboard_dir": args.logger.tensorboard_dir,
    }
    is_copied = "working_dir" in submitted_environment()
    for flag, path in written.items():
        if is_copied and path and not os.path.isabs(path):
            yield Finding(
                f"{flag} {path}",
                "is relative, and a job that was submitted with a working directory has a copy of it on each node, "
                "which goes with the job",
                "give the absolute path of a folder that all nodes share",
            )


def submitted_environment() -> dict:
    """The runtime environment that a job submitted to Ray brings; empty for one that was not submitted.

    With a `working_dir` Ray runs the job in a copy of the folder that it was submitted from.
    """
    return json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env") or {}
