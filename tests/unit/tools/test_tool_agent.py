"""What the tool agent makes of a turn, and that nothing that goes wrong in one comes out of it."""

import asyncio
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from flag_parser import parse
from tokenizers import AddedToken, normalizers, pre_tokenizers
from transformers import Qwen2Tokenizer

from openrlhf_stare import tools, worker
from openrlhf_stare.driver import checks

worker.install()

from openrlhf.trainer.ray.vllm_engine import _load_agent_executor  # noqa: E402
from openrlhf.utils.agent import AgentExecutorBase  # noqa: E402

from openrlhf_stare.rollout import reward_answers  # noqa: E402
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


REWARD = """
def reward_func(queries, prompts, labels):
    (query,), (prompt,), (label,) = queries, prompts, labels
    if query == "raise": raise ValueError("no reward")
    if query == "nothing": return None
    if query.startswith("12="): return {"rewards": [float("box" in query)]}
    return {"rewards": [float(query)], **({"scores": [1.0]} if query == "2" else {})}
"""


@pytest.fixture
def executor(monkeypatch, tmp_path) -> agent.AgentExecutor:
    """Made as the rollout actor makes it, from the path and the job's environment."""
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    settings = {"reward": str(reward), "engines": 1, "gpus_of_each": 1, **vars(CONFIG)}
    monkeypatch.setenv(tools.SETTINGS, json.dumps(settings))
    executor = _load_agent_executor(str(tools.AGENT))
    assert isinstance(executor, AgentExecutorBase) and executor.config == CONFIG
    return executor


# What a program prints


class Turns:
    """Stands in for the vLLM engine: a policy that says these texts, one a turn."""

    def __init__(self, tokenizer, *texts: str) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)

    async def generate(self, tokens, sampling_params, multi_modal_data=None) -> SimpleNamespace:
        text = self.texts.pop(0)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")])


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    """Qwen2's own class, with a token for each byte and the control tokens of its chat format."""
    bytes_as_text = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*bytes_as_text, "<|endoftext|>"])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<tool_call>", "    ", "word"])
    return tokenizer


def respond(executor, tokenizer, *turns: str, longest: int = 1000) -> tuple[dict, str]:
    """OpenRLHF's response from these turns, and what the tool wrote in it."""
    sampling_params = SimpleNamespace(max_tokens=1, logprobs=None)
    engine = Turns(tokenizer, *turns)
    response = asyncio.run(executor.execute("12=", "12", sampling_params, longest, tokenizer, engine))
    tokens, written, end = response["observation_tokens"], [], None
    for start, stop in response["action_ranges"]:
        written += tokens[end:start] if end else []
        end = stop
    return response, tokenizer.decode(written)


def test_control_tokens_in_an_output_are_text(executor, tokenizer):
    for ids in (tokenizer("<|im_end|><tool_call>")["input_ids"], tokenizer("    word")["input_ids"]):
        assert len(ids) == 2, "these are tokens of their own"
    program = "print('<|im' + '_end|>\\n<|im' + '_start|>user <tool' + '_call>' + '<|endof' + 'text|>    word')"
    response, written = respond(executor, tokenizer, f"```python\n{program}\n```\n", "7")
    assert written == "```output\n< |im_end|>\n< |im_start|>user < tool_call>< |endoftext|>    word\n```\n"
    control = set(tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<tool_call>", "<|endoftext|>"]))
    assert len(control) == 4 and not control & set(response["observation_tokens"])


def test_control_strings_that_overlap_or_are_one_character_are_broken_too():
    assert agent.harmless("abc", ["ab", "bc"]) == "a b c"
    assert agent.harmless("<s> \x07", ["<s>", "< s>", "\x07"]) == "<!s> !"
    assert agent.harmless("````", []) == "` ` ``"


@pytest.mark.parametrize(
    "output", ["1\n```\n\\boxed{12}", "```", "````output", "``` \n", "  ```python\nprint(1)\n```"]
)
def test_a_fence_in_an_output_does_not_end_its_block(tool, output):
    program = f"print({output.replace('`', '~')!r}.replace('~', chr(96)))"
    feedback, done = step(tool, f"```python\n{program}\n```\n")
    assert feedback.startswith("```output\n") and feedback.endswith("\n```\n") and not done
    assert feedback.count("```") == 2
    assert feedback.removeprefix("```output\n").removesuffix("\n```\n").replace(" ", "") == output.replace(" ", "")


NORMALIZERS = {
    "NFC": normalizers.NFC(),
    "NFKC": normalizers.NFKC(),
    "lowercase": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "blanks": normalizers.Replace(" ", "\u2581"),
    "a mark at the start": normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("\u2581")]),
    "lowercase and a mark": normalizers.Sequence([normalizers.Lowercase(), normalizers.Prepend("\u2581")]),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_an_output_is_made_harmless_as_the_tokenizer_reads_it(tokenizer, name):
    tokenizer = deepcopy(tokenizer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=True)])
    tokenizer.backend_tokenizer.normalizer = NORMALIZERS[name]
    control = agent.control_strings(tokenizer)
    ids = set(tokenizer.convert_tokens_to_ids(control))
    assert len(ids) == len(control) == 5
    for output in (
        "\u1fef" * 3 + "\n\\boxed{12}",
        "\uff40\uff40\uff40",
        "\uff1cthink\uff1e",
        "<THINK>",
        "<think>",
        "<|im_end|>",
    ):
        shown = agent.harmless(output, control, agent.normalizer(tokenizer))
        assert not ids & set(tokenizer(f"```output\n{shown}\n```\n")["input_ids"]), (output, shown)
        for text in (shown, NORMALIZERS[name].normalize_str(shown)):
            assert agent.FENCE not in text, (output, shown)
    assert agent.harmless("12 and 5", control, agent.normalizer(tokenizer)).replace("\u2581", " ") == "12 and 5"


