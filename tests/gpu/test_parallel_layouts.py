"""Ring attention and tensor parallelism, where two ranks hold the same responses: a token counts once all the same.

`launch/test.sh tests/gpu` on a machine with two GPUs. Without them the arithmetic alone is tested, by
tests/distributed/test_thresholds_gloo.py with duplicated ranks.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openrlhf_stare import surprisal_thresholds

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="ring attention and tensor parallelism need two GPUs"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("addends")
    subprocess.run([sys.executable, ROOT / "launch/addends/make.py", folder, "--prompts", "16"], check=True)
    return folder / "model"


@pytest.mark.parametrize(
    "flags",
    [["--ds.ring_attn_size", "2", "--ds.packing_samples"], ["--ds.tensor_parallel_size", "2"]],
    ids=["ring attention", "tensor parallel"],
)
def test_duplicated_ranks_count_once(model, flags):
    if "--ds.ring_attn_size" in flags:
        pytest.importorskip("ring_flash_attn")
    import ray
    from harness import ActorGroup, fixed_experiences, start_ray, tokens

    batch = "--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2 --stare.target_entropy 9".split()
    start_ray(gpus=2)
    try:
        with ActorGroup(model, ranks=2, flags=[*batch, *flags]) as group:
            experiences = fixed_experiences()
            group.forward(experiences)
            statuses = group.fit(experiences)
            log_probs, advantages = tokens(experiences)
            taus = surprisal_thresholds(-log_probs, advantages, top_p_ratio=0.1)
            assert group.run("thresholds") == [tuple(float(tau) for tau in taus)] * 2
            assert statuses[0] == statuses[1]
            critical = (-log_probs >= taus[0]) & (advantages > 0)
            assert statuses[0]["stare/positive_reweight_ratio"] == pytest.approx(critical.double().mean().item())
    finally:
        ray.shutdown()
