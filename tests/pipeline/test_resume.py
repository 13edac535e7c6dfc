"""A job that lost a rank goes on, past checkpoints that were cut short: with a method of one's own and the entropy
bonus, under PI, with a target that is a percentage of the first entropy and moves.

ALL_METHODS=1 bash launch/test.sh tests/pipeline/test_resume.py tries every method; actor_group/test_actor_group.py
trains with every one, without a job of its own.
"""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import CONTROL_FIGURES, OFF_POLICY_KL, ON_POLICY_KL, ROOT, assert_sound, cut_short, job_flags, run_job
from kill_jobs import killed_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_stare.actor_group.checkpoints import newest_complete
from openrlhf_stare.methods import base

OWN = str(ROOT / "tests/pipeline/methods/surprisal_weights.py")
ALL = ["stare+entropy_bonus", *base.names()] if os.environ.get("ALL_METHODS") else []
# In percent of the first entropy, in lines to the end: so high that the effort grows with every rollout.
TARGET, LOWER_TARGET, END, ANNEAL, K_I = 400, 380, 300, 10, 0.1


@pytest.mark.parametrize("policy_loss", [*ALL, f"{OWN}+entropy_bonus"], ids=base.name_of)
def test_a_job_that_lost_a_rank_goes_on_from_the_newest_checkpoint_complete_in_actor_and_critic(
    addends, tmp_path, cluster, policy_loss
):
    # Two optimizer steps on a rollout, since kl_cov and ce_gppo do nothing in the first.
    flags = [*job_flags(addends, tmp_path), "--train.batch_size", "16", "--train.micro_batch_size", "8"]
    flags += ["--data.max_samples", "16", "--policy_loss", policy_loss, "--ckpt.load_enable", "--console", "compact"]
    flags += "--advantage_estimator gae --critic.num_gpus_per_node 1 --ckpt.save_steps 1".split()
    method = base.chosen(policy_loss)
    strength = next(iter(base.strength_figures(method() if method else None)), None)
    if strength:
        flags += f"--entropy.schedule pi --entropy.target {TARGET}% --entropy.k_p 0 --entropy.k_i {K_I}".split()
        flags += f"--entropy.target_end {END}% --entropy.anneal_rollouts {ANNEAL}".split()
    # A job was killed while it saved its first checkpoint.
    checkpoints = tmp_path / "checkpoints"
    begun = checkpoints / "_actor/global_step1"
    begun.mkdir(parents=True)
    (begun / "manifest.json").touch()
    # Step 3 is shown right before its checkpoint is written. OpenRLHF keeps three: that of step 1 is still there.
    job, kill = killed_job(flags, tmp_path, "actor rank", shown="step 3/4")
    assert kill.pid and not kill.problems(job), f"{kill}: {kill.problems(job)}\n{job.output[-4000:]}"
    assert f"the last lines of process {kill.pid}:\n  " in job.output
    log = (checkpoints / "output.log").read_text()
    # Said at the start, in the file too; the path's sibling has no checkpoints.
    beginning = f"no checkpoint in {checkpoints} (global_step1 was only begun): started from the beginning"
    assert f"openrlhf-stare: {beginning}" in log and f"openrlhf-stare: {beginning}" in job.output
    folders = [checkpoints / "_actor", checkpoints / "_critic"]
    newest, _ = newest_complete(folders)
    assert newest in ("global_step2", "global_step3")

    cut_short(checkpoints / "_critic" / newest)
    kept = int(newest[-1]) - 1
    # The kill may have come while the next one was being saved. The one that a `latest` names comes first.
    tag, passed_over = newest_complete(folders)
    assert tag == f"global_step{kept}" and {newest} == {*passed_over} - {f"global_step{kept + 2}"}
    job = run_job(flags, tmp_path / "other type", env={"OPENRLHF_STARE_CPU_DTYPE": "bfloat16"}, cluster=cluster)
    assert job.status == 2 and "whose job computed in float32, and this one computes in bfloat16: set" in job.output
    others = "--train.async_enable --console full --actor.max_norm 0.9".split()
    others += "--actor.adam.eps 1e-7 --critic.adam.eps 1e-7".split()
    if strength:
        others += ["--entropy.target", f"{LOWER_TARGET}%"]
    second = {}

    def start_a_second(process, mark) -> None:
        """Two in one folder: the second is refused while the first one runs, and so is a new run."""
        owner = checkpoints / "job.lock"
        while process.poll() is None and f'"pid": {process.pid}' not in owner.read_text():
            time.sleep(0.1)
        for name, words in (("resumes", flags), ("new", [word for word in flags if word != "--ckpt.load_enable"])):
            command = [sys.executable, "-m", "openrlhf_stare.train_ray", *words]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            second[name] = subprocess.run(command, cwd=ROOT, text=True, timeout=200, **streams)
        second["owner"] = process.pid

    job = run_job([*flags, *others], tmp_path, cluster=cluster, meanwhile=start_a_second)  # no matter where it began
    assert second["resumes"].returncode == second["new"].returncode == 2
    sentence = (
        f"--ckpt.path {checkpoints} is used by another job (process {second['owner']} on {socket.gethostname()})"
    )
    assert f"train_ray: error: {sentence}: end it or give another folder" in second["resumes"].stdout
    refusal = f"--ckpt.path {checkpoints} has checkpoints of another run (global_step"
    assert refusal in second["new"].stdout and "add --ckpt.load_enable to go on with" in second["new"].stdout
    assert "was ended by force" not in job.output  # the rank was killed, and not the job
    assert f"Resuming from checkpoint {tag}, past the incomplete {', '.join(passed_over)}" in job.output
    changes = "train.async_enable False -> True, actor.max_norm 1.0 -> 0.9"
    assert f"The checkpoint was made with other flags ({changes}): from here on this job's hold" in job.output
    for model in ("actor", "critic"):  # told by the rank that has it
        assert f"--{model}.adam.eps 1e-07 has no effect: the job goes on with the checkpoint's" in job.output
    for model in ("_actor", "_critic"):
        saved = sorted(path.name for path in (checkpoints / model).glob("global_step*"))
        assert saved == ["global_step2", "global_step3", "global_step4"]
    # The steps after the checkpoint were taken twice.
    steps = steps_of(tmp_path / "tensorboard", "train/actor_grad_norm")
    assert_sound(job, steps=len(steps), vllm_kl=OFF_POLICY_KL)
    first, second = steps[: -(4 - kept)], steps[-(4 - kept) :]
    assert first == [1, 2, 3][: len(first)] and second == list(range(kept + 1, 5))
    # Before the async job, and in its first step: its engine has the checkpoint's weights.
    assert all(abs(kl) < ON_POLICY_KL for kl in job.scalars["vllm_kl"][: len(first) + 1])
    assert CONTROL_FIGURES <= job.scalars.keys()
    assert all(0 < share <= 1 for share in job.scalars["entropy/authority"])
    if strength:
        assert (
            f"The flags win where the checkpoint differs (entropy.target {TARGET}% -> {LOWER_TARGET}%); "
            "the controller goes on from the checkpoint"
        ) in job.output
        assert re.search(rf"This run started at an entropy of .*--entropy.target {LOWER_TARGET}% is", job.output)
        # Percentages of the run's first entropy, on both sides of the kill, and the rollouts before it count.
        h_0 = job.scalars["entropy/mean"][0] / 100
        starts = [TARGET] * len(first) + [LOWER_TARGET] * len(second)
        targets = [
            h_0 * (start + (END - start) * (step - 1) / ANNEAL) for start, step in zip(starts, steps, strict=True)
        ]
        assert job.scalars["entropy/target"] == pytest.approx(targets)
        # PI's sum goes on from the checkpoint, and not from where the job was killed.
        added = [K_I * (1 - mean / target) for mean, target in zip(job.scalars["entropy/mean"], targets, strict=True)]
        taken = [added[:step] for step in first] + [
            added[:kept] + added[len(first) :][: step - kept] for step in second
        ]
        assert job.scalars["entropy/effort"] == pytest.approx([sum(one) for one in taken])
        assert len(set(job.scalars[strength])) == len(steps) and all(job.scalars["entropy/gate_on"])


def steps_of(folder: Path, tag: str) -> list[int]:
    steps = []
    for events in sorted(folder.rglob("events.out.*")):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        steps += [event.step for event in accumulator.Scalars(tag)]
    return steps
