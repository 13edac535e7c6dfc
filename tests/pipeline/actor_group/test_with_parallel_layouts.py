"""Ring attention and tensor parallelism on four ranks without a GPU, as far as dealing, reduction and figures go.

With GPUs tests/gpu/test_parallel_layouts.py tries the same with the real kernels. By its name this file comes last of
those that share the ranks: DeepSpeed keeps the tensor parallelism of a process for as long as that lives.
"""

import json

import pytest
import ray
import torch
from harness import fixed_experiences
from layouts import BATCH, LAYOUTS, assert_duplicated_ranks_count_once

RANKS = 4


@pytest.fixture(scope="module")
def ranks(group_of):
    group = group_of(RANKS)
    group.group.duplicate_actors = 2
    yield group
    group.group.duplicate_actors = 1


def test_with_ring_attention_duplicated_ranks_count_once(ranks):
    ranks.start([*BATCH, *LAYOUTS["ring attention"]])
    assert_duplicated_ranks_count_once(ranks)


def test_with_ring_attention_the_fused_head_has_the_labels_of_the_neighbours_tokens(ranks):
    log_probs = []
    for head in ([], ["--actor.fused_head"]):
        ranks.start([*BATCH, *LAYOUTS["ring attention"], *head])
        log_probs.append(ranks.forward(fixed_experiences()))
    for plain, fused in zip(*log_probs, strict=True):
        assert torch.allclose(fused, plain, rtol=1e-5, atol=1e-6)


class TestSaving:
    """With ZeRO-3, which shards over all four ranks."""

    @pytest.fixture(autouse=True)
    def started(self, ranks, tmp_path):
        ranks.start([*BATCH, *LAYOUTS["ring attention"], "--ckpt.path", str(tmp_path)])

    def test_every_rank_reports_the_files_that_it_wrote(self, ranks, tmp_path):
        ranks.run("save_on_a_disk_of_its_own", str(tmp_path), "global_step1")
        manifest = json.loads((tmp_path / "0/_actor/global_step1/manifest.json").read_text())
        written = {path.name: path.stat().st_size for path in tmp_path.glob("*/_actor/global_step1/*.pt")}
        assert len(written) == 2 * RANKS
        metric = (tmp_path / "0/_actor/global_step1/metric.json").stat().st_size
        assert manifest["files"] == {**written, "metric.json": metric}
        # Of which rank 0 has a quarter.
        assert len(list((tmp_path / "0/_actor/global_step1").glob("*.pt"))) == 2

    def test_a_value_of_one_rank_that_is_not_finite_ends_the_save_on_all(self, ranks, tmp_path):
        ranks.run("save_checkpoint", "global_step1")
        ranks.run("spoil", rank=1)
        for result in ranks.group.async_run_method("save_checkpoint", "global_step2"):
            with pytest.raises(ray.exceptions.RayTaskError, match="1 values in the actor's parameters are not finite"):
                ray.get(result, timeout=60)
        assert (tmp_path / "_actor/latest").read_text() == "global_step1"
        assert not (tmp_path / "_actor/global_step2").exists()
        for file in (tmp_path / "_actor/global_step1").glob("*optim_states.pt"):
            for weights in torch.load(file, weights_only=False)["optimizer_state_dict"]["fp32_flat_groups"]:
                assert torch.isfinite(weights).all()
        for result in ranks.group.async_run_method("save_model"):
            with pytest.raises(ray.exceptions.RayTaskError, match="and the final model was not written"):
                ray.get(result, timeout=60)


def test_with_tensor_parallelism_duplicated_ranks_count_once(ranks, monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU_DTYPE", "bfloat16")  # OpenRLHF's has no other type
    ranks.start([*BATCH, *LAYOUTS["tensor parallel"]])
    assert_duplicated_ranks_count_once(ranks)
