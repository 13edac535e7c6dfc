"""The vLLM engine's Ray actor on a CPU."""

from __future__ import annotations

import openrlhf.trainer.ray.vllm_engine as vllm_engine

from openrlhf_stare.replacing import plain_class


class CpuRolloutActor(plain_class(vllm_engine.RolloutRayActor)):
    """The engine's actor, which proves that our changes are in place in vLLM's worker.

    vLLM only logs a plugin that fails or is filtered, and the engine would then train on stale weights.
    """

    async def __init__(self, *args, **kwargs):
        await super().__init__(*args, **kwargs)
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
