"""A job that lost a rank goes on, past checkpoints that were cut short."""

from pathlib import Path

import pytest
from jobs import assert_sound, cut_short, job_flags, run_job
from kill_jobs import killed_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_stare.fixes.checkpoints import newest_complete


def test_a_job_that_lost_a_rank_goes_on_from_the_newest_checkpoint_complete_in_actor_and_critic(addends, tmp_path):
    flags = [*job_flags(addends, tmp_path), "--data.max_samples", "16", "--entropy.target", "3", "--ckpt.load_enable"]
    flags += "--advantage_estimator gae --critic.num_gpus_per_node 1 --entropy.schedule adaptive".split()
    flags += "--entropy.step 0.1 --ckpt.save_steps 1 --ckpt.max_num 2 --console compact".split()
    # A job was killed while it saved its first checkpoint.
    checkpoints = tmp_path / "checkpoints"
    begun = checkpoints / "_actor/global_step1"
    begun.mkdir(parents=True)
    (begun / "manifest.json").touch()
    # Step 3 is shown right before its checkpoint is written.
    job, kill = killed_job(flags, tmp_path, "actor rank", shown="step 3/4")
    assert kill.pid and not kill.problems(job), f"{kill}: {kill.problems(job)}\n{job.output[-4000:]}"
    assert f"the last lines of process {kill.pid}:\n  " in job.output
    log = (checkpoints / "output.log").read_text()
    assert "was ever finished (global_step1 was only begun): starting from the beginning" in log
    newest, _ = newest_complete([checkpoints / "_actor", checkpoints / "_critic"])
    assert newest in ("global_step2", "global_step3")

    cut_short(checkpoints / "_critic" / newest)
    kept = int(newest[-1]) - 1
    job = run_job([*flags, "--entropy.target", "2.5", "--console", "full"], tmp_path)
    assert f"Resuming from checkpoint global_step{kept}, past the incomplete {newest}" in job.output
    assert (
        "The flags win where the checkpoint differs (entropy.target 3.0 -> 2.5); "
        "the controller goes on from the checkpoint"
    ) in job.output
    for model in ("_actor", "_critic"):
        saved = sorted(path.name for path in (checkpoints / model).glob("global_step*"))
        assert saved == ["global_step3", "global_step4"]
    # The steps after the checkpoint were taken twice, with the strength that they had the first time.
    steps = steps_of(tmp_path / "tensorboard", "train/stare/reweight_w")
    assert_sound(job, steps=len(steps))
    first, second = steps[: -(4 - kept)], steps[-(4 - kept) :]
    assert first == [1, 2, 3][: len(first)] and second == list(range(kept + 1, 5))
    assert job.scalars["stare/reweight_w"] == pytest.approx([1.1 + 0.1 * step for step in steps])
    assert job.scalars["entropy/target"] == [3] * len(first) + [2.5] * len(second)


def steps_of(folder: Path, tag: str) -> list[int]:
    steps = []
    for events in sorted(folder.rglob("events.out.*")):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        steps += [event.step for event in accumulator.Scalars(tag)]
    return steps
