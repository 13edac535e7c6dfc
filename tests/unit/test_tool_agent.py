"""What the tool agent makes of a turn, and that nothing that goes wrong in one comes out of it."""

import asyncio
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from flag_parser import parse

from openrlhf_stare import tools, worker
from openrlhf_stare.driver import checks

worker.install()

from openrlhf.trainer.ray.vllm_engine import _load_agent_executor  # noqa: E402
from openrlhf.utils.agent import AgentExecutorBase  # noqa: E402

from openrlhf_stare.tools import agent  # noqa: E402
from openrlhf_stare.tools.config import ToolConfig  # noqa: E402

CONFIG = ToolConfig(max_calls=2, seconds=20, output_chars=100)


@pytest.fixture
def tool():
    with ThreadPoolExecutor(1) as pool:
        yield agent.PythonTool(CONFIG, pool)


def step(tool, text: str) -> tuple[str, bool]:
    """The feedback for a turn, and whether the response is done."""
    result = asyncio.run(tool.step({"observation_text": "12=", "action_text": text, "label": "12"}))
    assert isinstance(result["rewards"], torch.Tensor)
    assert result["extra_logs"] == {"tool/calls": float(tool.calls), "tool/failures": float(tool.failures)}
    return result["environment_feedback"], result["done"]


# A turn


def test_a_program_is_run_and_its_output_stands_in_a_block_below(tool):
    assert step(tool, "Let me see.\n```python\nprint(12 - 5)\n```\n") == ("```output\n7\n```\n", False)
    assert (tool.calls, tool.failures) == (1, 0)


@pytest.mark.parametrize("end", ["", "<|im_end|>", "\n<|im_end|>", "</s>"])
def test_a_model_may_end_its_turn_at_the_block(tool, end):
    assert step(tool, f"```python\nprint(1)\n```{end}") == ("\n```output\n1\n```\n", False)


def test_of_several_programs_the_last_one_is_run(tool):
    text = "```python\nprint(1)\n``` or ```python\nprint(2)\n```\n"
    assert step(tool, text) == ("```output\n2\n```\n", False)


@pytest.mark.parametrize(
    "text", ["7+5", "", "```python\nprint(1)\n", "```python\nprint(1)\n``` is 1.", "```python```", "```output\n1\n```"]
)
def test_a_turn_without_a_program_at_its_end_ends_the_response(tool, text):
    assert step(tool, text) == ("", True)
    assert tool.calls == 0


def test_after_a_block_in_another_language_the_model_goes_on(tool):
    assert step(tool, '```json\n{"a": 1}\n```\n') == ("", False)
    assert tool.calls == 0


def test_one_program_more_than_allowed_ends_the_response(tool):
    program = "```python\nprint(1)\n```\n"
    assert [step(tool, program)[1] for _ in range(3)] == [False, False, True]
    assert tool.calls == 2


def test_a_turn_of_any_text_takes_no_time(tool):
    hostile = ["```python\n" * 20_000, "```python\n" + "\n" * 200_000 + "x", "<" * 200_000, " " * 200_000 + "```\n"]
    for text in hostile:
        _, done = step(tool, text + ("" if text.endswith("```\n") else "."))
        assert done or text.endswith("```\n")


# What goes wrong


def test_a_program_s_failure_is_told_to_the_model(tool):
    feedback, done = step(tool, "```python\n1 / 0\n```\n")
    assert feedback.startswith("```output\nTraceback") and not done
    assert (tool.calls, tool.failures) == (1, 1)
    feedback, _ = step(tool, "```python\nx = 1\n```\n")
    assert feedback == "```output\n[no output: print what you want to see]\n```\n"


def test_a_failure_of_the_tool_is_told_to_the_model_too(tool, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap any more
    feedback, done = step(tool, "```python\nprint(1)\n```\n")
    assert feedback.startswith("```output\n[the tool could not run this: ") and not done
    assert (tool.calls, tool.failures) == (1, 1)


REWARD = """
def reward_func(queries, prompts, labels):
    (query,), (prompt,), (label,) = queries, prompts, labels
    if query == "raise": raise ValueError("no reward")
    if query == "nothing": return None
    return {"rewards": [float(query)], **({"scores": [1.0]} if query == "2" else {})}
"""


@pytest.fixture
def executor(monkeypatch, tmp_path) -> agent.AgentExecutor:
    """Made as the rollout actor makes it, from the path and the job's environment."""
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    settings = {"reward": str(reward), **vars(CONFIG)}
    monkeypatch.setenv(tools.SETTINGS, json.dumps(settings))
    executor = _load_agent_executor(str(tools.AGENT))
    assert isinstance(executor, AgentExecutorBase) and executor.agent_instance_cls().config == CONFIG
    return executor


def test_the_reward_function_scores_the_whole_response(executor):
    assert asyncio.run(executor._score("0.5", "12=", "12")) == (0.5, 0.5)
    assert asyncio.run(executor._score("2", "12=", "12")) == (2.0, 1.0)


@pytest.mark.parametrize("text", ["raise", "nothing", "not a number", "nan"])
def test_a_failing_reward_function_costs_its_response(executor, text):
    reward, score = asyncio.run(executor._score(text, "12=", "12"))
    assert math.isnan(reward) and score == 0


# Before anything starts


def refusal(*words: str) -> str:
    args = parse("--train.agent_func_path", str(tools.AGENT), *words)
    with pytest.raises(checks.UsageError) as caught:
        checks.check(args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_reward_has_to_be_there(tmp_path):
    assert "give --reward.remote_url" in refusal()
    assert f"--reward.remote_url {tmp_path}/none.py is not there" in refusal(
        "--reward.remote_url", f"{tmp_path}/none.py"
    )


def test_without_a_sandbox_the_job_does_not_start_unless_the_user_insists(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--reward.remote_url", "http://host:1/score"]
    assert "install the package bubblewrap" in refusal(*words)
    insisting = [*words, "--tool.run_model_code_without_sandbox", "--train.agent_func_path", str(tools.AGENT)]
    (warning,) = checks.check(parse(*insisting))
    assert "--tool.run_model_code_without_sandbox" in warning


def test_another_agent_needs_none_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.check(parse("--train.agent_func_path", "agent.py")) == []


def test_the_options_reach_the_agent_s_processes(monkeypatch):
    assert tools.environment(parse("--reward.remote_url", "reward.py")) == {}
    words = "--train.agent_func_path agent.py --reward.remote_url reward.py --tool.seconds 3".split()
    (settings,) = map(json.loads, tools.environment(parse(*words)).values())
    assert settings.pop("reward") == os.path.abspath("reward.py")
    assert ToolConfig(**settings) == ToolConfig(seconds=3)
