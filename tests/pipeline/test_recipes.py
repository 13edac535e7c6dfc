"""The recipes, run for some steps with a tiny model in place of theirs and one GPU's worth of everything."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import ROOT, Cluster, Job, assert_figures, problems, run_job

# What a machine without GPUs needs otherwise than a cluster, and the sizes of the task.
SMALL = {
    "TRAIN_PYTHON": sys.executable,
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


def run_recipe(name: str, run: Path, cluster: Cluster, *flags: str, **variables: str) -> Job:
    command = ["bash", str(ROOT / f"launch/recipes/{name}.sh")]
    flags = ["--data.max_samples", "40", "--ckpt.save_steps", "2", *flags]
    variables = {**SMALL, "RUN": str(run), **variables}
    return run_job(flags, run, timeout=480, command=command, env=variables, cluster=cluster)


def assert_trained(job: Job, variant: str = "O1") -> int:
    """How many steps: dynamic filtering decides how many prompts fill a rollout."""
    steps = len(job.scalars.get("actor_grad_norm", []))
    assert steps >= 3 and not problems(job, steps), f"{problems(job, steps)}\n{job.output[-4000:]}"
    assert_figures(job, rollouts=steps, variant=variant)
    assert " -m openrlhf_stare.train_ray --actor.model_name_or_path " in job.output.splitlines()[0]
    # Groups that are all right or all wrong have been left out.
    assert all(0 < reward < 1 for reward in job.scalars["reward"])
    assert any(tag.endswith("pass1") for tag in job.scalars), job.scalars.keys()
    return steps


def test_short_cot_on_prepared_data_and_the_mathematics_reward_with_answers_that_never_end(addends, tmp_path, cluster):
    prompts = sorted({json.loads(line)["input"] for line in (addends / "prompts.jsonl").read_text().splitlines()})
    assert len(prompts) == 15  # 02= to 16=
    sources = {"deepscaler": prompts, "aime24": ["05="], "aime25": ["07=", "08="]}
    words = []
    for name, texts in sources.items():
        rows = [json.dumps({"problem": problem, "answer": problem.rstrip("=").lstrip("0")}) for problem in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        words.append(f"{name}={tmp_path}/{name}.jsonl")
    data = tmp_path / "data"
    command = [sys.executable, "-m", "openrlhf_stare.data", *words, "--out", str(data), "--template", "none"]
    subprocess.run(command, check=True, timeout=120)

    task = {"MODEL": str(addends / "model"), "DATA": f"{data}/train.jsonl", "RESPONSE_TOKENS": "8"}
    task |= {"EVAL_DATA": f"{data}/aime24.jsonl,{data}/aime25.jsonl", "TARGET_ENTROPY": "0.01"}  # the gate stays shut
    task |= {"EPISODES": "2"}  # 12 prompts are left, and filtering takes some of them
    task |= {"REWARD": str(ROOT / "tests/pipeline/rewards/boxed_addends.py")}
    job = run_recipe("short_cot_7b", tmp_path, cluster, **task)  # no verifier outlives the job
    steps = assert_trained(job)
    assert job.scalars["entropy/gate_on"] == [0] * steps
    assert job.scalars["stare/mean_weight"] == [1] * steps
    assert all(0 < boxed <= 1 for boxed in job.scalars["boxed"])
    # An answer that hangs costs itself and no other.
    assert sum(job.scalars["nines"]) > 0
    assert job.scalars["verifier_failed"] == job.scalars["nines"]
    assert "The verifier took too long over '9^{9^{9^{9}}}'" in job.output
    assert set(re.findall(r"eval_\w+_pass\w+", job.output)) == {
        f"eval_{name}_pass{k}" for name in ("aime24", "aime25") for k in (1, 2)
    }


def test_tool_use_on_the_mathematics_reward_and_the_tool_s_output_is_no_action(calculator, tmp_path, cluster):
    prompts, few = calculator / "prompts.jsonl", tmp_path / "eval.jsonl"
    few.write_text("".join(prompts.read_text().splitlines(keepends=True)[:EVAL_PROMPTS]))
    task = {"MODEL": str(calculator / "model"), "DATA": str(prompts), "EVAL_DATA": str(few), "VARIANT": "C2"}
    flags = ["--data.max_samples", "24", "--tool.output_chars", "64", "--entropy.record_tokens", str(RECORDED)]
    job = run_recipe("tool_use_7b", tmp_path, cluster, *flags, **task)
    assert_trained(job, variant="C2")
    assert all(figures["stare/reweight_w"] == pytest.approx(1.1) for figures in job.rollouts)
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
    # The trainer told the ranks the step that is logged; OpenRLHF's own begin with 0.
    assert [line["step"] for line in lines] == [
        step for step in range(1, len(job.rollouts) + 1) for _ in range(RECORDED)
    ]
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
