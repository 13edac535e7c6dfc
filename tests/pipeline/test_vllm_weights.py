"""Every weight that is sent to a vLLM CPU engine reaches it.

The engine is real, and so is the way of a weight sync; see vllm_weights.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_weights
from jobs import Job, problems

CHANGED = 1.0  # log-probs that differ by more are those of other weights (they differ by several nats)
SAME = 1e-4  # and by less, the same
REPACKED = 0.2  # and the same for repacked layers, which round to bfloat16 where the CPU multiplies in it (0.012 seen)


def sync_weights(addends: Path, output: Path, work_around: str) -> dict:
    program = [sys.executable, Path(__file__).with_name("vllm_weights.py"), addends / "model", output, work_around]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    ended = subprocess.run(
        program, env=environment, timeout=vllm_weights.TIME_LIMIT + 30, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def synced(addends, tmp_path_factory) -> dict:
    return sync_weights(addends, tmp_path_factory.mktemp("synced") / "found.json", "plugin")


def test_synced_weights_are_the_engines(synced):
    assert synced["repacked"] == []
    assert synced["gap"] < SAME
    for sent in ("lm_head", "all"):
        assert synced[sent]["gap_before_sync"] > CHANGED
        assert synced[sent]["errors"] == {}
        assert synced[sent]["gap_after_sync"] < SAME


def complaints(vllm_kl: float) -> list[str]:
    """What the tests of whole jobs say of one that logged this, and is sound otherwise."""
    return problems(Job(0, "", 0, [], {"actor_grad_norm": [1.0], "vllm_kl": [vllm_kl]}), steps=1)


@pytest.mark.parametrize("weight", vllm_weights.WITHHELD)
def test_a_single_weight_that_is_an_optimizer_step_old_fails_the_tests_of_jobs(synced, weight):
    assert complaints(synced["fresh"]) == []
    found = synced["withheld"][weight]
    assert found["error"] == "" and complaints(found["sent"]) == []
    [complaint] = complaints(found["stale"])
    assert complaint.startswith("vLLM does not have the actor's weights: vllm_kl")


@pytest.fixture(scope="module")
def without(addends, tmp_path_factory) -> dict:
    """The negative control. If its tests fail, vLLM keeps plain weights now and cpu.patches.plain_linear can go."""
    return sync_weights(addends, tmp_path_factory.mktemp("control") / "found.json", "no_work_around")


def test_without_the_work_around_the_repacked_layers_are_named(without):
    layers = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
    names = [f"model.layers.{number}.{layer}" for number in (0, 1) for layer in layers]
    assert without["repacked"] == ["model.embed_tokens", *names, "lm_head"]


def test_without_the_work_around_lm_head_is_ignored_silently(without):
    assert without["gap"] < REPACKED
    assert without["lm_head"]["errors"] == {}
    assert without["lm_head"]["gap_after_sync"] == without["lm_head"]["gap_before_sync"] > CHANGED


def test_without_the_work_around_a_head_that_is_an_optimizer_step_old_fails_the_tests_of_jobs(without):
    found = without["withheld"]["lm_head.weight"]
    assert found["error"] == "" and complaints(found["sent"])


def test_without_the_work_around_every_linear_is_refused(without):
    layers = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    names = {f"model.layers.{number}.{layer}.weight" for number in (0, 1) for layer in layers}
    assert without["all"]["errors"].keys() == names
    assert without["all"]["gap_after_sync"] > CHANGED
