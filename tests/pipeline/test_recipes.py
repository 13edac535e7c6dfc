"""The recipes, run for some steps with a tiny model in place of theirs and one GPU's worth of everything."""

import json
import re
import sys
from pathlib import Path

import pytest
from jobs import ROOT, Job, assert_figures, problems, run_job

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

EVAL_PROMPTS, RESPONSES, RECORDED = 8, 32, 8
PROMPT = 3  # tokens: two digits and an equals sign
OUTPUT_BLOCKS = re.compile(r"(\n?```output\n.*?\n```\n)*", re.DOTALL)
CUT_OFF = re.compile(rf"{OUTPUT_BLOCKS.pattern}(\n?`.*)?", re.DOTALL)  # at the most tokens that there may be


def run_recipe(name: str, calculator: Path, run: Path, *flags: str, **variables: str) -> Job:
    """Some steps of a recipe: dynamic filtering decides how many of 40 prompts fill a rollout of 4."""
    prompts, few = calculator / "prompts.jsonl", run / "eval.jsonl"
    few.write_text("".join(prompts.read_text().splitlines(keepends=True)[:EVAL_PROMPTS]))
    task = {"MODEL": str(calculator / "model"), "DATA": str(prompts), "EVAL_DATA": str(few), "RUN": str(run)}
    command = ["bash", str(ROOT / f"launch/recipes/{name}.sh")]
    flags = ["--data.max_samples", "40", "--ckpt.save_steps", "2", *flags]
    return run_job(flags, run, timeout=480, command=command, env={**SMALL, **task, **variables})


def assert_trained(job: Job, variant: str = "O1") -> None:
    steps = len(job.scalars.get("actor_grad_norm", []))
    assert steps >= 3 and not problems(job, steps), f"{problems(job, steps)}\n{job.output[-4000:]}"
    assert_figures(job, rollouts=steps, variant=variant)
    assert " -m openrlhf_stare.train_ray --actor.model_name_or_path " in job.output.splitlines()[0]
    # Groups that are all right or all wrong have been left out.
    assert all(0 < reward < 1 for reward in job.scalars["reward"])
    assert all(figures["stare/reweight_w"] == pytest.approx(1.1) for figures in job.rollouts)
    assert any(tag.endswith("pass1") for tag in job.scalars), job.scalars.keys()


def test_short_cot_on_the_mathematics_reward(calculator, tmp_path):
    assert_trained(run_recipe("short_cot_7b", calculator, tmp_path))


def test_tool_use_on_the_mathematics_reward_and_the_tool_s_output_is_no_action(calculator, tmp_path):
    flags = ["--tool.output_chars", "64", "--stare.record_tokens", str(RECORDED)]
    job = run_recipe("tool_use_7b", calculator, tmp_path, *flags, VARIANT="C2")
    assert_trained(job, variant="C2")
    assert all(0.3 < calls < 2 for calls in job.scalars["tool/calls"])

    # Every sampled token and no other counts: the ratios are of as many.
    for step, figures in enumerate(job.rollouts):
        sampled = job.scalars["total_length"][step] - PROMPT - job.scalars["tool/tokens"][step]
        for name in ("positive_candidate", "negative_candidate", "positive_reweight", "negative_reweight"):
            count = figures[f"stare/{name}_ratio"] * sampled * RESPONSES
            assert count == pytest.approx(round(count), abs=1e-3)

    # The record has no numbers where action_mask is 0: there stands what the tool wrote, whole, and nothing else.
    [record] = (tmp_path / "tensorboard").glob("*/tokens.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(lines) == RECORDED * len(job.rollouts)
    computed = 0
    for line in lines:
        pairs = list(zip(line["tokens"], line["advantage"], strict=True))
        tools = "".join(token for token, advantage in pairs if advantage is None)
        policys = "".join(token for token, advantage in pairs if advantage is not None)
        longest = int(SMALL["PROMPT_TOKENS"]) + int(SMALL["RESPONSE_TOKENS"]) - PROMPT
        assert len(pairs) <= longest
        assert (OUTPUT_BLOCKS if len(pairs) < longest else CUT_OFF).fullmatch(tools)
        assert tools.count("```output") <= policys.count("```python")
        computed += bool(re.search(r"```python\nprint\((\d+)-(\d)\)\n```\n", policys))
    assert computed > len(lines) / 3
