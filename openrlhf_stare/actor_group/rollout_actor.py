"""The vLLM engine's Ray actor: OpenRLHF's, which says why vLLM did not start and does not outlive it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import re
import sys
import threading
from pathlib import Path

import openrlhf.trainer.ray.vllm_engine as vllm_engine


class StareRolloutActor(vllm_engine.RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's `RolloutRayActor`, which ends when its engine core has died.

    vLLM never answers a call that its engine core had not finished by then; Ray answers for an actor that died.
    """

    async def __init__(self, *args, **kwargs):
        try:
            await super().__init__(*args, **kwargs)
        except RuntimeError as error:
            if "root cause" not in str(error) or not (cause := _first_logged_error()):
                raise
            raise RuntimeError(f"vLLM did not start: {cause}") from error
        if cores := multiprocessing.active_children():  # none where vLLM runs its core in this process
            threading.Thread(target=_end_with, args=(cores,), daemon=True).start()


def _first_logged_error() -> str | None:
    # vLLM's processes write to this actor's log, and where it says "See root cause above" the cause stands only there.
    log = Path("/proc/self/fd/1").read_text(errors="replace")
    found = re.search(r"^\((?:EngineCore|Worker)\S* pid=\d+\) ERROR .*?\] ([\w.]+(?:Error|Exception): .*)", log, re.M)
    return found and found[1]


def _end_with(cores: list) -> None:
    # Not Process.join: one waiter alone gets the exit code, which vLLM itself waits for.
    multiprocessing.connection.wait([core.sentinel for core in cores])
    print("vLLM's engine core ended, and this engine ends with it", file=sys.stderr, flush=True)
    os._exit(1)
