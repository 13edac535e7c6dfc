"""The vLLM engine's Ray actor: OpenRLHF's, which says why vLLM did not start."""

from __future__ import annotations

import re
from pathlib import Path

import openrlhf.trainer.ray.vllm_engine as vllm_engine


class StareRolloutActor(vllm_engine.RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's `RolloutRayActor`, which fails with the first error of vLLM's processes."""

    async def __init__(self, *args, **kwargs):
        try:
            await super().__init__(*args, **kwargs)
        except RuntimeError as error:
            if "root cause" not in str(error) or not (cause := _first_logged_error()):
                raise
            raise RuntimeError(f"vLLM did not start: {cause}") from error


def _first_logged_error() -> str | None:
    # vLLM's processes write to this actor's log, and where it says "See root cause above" the cause stands only there.
    log = Path("/proc/self/fd/1").read_text(errors="replace")
    found = re.search(r"^\((?:EngineCore|Worker)\S* pid=\d+\) ERROR .*?\] ([\w.]+(?:Error|Exception): .*)", log, re.M)
    return found and found[1]
