"""`python -m openrlhf_stare.cpu.byte_code trainer|engine`: writes the byte code of what a job imports.

The installer calls it once. Without it each of a job's processes compiles some thousand modules at its first start,
and at every start where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import importlib
import os
import sys

from openrlhf_stare import cpu

PARTS = {
    "trainer": (
        "openrlhf_stare.actor_group.policy_actor",
        "openrlhf.trainer.ppo_trainer_async",
        "torch.utils.tensorboard",
    ),
    "engine": ("openrlhf.trainer.ray.vllm_engine", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2"),
}


def main() -> None:
    os.environ.update(cpu.environment())
    cpu.install()
    for module in PARTS[sys.argv[1]]:
        importlib.import_module(module)


if __name__ == "__main__":
    main()
