"""What a user runs after `launch/install.sh gpu`: `launch/test.sh gpu`."""

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest
import torch
from jobs import BFLOAT16_KL, ROOT, assert_figures, assert_sound, job_flags, run_job
from packaging.requirements import Requirement

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_what_openrlhf_asks_for_is_installed():
    """With its extras: vLLM, ring attention and Liger's kernels."""
    extras = [{"extra": extra} for extra in ("", "vllm", "ring", "liger")]
    asked = [Requirement(text) for text in importlib.metadata.requires("openrlhf")]
    asked = [need for need in asked if not need.marker or any(need.marker.evaluate(extra) for extra in extras)]
    for need in asked:
        if need.name == "flash-attn":  # launch/install.sh says whether, and which
            continue
        assert need.specifier.contains(importlib.metadata.version(need.name), prereleases=True), str(need)


needs_flash_attn = pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn: FLASH_ATTN=1 bash launch/install.sh gpu"
)


@pytest.mark.parametrize(
    "module", [pytest.param("ring_flash_attn", marks=needs_flash_attn), "liger_kernel.transformers"]
)
def test_what_a_flag_of_openrlhf_imports_is_there(module):
    from openrlhf.models.ring_attn_utils import patch_transformers_for_ring_flash_attn

    patch_transformers_for_ring_flash_attn()
    importlib.import_module(module)


@needs_flash_attn
def test_flash_attention_gives_what_torch_gives():
    from flash_attn import flash_attn_func

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = torch.randn(3, 2, 64, 4, 32, device="cuda", dtype=torch.bfloat16, generator=generator)
    ours = flash_attn_func(q, k, v, causal=True)
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    torchs = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(ours, torchs, atol=2e-2, rtol=2e-2)


def test_a_job_trains_on_one_gpu(tmp_path):
    """Actor and engine take turns on it, with sleeping weights, packing and dynamic batches, and flash attention if
    that is installed."""

    make = [sys.executable, ROOT / "launch/addends/make.py", tmp_path, "--prompts", "12"]
    subprocess.run(make, check=True, timeout=300)
    flags = job_flags(tmp_path, tmp_path)
    flags += "--actor.num_gpus_per_node 1 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep".split()
    flags += "--vllm.gpu_memory_utilization 0.3 --ds.packing_samples --train.dynamic_batch_enable".split()
    job = run_job([*flags, "--actor.gradient_checkpointing_enable"], tmp_path, timeout=900)
    assert_sound(job, steps=3, vllm_kl=BFLOAT16_KL)
    assert_figures(job, rollouts=3)
