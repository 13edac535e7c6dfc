"""The recipes, run for some steps with a tiny model in place of theirs and one GPU's worth of everything."""

import sys

import pytest
from jobs import ROOT, problems, run_job

# What a machine without GPUs needs otherwise than a cluster, and the sizes of the task.
SMALL = {
    "PYTHON": sys.executable,
    "NODES": "1",
    "GPUS_PER_NODE": "2",
    "ENGINES": "1",
    "COLOCATE": "0",
    "PROMPTS": "4",
    "PROMPT_TOKENS": "8",
    "RESPONSE_TOKENS": "120",
    "CHAT_TEMPLATE": "0",
    "EPISODES": "1",
    "EVAL_STEPS": "2",
    "EVAL_SAMPLES": "2",
    "LR": "3e-4",
    "TARGET_ENTROPY": "3",
}


@pytest.mark.parametrize("recipe", ["short_cot_7b", "tool_use_7b"])
def test_three_steps_on_the_mathematics_reward(calculator, tmp_path, recipe):
    task = {"MODEL": str(calculator / "model"), "DATA": str(calculator / "prompts.jsonl"), "RUN": str(tmp_path)}
    command = ["bash", str(ROOT / f"launch/recipes/{recipe}.sh")]
    # Dynamic filtering decides how many of 48 prompts fill a rollout of 4.
    flags = ["--data.max_samples", "48", "--ckpt.save_steps", "2"]
    job = run_job(flags, tmp_path, timeout=480, command=command, env={**SMALL, **task, "EVAL_DATA": task["DATA"]})
    steps = len(job.scalars.get("actor_grad_norm", []))
    assert steps >= 3 and not problems(job, steps), f"{problems(job, steps)}\n{job.output[-4000:]}"
    assert " -m openrlhf_stare.train_ray --actor.model_name_or_path " in job.output.splitlines()[0]
    # Groups that are all right or all wrong have been left out.
    assert all(0 < reward < 1 for reward in job.scalars["reward"])
    assert all(1 <= figures["reweight_w"] < 1.11 for figures in job.rollouts)
    assert any(tag.endswith("pass1") for tag in job.scalars), job.scalars.keys()
    if recipe == "tool_use_7b":
        assert all(0.3 < calls < 2 for calls in job.scalars["tool/calls"])
