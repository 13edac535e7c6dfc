"""Resuming from a checkpoint: the step after it, bit for bit."""

import json

import pytest
import ray
import torch
from harness import ActorGroup, fixed_experiences
from jobs import cut_short

BATCH = "--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2 --stare.variant C2".split()
SCHEDULES = {
    "adaptive": "--entropy.schedule adaptive --entropy.step 0.05 --entropy.target 9".split(),
    "pi": "--entropy.schedule pi --stare.w_max 20 --entropy.target 3".split(),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_step_after_a_resume_is_that_of_the_uninterrupted_run(group_of, tmp_path, schedule):
    """Past a checkpoint cut short and one with a flipped byte. In other processes it is in pipeline/test_resume.py."""
    flags = [*BATCH, *SCHEDULES[schedule], "--ckpt.path", str(tmp_path)]
    ranks = group_of(2)
    ranks.start(flags)
    first, second = step(ranks, 1), step(ranks, 2)
    ranks.run("save_checkpoint", "global_step2", {"global_step": 2})
    third = step(ranks, 3)
    ranks.run("save_checkpoint", "global_step3", {"global_step": 3})
    cut_short(tmp_path / "_actor/global_step3")
    ranks.run("save_checkpoint", "global_step4", {"global_step": 4})
    [file] = (tmp_path / "_actor/global_step4").glob("*_rank_1_*_optim_states.pt")  # which rank 1 reads
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)

    ranks.start([*flags, "--ckpt.load_enable"])
    assert [states["global_step"] for states in ranks.run("get_checkpoint_states")] == [2, 2]
    assert_same(state(ranks), {name: second[name] for name in ("controller", "parameters", "masters")})
    assert_same(step(ranks, 3), third)

    # What was compared had something to lose.
    assert second["controller"][0]["updates"] == 2 and second["status"][0]["entropy/gate_on"] == 1
    assert first["controller"] != second["controller"] != third["controller"]
    if schedule == "pi":
        assert 0 < second["controller"][0]["integral"] < 1
    assert all(not torch.equal(second["masters"][name], third["masters"][name]) for name in third["masters"])


def test_where_every_checkpoint_is_damaged_the_job_ends_with_a_sentence(group_of, tmp_path):
    checkpoint = tmp_path / "_actor/global_step1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text(json.dumps({"time": 0, "files": {"mp_rank_00_model_states.pt": 9}}))
    with pytest.raises(ray.exceptions.RayTaskError, match=r"No checkpoint .* any more \(global_step1\): bring"):
        group_of(2).start([*BATCH, "--ckpt.path", str(tmp_path), "--ckpt.load_enable"])


def step(group: ActorGroup, number: int) -> dict:
    """A rollout, the same for the same number: what `fit` reports, and the state that it leaves."""
    group.run("seed")
    experiences = fixed_experiences(seed=number)
    group.forward(experiences)
    status = group.fit(experiences)
    for figures in status:
        del figures["entropy/seconds"]
    return {"status": status, "thresholds": group.run("thresholds"), **state(group)}


def state(group: ActorGroup) -> dict:
    parameters, masters = group.run("parameters"), group.run("master_weights")
    assert_same(*parameters)
    return {"controller": group.run("controller_state"), "parameters": parameters[0], "masters": masters[0]}


def assert_same(one: dict, other: dict) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            assert_same(value, other[name])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name
