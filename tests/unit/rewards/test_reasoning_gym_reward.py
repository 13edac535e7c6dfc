"""The reward for reasoning-gym: where the answer is in a response, what the scorer says, and what goes wrong."""

import importlib.util
import json
import math
import sys
import time
from pathlib import Path

import pytest

from openrlhf_stare.rewards.responses import without_special_tokens

REWARD = Path(__file__).parents[3] / "openrlhf_stare" / "rewards" / "reasoning_gym_reward.py"
PROMPT = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
ENTRY = {"question": "What is 3 + 4?", "answer": "7", "metadata": {"source_dataset": "sums", "terms": [3, 4]}}
END = "<|im_end|>"


def load(seconds: float = 30.0):
    """The file as OpenRLHF loads it, by its path, with scorers of its own."""
    spec = importlib.util.spec_from_file_location("reward_func", REWARD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SECONDS = seconds
    return module


@pytest.fixture
def reward(tiny_gym):
    return load()


def given(module, response: str, label: object = json.dumps(ENTRY)) -> tuple[float, float, float, float]:
    """Reward, score, whether there is an answer, and whether the scorer failed."""
    found = module.reward_func([PROMPT + response], [PROMPT], [label])
    assert found["rewards"].shape == found["scores"].shape == (1,)
    logs = found["extra_logs"]
    assert logs.keys() == {"answered", "scorer_failed"}
    figures = (found["rewards"], found["scores"], logs["answered"], logs["scorer_failed"])
    return tuple(figure.item() for figure in figures)


@pytest.mark.parametrize(
    "response, right, answer",
    [
        (f"7{END}", "7", "7"),
        (f"The final answer is 8.{END}", "7", "8"),
        (f"3 + 4 = 7.\nSo it is -12{END}", "7", "-12"),
        ("so 5-3", "2", "3"),  # a minus that takes away
        ("so 5 - 3 = −2", "-2", "-2"),
        ("1,234.50 and more", "1", "1,234.50"),
        (f"I do not know{END}", "7", None),
        (f"12 <answer>\n 5\n</answer> or <answer>9</answer>, not 3{END}", "7", "9"),
        (f"<answer></answer> 4{END}", "7", "4"),
        (f"Let me see.\n\n3*4 + 5 \n{END}", "5 + 12 - 0", "3*4 + 5"),
        (f"red{END}\n<|endoftext|>", "blue", "red"),
        (f"red{END}", None, "red"),
        (f" {END}", None, None),
        ("x</s>", "y", "x"),
        ("x<\uff5cend\u2581of\u2581sentence\uff5c>", "y", "x"),
        (f"The board:\n\n_ Q\n  Q _ \n{END}", "Q _\n_ Q", "_ Q\n  Q _"),
        ("No:\n1 < 2\n\n3 > 2\n", "1 < 2\n\n2 < 3\n", "1 < 2\n\n3 > 2"),
        (f"_ Q{END}", "Q _\n_ Q", "_ Q"),
        ("a <|b|> c", "y", "a <|b|> c"),  # not at the end
    ],
)
def test_where_the_answer_is(reward, response, right, answer):
    assert reward.answer_in(response, right) == answer


def test_the_scorer_says_what_an_answer_is_worth(reward):
    assert given(reward, f"It is 7{END}") == (1, 1, 1, 0)
    assert given(reward, f"It is 8{END}") == pytest.approx((0.1, 0.1, 1, 0))
    assert given(reward, f"no idea{END}") == (0, 0, 0, 0)
    assert given(reward, f"<answer>{'1' * 40000}</answer>{END}") == (0, 0, 1, 0)
    both = reward.reward_func([PROMPT + "7", PROMPT + "8"], [PROMPT] * 2, [json.dumps(ENTRY)] * 2)
    assert both["rewards"].tolist() == pytest.approx([1, 0.1])


@pytest.mark.parametrize("label", [None, "", "7", "{", '{"answer": "7"}', '{"metadata": {}}', 7, math.nan])
def test_a_label_that_is_no_entry_gives_no_reward_and_is_told(reward, capsys, label):
    for _ in range(2):
        found = given(reward, "7", label)
        assert math.isnan(found[0]) and found[1:] == (0, 0, 0)
    assert capsys.readouterr().err.count("openrlhf-stare: A label is not an entry of reasoning-gym as JSON, but ") == 1


def test_a_scorer_that_raises_gives_no_reward_and_is_told_once_for_each_task(reward, capsys):
    for answer in ("1/0", "1/0", "1/(2-2)"):
        found = given(reward, f"<answer>{answer}</answer>")
        assert math.isnan(found[0]) and found[1:] == (0, 1, 1)
    other = {**ENTRY, "metadata": {"source_dataset": "other"}}
    assert math.isnan(given(reward, "7", json.dumps(other))[0])
    told = [line for line in capsys.readouterr().err.splitlines() if "openrlhf-stare" in line]
    assert (
        len(told) == 2
        and "The scorer of sums raised ZeroDivisionError: division by zero for the answer '1/0'" in told[0]
    )
    assert "its response is left out of training" in told[0] and "The scorer of other raised KeyError" in told[1]
    assert given(reward, "7") == (1, 1, 1, 0)


def test_special_tokens_are_taken_off_the_end_alone():
    deepseek = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    for end in ("</s>", "<|im_end|>", "<eos><pad><pad>", f" {deepseek}\n", "<end_of_turn>\n <pad> "):
        assert without_special_tokens(f"a <pad> b{end}") == "a <pad> b"
    for text in ("", "a b \n", "<pad>a", "a <b>", "a <|b c|>", "a <|b|> ."):
        assert without_special_tokens(text) == text
    assert without_special_tokens("<eos>") == ""


def test_an_answer_that_hangs_costs_itself_only(tiny_gym, caplog):
    module = load(seconds=2.0)
    start = time.monotonic()
    assert given(module, "<answer>9**9**9**9</answer>") == (0, 0, 1, 1)
    assert "The scorer of sums took too long over '9**9**9**9'" in caplog.text and time.monotonic() - start < 60
    assert given(module, "7") == (1, 1, 1, 0)


def test_what_is_no_arithmetic_is_not_run(reward, tmp_path):
    file = tmp_path / "file"
    for program in (
        f"open({str(file)!r}, 'w')",
        f"__import__('os').system('touch {file}')",
        f"len(open({str(REWARD)!r}).read()) * 0 + 7",
        "().__class__.__base__.__subclasses__()",
        "(lambda: 7)()",
        "[7 for _ in 'a'][0]",
        "{7: 7 for _ in 'a'}[7]",
        "max(7 for _ in 'a')",
        "__import__('os')._exit(3)",
        "eval('7')",
    ):
        assert given(reward, f"<answer>{program}</answer>") == (0, 0, 1, 0), program
    assert not file.exists()
    assert given(reward, "<answer>(3 + 4) * 2 / 2</answer>")[0] == 1


def test_without_reasoning_gym_the_reward_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "openrlhf-stare\[tasks\]"'):
        load()
