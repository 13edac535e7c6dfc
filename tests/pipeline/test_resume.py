"""Resuming from a checkpoint: the step after it bit for bit, and whole jobs, past checkpoints that were cut short."""

import json
import os
from pathlib import Path

import pytest
import ray
import torch
from harness import ActorGroup, fixed_experiences, start_ray
from jobs import assert_sound, job_flags, run_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

BATCH = "--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2 --stare.variant C2".split()
SCHEDULES = {
    "adaptive": "--entropy.schedule adaptive --entropy.step 0.05 --entropy.target 9".split(),
    "pi": "--entropy.schedule pi --stare.w_max 20 --entropy.target 3".split(),
}


def cut_short(checkpoint: Path) -> None:
    """The last byte of a rank's optimizer states is missing."""
    file = sorted(checkpoint.glob("*optim_states.pt"))[-1]
    os.truncate(file, file.stat().st_size - 1)


class TestInTheActorGroup:
    @pytest.fixture(scope="class")
    @classmethod
    def groups(cls, addends):
        """Two ranks that save and two, in processes of their own, that resume."""
        start_ray(gpus=4)
        with ActorGroup(addends / "model", ranks=2, flags=None) as saving:
            with ActorGroup(addends / "model", ranks=2, flags=None) as resuming:
                yield saving, resuming
        ray.shutdown()

    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_the_step_after_a_resume_is_that_of_the_uninterrupted_run(self, groups, tmp_path, schedule):
        flags = [*BATCH, *SCHEDULES[schedule], "--ckpt.path", str(tmp_path)]
        saving, resuming = groups
        saving.start(flags)
        first, second = self.step(saving, 1), self.step(saving, 2)
        saving.run("save_checkpoint", "global_step2", {"global_step": 2})
        third = self.step(saving, 3)
        saving.run("save_checkpoint", "global_step3", {"global_step": 3})
        cut_short(tmp_path / "_actor/global_step3")

        resuming.start([*flags, "--ckpt.load_enable"])
        assert [states["global_step"] for states in resuming.run("get_checkpoint_states")] == [2, 2]
        assert_same(self.state(resuming), {name: second[name] for name in ("controller", "parameters", "masters")})
        assert_same(self.step(resuming, 3), third)

        # What was compared had something to lose.
        assert second["controller"][0]["updates"] == 2 and second["status"][0]["entropy/gate_on"] == 1
        assert first["controller"] != second["controller"] != third["controller"]
        if schedule == "pi":
            assert 0 < second["controller"][0]["integral"] < 1
        assert all(not torch.equal(second["masters"][name], third["masters"][name]) for name in third["masters"])

    def test_where_every_checkpoint_is_damaged_the_job_ends_with_a_sentence(self, groups, tmp_path):
        checkpoint = tmp_path / "_actor/global_step1"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text(json.dumps({"time": 0, "files": {"mp_rank_00_model_states.pt": 9}}))
        with pytest.raises(ray.exceptions.RayTaskError, match=r"No checkpoint .* any more \(global_step1\): bring"):
            groups[1].start([*BATCH, "--ckpt.path", str(tmp_path), "--ckpt.load_enable"])

    @classmethod
    def step(cls, group: ActorGroup, number: int) -> dict:
        """A rollout, the same for the same number: what `fit` reports, and the state that it leaves."""
        group.run("seed")
        experiences = fixed_experiences(seed=number)
        group.forward(experiences)
        status = group.fit(experiences)
        for figures in status:
            del figures["entropy/seconds"]
        return {"status": status, "thresholds": group.run("thresholds"), **cls.state(group)}

    @staticmethod
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


def test_a_job_goes_on_from_the_newest_checkpoint_that_is_complete_in_actor_and_critic(addends, tmp_path):
    flags = [*job_flags(addends, tmp_path), "--data.max_samples", "12", "--entropy.target", "3"]
    flags += ["--advantage_estimator", "gae", "--critic.num_gpus_per_node", "1"]
    flags += [
        "--entropy.schedule",
        "adaptive",
        "--entropy.step",
        "0.1",
        "--ckpt.save_steps",
        "1",
        "--ckpt.max_num",
        "2",
    ]
    flags += ["--ckpt.load_enable"]
    # A job was killed while it saved its first checkpoint.
    begun = tmp_path / "checkpoints/_actor/global_step1"
    begun.mkdir(parents=True)
    (begun / "manifest.json").touch()
    job = run_job(flags, tmp_path)
    assert_sound(job, steps=3)
    assert "was ever finished (global_step1 was only begun): starting from the beginning" in job.output
    for model in ("_actor", "_critic"):
        saved = sorted(path.name for path in (tmp_path / "checkpoints" / model).glob("global_step*"))
        assert saved == ["global_step2", "global_step3"]

    cut_short(tmp_path / "checkpoints/_critic/global_step3")
    job = run_job([*flags, "--entropy.target", "2.5"], tmp_path)
    assert_sound(job, steps=3 + 1)
    assert "Resuming from checkpoint global_step2, past the incomplete global_step3" in job.output
    assert (
        "The flags win where the checkpoint differs (entropy.target 3.0 -> 2.5); "
        "the controller goes on from the checkpoint"
    ) in job.output
    # The third rollout was made twice, its prompts the last four both times.
    assert steps_of(tmp_path / "tensorboard", "train/stare/reweight_w") == [1, 2, 3, 3]
    assert job.scalars["stare/reweight_w"] == pytest.approx([1.2, 1.3, 1.4, 1.4])
    assert job.scalars["entropy/target"] == [3, 3, 3, 2.5]


def steps_of(folder: Path, tag: str) -> list[int]:
    steps = []
    for events in sorted(folder.rglob("events.out.*")):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        steps += [event.step for event in accumulator.Scalars(tag)]
    return steps
