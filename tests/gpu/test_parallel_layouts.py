"""Ring attention and tensor parallelism, where two ranks hold the same responses: a token counts once all the same.

`launch/test.sh gpu` on a machine with two GPUs, or four. In tests/pipeline/actor_group/ test_with_parallel_layouts.py
tries the same without a GPU, but for the kernels.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="ring attention and tensor parallelism need two GPUs"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("addends")
    subprocess.run([sys.executable, ROOT / "launch/addends/make.py", folder, "--prompts", "16"], check=True)
    return folder / "model"


no_flash_attn = pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn")


@pytest.mark.parametrize("layout", [pytest.param("ring attention", marks=no_flash_attn), "tensor parallel"])
def test_duplicated_ranks_count_once(model, layout):
    import ray
    from harness import ActorGroup, start_ray
    from layouts import BATCH, LAYOUTS, assert_duplicated_ranks_count_once

    ranks = 4 if torch.cuda.device_count() >= 4 else 2
    start_ray(gpus=ranks)
    try:
        with ActorGroup(model, ranks=ranks, duplicates=2, flags=[*BATCH, *LAYOUTS[layout]]) as group:
            assert_duplicated_ranks_count_once(group)
    finally:
        ray.shutdown()
