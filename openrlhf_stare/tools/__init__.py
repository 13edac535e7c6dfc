"""Multi-turn tool use: an OpenRLHF agent whose Python tool runs what the model writes in a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import Finding

AGENT = Path(__file__).with_name("agent.py")
SETTINGS = "OPENRLHF_STARE_TOOL"  # the environment variable by which the job's options reach its agents, as JSON


def cannot_run(args: SimpleNamespace) -> Iterator[Finding]:
    """What a job with OpenRLHF's nested arguments lacks for the tool, if it has one.

    Raises:
        UsageError: no sandbox works here.
    """
    from openrlhf_stare.tools import config, sandbox

    agent, reward = args.train.agent_func_path, args.reward.remote_url
    if not agent or not is_ours(agent):
        return
    if not reward:
        yield Finding(
            f"--train.agent_func_path {agent}",
            "has nothing to score responses with",
            "give --reward.remote_url a Python file with a reward_func, or the address of a server",
        )
    if args.no_checks or args.dry_run:  # the engines run the tool, perhaps on other machines, and look themselves
        return
    if reward.endswith(".py") and not Path(reward).is_file():
        yield Finding(f"--reward.remote_url {reward}", "is not there", "give the path of your reward function")
    try:
        sandbox.check(config.ToolConfig(**vars(args.tool)))
    except sandbox.SandboxMissing as error:
        raise UsageError(f"{error} (--no_checks skips this check on the driver's machine)") from None


def is_ours(agent: str) -> bool:
    """Whether the path of an agent file is that of our agent."""
    return Path(agent).resolve() == AGENT.resolve()


def environment(args: SimpleNamespace) -> dict[str, str]:
    """What the processes of the job need for its agent: the tool's options and the reward.

    They are read before OpenRLHF, which has no reward beside an agent, writes `agent` in the reward's place.
    """
    if not args.train.agent_func_path:
        return {}
    reward = args.reward.remote_url or ""
    if reward.endswith(".py"):
        reward = os.path.abspath(reward)
    engines = {"engines": args.vllm.num_engines or 1, "gpus_of_each": args.vllm.tensor_parallel_size}
    return {SETTINGS: json.dumps({"reward": reward, **engines, **vars(args.tool)})}
