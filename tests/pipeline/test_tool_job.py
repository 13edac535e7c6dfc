"""Whole jobs whose policy uses the Python tool."""

import json
import re

import pytest
from jobs import ROOT, assert_figures, assert_sound, job_flags, run_job

RESPONSES = 32
OUTPUT_BLOCKS = re.compile(r"(\n?```output\n.*?\n```\n)*", re.DOTALL)


def test_the_policy_calls_the_tool_and_the_tool_s_output_is_no_action(calculator, tmp_path):
    flags = job_flags(calculator, tmp_path)
    flags += ["--data.max_samples", "12", "--data.max_len", "256", "--stare.target_entropy", "3"]
    flags += ["--train.agent_func_path", str(ROOT / "openrlhf_stare/tools/agent.py"), "--tool.output_chars", "64"]
    flags += ["--reward.remote_url", str(ROOT / "tests/pipeline/rewards/last_line.py")]
    flags += ["--stare.variant", "C2", "--stare.record_tokens", str(RESPONSES // 2)]
    job = run_job(flags, tmp_path, timeout=480)
    assert_sound(job, steps=3)
    assert_figures(job, rollouts=3, variant="C2")
    assert all(0.3 < calls < 2 for calls in job.scalars["tool/calls"])
    assert all(0 < reward < 1 for reward in job.scalars["reward"])

    # Every sampled token and no other counts: the ratios are of as many.
    for step, figures in enumerate(job.rollouts):
        sampled = job.scalars["response_length"][step] - job.scalars["tool/tokens"][step]
        for name in ("positive_candidate", "negative_candidate", "positive_reweight", "negative_reweight"):
            count = figures[f"{name}_ratio"] * sampled * RESPONSES
            assert count == pytest.approx(round(count), abs=1e-3)

    # The record has no numbers where action_mask is 0: there stands what the tool wrote, whole, and nothing else.
    lines = [json.loads(line) for line in (tmp_path / "tensorboard/run/tokens.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * RESPONSES // 2
    computed = 0
    for line in lines:
        pairs = list(zip(line["tokens"], line["advantage"], strict=True))
        tools = "".join(token for token, advantage in pairs if advantage is None)
        policys = "".join(token for token, advantage in pairs if advantage is not None)
        assert OUTPUT_BLOCKS.fullmatch(tools)
        assert tools.count("```output") <= policys.count("```python")
        computed += bool(re.search(r"```python\nprint\((\d+)-(\d)\)\n```\n", policys))
    assert computed > len(lines) / 3
