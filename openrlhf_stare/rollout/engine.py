"""The vLLM engine's Ray actor: OpenRLHF's, which says why vLLM did not start, and scores groups without the lost."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import stat
from pathlib import Path
from statistics import fmean
from typing import Any

import openrlhf.trainer.ray.vllm_engine as vllm_engine

from openrlhf_stare.replacing import plain_class
from openrlhf_stare.rollout.reward_answers import exit_is_an_error, only_number

# What begins the traceback of another exception, below a message.
TRACEBACK = re.compile(r"Traceback |During handling of |The above exception was |\w+ failed to start")
RolloutRayActor: Any = plain_class(vllm_engine.RolloutRayActor)


class StareRolloutActor(RolloutRayActor):
    """OpenRLHF's `RolloutRayActor`, which fails with the first error of vLLM's processes."""

    async def __init__(self, *args, **kwargs):
        asyncio.get_running_loop().set_task_factory(task_without_exit)
        try:
            with exit_is_an_error():  # an agent's file is executed here
                await super().__init__(*args, **kwargs)
        except RuntimeError as error:
            # vLLM's processes write to this actor's log. "See root cause above" means that the cause is only there.
            if "root cause" not in str(error) or not (cause := first_logged_error(own_log())):
                raise
            raise RuntimeError(f"vLLM did not start: {cause}") from error

    async def generate_responses(self, *args, **kwargs) -> list[dict]:
        """The responses to one prompt."""
        return scored_by_the_others(await super().generate_responses(*args, **kwargs))


def task_without_exit(loop: asyncio.AbstractEventLoop, awaited: Any, **named: Any) -> asyncio.Task:
    """A task factory: `sys.exit` in a task, such as an agent's of the user's own, is an error of that task alone.

    asyncio raises it in the event loop too, not only where the task is awaited, and the engine never answers again.
    """
    return asyncio.Task(_without_exit(awaited), loop=loop, **named)


async def _without_exit(awaited: Any) -> Any:
    with exit_is_an_error():
        return await awaited


def scored_by_the_others(responses: list[dict]) -> list[dict]:
    """Give a response without a finite reward the mean score of the others, so that dynamic filtering, which goes by
    the mean of a group's scores, decides as it would without it. Without others its score is left as it is."""
    scores = [only_number(response.get("scores")) for response in responses]
    rewards = [only_number(response.get("reward")) for response in responses]
    valid = [reward is not None and math.isfinite(reward) for reward in rewards]
    known = [float(score) for score, is_valid in zip(scores, valid, strict=True) if is_valid and score is not None]
    known = [score for score in known if math.isfinite(score)]
    if all(valid) or not known:
        return responses
    mean = fmean(known)
    return [
        response if is_valid else {**response, "scores": mean}
        for response, is_valid in zip(responses, valid, strict=True)
    ]


def own_log() -> str:
    """What this process and its children wrote to the file that is their standard output; "" if that is no file.

    Under `RAY_LOG_TO_STDERR=1` it is a pipe, whose end never comes.
    """
    if not stat.S_ISREG(os.fstat(1).st_mode):
        return ""
    return Path("/proc/self/fd/1").read_text(errors="replace")


def first_logged_error(log: str) -> str | None:
    """The first exception that vLLM's processes logged, with all lines of its message; None if there is none."""
    lines = re.findall(r"^\((?:EngineCore|Worker)\S* pid=\d+\) ERROR .*?\] ?(.*)$", log, re.M)
    for start, line in enumerate(lines):
        if re.match(r"[\w.]+(?:Error|Exception)\b", line):
            below = itertools.takewhile(lambda line: not TRACEBACK.match(line), lines[start + 1 :])
            return "\n".join([line, *below]).rstrip()
    return None
