"""The vLLM engine's Ray actor on a CPU."""

from __future__ import annotations

import os
from typing import Any

import openrlhf.trainer.ray.vllm_engine as vllm_engine

from openrlhf_stare.cpu import precision, threads
from openrlhf_stare.replacing import plain_class

RolloutRayActor: Any = plain_class(vllm_engine.RolloutRayActor)


class CpuRolloutActor(RolloutRayActor):
    """The engine's actor, which proves that our changes are in place in vLLM's worker.

    vLLM only logs a plugin that fails or is filtered, and the engine would then train on stale weights. OpenRLHF's
    engines hold their weights in bfloat16; this one computes in the type that the ranks do.
    """

    async def __init__(self, *args, **kwargs):
        if number := threads.of(threads.OF_ENGINE):
            os.environ["OMP_NUM_THREADS"] = str(number)  # vLLM's process has this one's environment
        await super().__init__(*args, **{**kwargs, "dtype": precision.chosen()})
        remedy = "let vLLM load the plugin openrlhf_stare (VLLM_PLUGINS filters it?), or set no VLLM_PLUGINS"
        try:
            answers = await self.llm.collective_rpc("repacked_layers")
        except Exception as error:
            raise RuntimeError(f"openrlhf-stare is not in place in vLLM's worker: {remedy}") from error
        if any(answers):
            raise RuntimeError(
                f"vLLM repacked the weights of {answers[0][0]}, so no weight sync would reach it: "
                f"use a dense model, and {remedy}"
            )