def test_the_agent_knows_its_tokenizer_s_normalizer(executor, tokenizer):
    tokenizer = deepcopy(tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    _, written = respond(executor, tokenizer, "```python\nprint(chr(0x1fef) * 3)\n```\n", "7")
    assert written == "```output\n` ``\n```\n"


@pytest.mark.parametrize(("longest", "reward"), [(1000, 1.0), (50, 0.0)])
def test_what_is_cut_off_is_not_scored(executor, tokenizer, longest, reward):
    program = "```python\nprint(' ' * 60 + 'bo' + 'x')\n```\n"
    response, _ = respond(executor, tokenizer, program, "7", longest=longest)
    assert len(response["observation_tokens"]) > 50
    assert response["reward"] == response["scores"] == reward


def test_a_prompt_that_leaves_no_room_has_no_turn(executor, tokenizer):
    response, _ = respond(executor, tokenizer, longest=1)
    assert response["action_ranges"] == [] and response["extra_logs"]["tool/tokens"] == 0


def test_programs_that_sleep_hold_up_nobody(executor):
    async def run() -> None:
        def turn(program: str) -> asyncio.Task:
            tool = agent.PythonTool(CONFIG, executor.pool)
            return asyncio.create_task(tool.step({"action_text": f"```python\n{program}\n```\n"}))

        sleepers = [turn("import time; time.sleep(15)") for _ in range(4 * os.cpu_count() + 4)]
        honest = [turn(f"print({number})") for number in range(4)]
        for task in honest:
            await task
        assert not any(task.done() for task in sleepers)
        await asyncio.gather(*sleepers)

    asyncio.run(run())


def test_a_failure_of_the_tool_is_told_to_the_model_too(tool, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap any more
    feedback, done = step(tool, "```python\nprint(1)\n```\n")
    assert feedback.startswith("```output\n[the tool could not run this: ") and not done
    assert (tool.calls, tool.failures) == (1, 1)


def test_the_reward_function_scores_the_whole_response(executor):
    assert asyncio.run(executor._score("0.5", "12=", "12")) == (0.5, 0.5)
    assert asyncio.run(executor._score("2", "12=", "12")) == (2.0, 1.0)


@pytest.mark.parametrize("text", ["raise", "nothing", "not a number", "nan"])
def test_a_failing_reward_function_costs_its_response(executor, text):
    reward, score = asyncio.run(executor._score(text, "12=", "12"))
    assert math.isnan(reward) and score == 0


def test_the_first_error_of_a_reward_function_is_told_once(executor, monkeypatch, capfd):
    monkeypatch.setattr(reward_answers, "_told", set())
    for text in ("raise", "not a number", "nothing"):
        asyncio.run(executor._score(text, "12=", "12"))
    told = capfd.readouterr()
    assert (told.out + told.err).count("openrlhf-stare: ") == 1 and "Traceback" not in told.err
    assert "The reward function raised ValueError: no reward (" in told.out + told.err


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
    # A driver on a machine where no engine runs.
    for elsewhere in (["--no_checks"], ["--preflight", "--dry-run"]):
        checks.check(parse("--train.agent_func_path", str(tools.AGENT), "--reward.remote_url", "there.py", *elsewhere))
    insisting = [*words, "--tool.run_model_code_without_sandbox", "--train.agent_func_path", str(tools.AGENT)]
    (warning,) = checks.check(parse(*insisting))
    assert "--tool.run_model_code_without_sandbox" in warning


def test_another_agent_needs_none_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.check(parse("--train.agent_func_path", "agent.py")) == []


def test_the_options_reach_the_agent_s_processes(monkeypatch):
    assert tools.environment(parse("--reward.remote_url", "reward.py")) == {}
    words = "--train.agent_func_path agent.py --reward.remote_url reward.py --tool.seconds 3"
    words = f"{words} --vllm.num_engines 4 --vllm.tensor_parallel_size 2".split()
    (settings,) = map(json.loads, tools.environment(parse(*words)).values())
    assert settings.pop("reward") == os.path.abspath("reward.py")
    assert (settings.pop("engines"), settings.pop("gpus_of_each")) == (4, 2)
    assert ToolConfig(**settings) == ToolConfig(seconds=3)
