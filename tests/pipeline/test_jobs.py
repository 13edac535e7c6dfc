"""Whole training jobs of a few steps: `train_ray` with real Ray, DeepSpeed ZeRO-3 and vLLM."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from jobs import BFLOAT16_KL, ON_POLICY_KL, ROOT, assert_figures, assert_sound, job_flags, marked_processes, run_job
from kill_jobs import killed_job, last_line
from safetensors.torch import load_file

from openrlhf_stare.actor_group.checkpoints import is_complete


def test_openrlhfs_loss_with_an_uneven_rollout_and_nan_rewards_until_the_policy_collapses(addends, tmp_path, cluster):
    # 3 prompts × 4 responses in micro-batches of 4 make 3 for 2 ranks, on which ZeRO-3 hangs: one prompt is left out.
    flags = job_flags(addends, tmp_path, prompts=3, samples=4, micro_batch=4)
    flags += ["--train.batch_size", "8", "--data.max_samples", "12", "--policy_loss", "openrlhf"]
    flags += ["--reward.remote_url", str(ROOT / "tests/pipeline/rewards/sometimes_nan.py")]
    flags += ["--train.micro_batch_size", "4", "--ckpt.save_steps", "1", "--ckpt.save_hf"]
    # No policy over 16 tokens has an entropy of 9 nats, so the third rollout of four is the last.
    flags += ["--entropy.stop_below", "9", "--entropy.stop_after", "3"]
    job = run_job([*flags, "--console", "compact"], tmp_path, cluster=cluster)
    assert job.status == 1 and job.left_over == [], job.output[-4000:]
    assert "the policy has collapsed. Go on from an earlier checkpoint" in last_line(job)
    assert len(job.output.splitlines()) <= 60 and re.search(r"^the last lines of process \d+:\n  ", job.output, re.M)
    quoted = r"ZeroDivisionError: division by zero \(\S+/sometimes_nan.py, line 18\) for the prompt '\d\d='"
    assert re.search(rf"^openrlhf-stare: The reward function raised {quoted}", job.output, re.M)
    assert (tmp_path / "checkpoints/_actor/latest").read_text() == "global_step2"
    assert is_complete(tmp_path / "checkpoints/_actor/global_step2")
    saved = load_file(tmp_path / "checkpoints/global_step2_hf/model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.float32}  # in which it computed, whatever the flag says

    assert len(job.scalars["actor_grad_norm"]) == 2
    assert "Rollout of 12 responses: 4 left out, 8 kept" in job.output
    assert "responses are left out of training: reward, KL estimate, log-prob of the reference, value or" in job.output
    # One response of every prompt has no reward, whichever prompt is left out.
    assert sum(job.scalars["entropy/nonfinite_tokens"]) > 0
    assert all(math.isfinite(value) for value in job.scalars["policy_loss"] + job.scalars["actor_grad_norm"])
    assert {tag for tag in job.scalars if tag.startswith(("stare/", "entropy/"))} == {
        "entropy/mean",
        "entropy/authority",
        "entropy/nonfinite_tokens",
        "entropy/seconds",
    }


class TestOnARunningCluster:
    """What differs from a Ray of the job's own."""

    def test_a_submitted_job_trains_in_bfloat16_and_leaves_a_partial_last_rollout_out(
        self, addends, tmp_path, cluster
    ):
        # The job's own runtime environment has a variable and a hook that ours has too: Ray would refuse the clash.
        runtime_env = {
            "env_vars": {
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "NCCL_DEBUG": "INFO",
                "OPENRLHF_STARE_CPU_DTYPE": "bfloat16",
            },
            "worker_process_setup_hook": "openrlhf_stare.worker.install",
        }
        ray = str(Path(sys.executable).parent / "ray")
        submit = [ray, "job", "submit", "--address", cluster.jobs, "--runtime-env-json", json.dumps(runtime_env)]
        submit += ["--", sys.executable, "-m", "openrlhf_stare.train_ray"]
        self.wait_for(cluster, ray)
        # 14 prompts in rollouts of 4: three whole ones, and half of one, which fills no optimizer step.
        # The reward prints what looks like a step of the trainer, and sequences that would act on a terminal.
        hostile = str(ROOT / "tests/pipeline/rewards/hostile_prints.py")
        flags = [*job_flags(addends, tmp_path), "--data.max_samples", "14", "--console", "compact"]
        flags += ["--reward.remote_url", hostile]
        job = run_job(flags, tmp_path, command=submit, env={"RAY_ADDRESS": cluster.jobs}, cluster=cluster)
        everything = (tmp_path / "checkpoints/output.log").read_text()
        assert all(f"Global step {step}:" in everything for step in (1, 2, 3))
        shown = job.output.splitlines()
        assert len(shown) <= 60 and any(line.startswith("step 3/") for line in shown), job.output
        assert_sound(job, steps=3, vllm_kl=BFLOAT16_KL)
        assert max(map(abs, job.scalars["vllm_kl"])) > ON_POLICY_KL  # its rounding shows
        assert "Global step 999" in everything and not re.search(r"step +999|reward +99", job.output)
        assert shown.count("openrlhf-stare: ]0;a title]52;c;Y2xpcA==of a text") == 1
        assert (tmp_path / "checkpoints/output.log").stat().st_mode & 0o777 == 0o600
        assert_figures(job, rollouts=3)
        assert all(0.3 < figures["entropy/mean"] < 1.5 for figures in job.rollouts)
        assert "Rollout of 16 responses: 16 left out, 0 kept" in job.output
        assert (tmp_path / "model" / "config.json").exists()

    def test_a_job_too_large_for_the_cluster_waits_as_long_as_the_user_says(self, addends, tmp_path, cluster):
        flags = [*job_flags(addends, tmp_path), "--vllm.num_engines", "4", "--wait_for_resources", "3"]
        job = run_job(flags, tmp_path, timeout=90, cluster=cluster)
        assert job.status == 2
        told = r"The cluster has 4 of 6 GPUs and \d of 7 CPUs that the job needs; waiting for more nodes"
        assert re.search(told, job.output), job.output
        assert "the job needs 6 GPUs" in job.output and "ray start --head --num-gpus=6 --num-cpus=7" in job.output
        assert job.left_over == []

    def test_a_killed_driver_takes_its_job_along_and_leaves_the_cluster(self, addends, tmp_path, cluster):
        flags = job_flags(addends, tmp_path)
        job, kill = killed_job(flags, tmp_path, "driver", cluster, shown="Loading weights took")
        assert kill.pid and job.status == -signal.SIGKILL and not job.left_over
        assert any("raylet" in command for command in marked_processes(cluster.mark).values())

    @staticmethod
    def wait_for(cluster, ray: str) -> None:
        # The agent that starts jobs comes some time after the dashboard that takes them.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            nothing = [ray, "job", "submit", "--address", cluster.jobs, "--", "true"]
            with suppress(subprocess.TimeoutExpired):
                if subprocess.run(nothing, capture_output=True, timeout=60).returncode == 0:
                    return
            time.sleep(1)
        raise AssertionError("the Ray cluster did not come up")
