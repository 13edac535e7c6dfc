"""The reversal task and its study: what is right, model and prompts, and from runs to a table and curves."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_stare.quickstart import small_model

LAUNCH = Path(__file__).parents[3] / "launch"


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, reward, study = load("reversal/make"), load("reversal/reward"), load("study/reversal_results")


# What is right


def test_the_reversal_of_all_digits_is_right():
    assert reward.score("3141592=2951413<eos>") == 1.0
    assert reward.score("1234321=1234321<eos>") == 1.0


@pytest.mark.parametrize(
    "query",
    [
        "3141592=3141592<eos>",  # not reversed
        "3141592=2951412<eos>",  # the last digit is wrong
        "3141592=2951413",  # no end
        "3141592=295141<eos>",
        "3141592=29514133<eos>",
        "3141592=2951413<eos><eos>",
        "3141592=2951413<eos>\n",
        "3141592=2951413<pad><eos>",
        "3141592==2951413<eos>",
        "314159=951413<eos>",  # the prompt is too short
        "3141592=٢٩٥١٤١٣<eos>",  # digits, but not ours
        "3141592=",
        "<eos>",
        "",
    ],
)
def test_everything_else_gets_nothing_and_is_never_an_exception(query):
    assert reward.score(query) == 0.0
    assert 0 <= reward.digits_right(query) <= 1


def test_the_digits_in_their_places_are_counted_for_the_log():
    assert reward.digits_right("3141592=2951413<eos>") == 1.0
    assert reward.digits_right("3141592=3141592<eos>") == pytest.approx(1 / 7)  # the middle one
    assert reward.digits_right("3141592=29<eos>") == pytest.approx(2 / 7)


def test_reward_func_answers_in_the_form_that_openrlhf_reads():
    answer = reward.reward_func(["3141592=2951413<eos>", "3141592=2951412<eos>"], ["3141592="] * 2, ["2951413"] * 2)
    assert answer["rewards"].tolist() == answer["scores"].tolist() == [1.0, 0.0]
    assert answer["extra_logs"]["digits_right"].tolist() == pytest.approx([1.0, 6 / 7])


# The model and the prompts


def test_prompts_are_digits_and_labels_their_reversal():
    prompts = make.make_prompts(50, seed=0)
    assert len(prompts) == 50
    assert all(reward.score(prompt["input"] + prompt["label"] + "<eos>") == 1.0 for prompt in prompts)
    assert prompts == make.make_prompts(50, seed=0) != make.make_prompts(50, seed=1)
    assert make.make_prompts(60, seed=0)[:50] == prompts


def test_examples_have_as_many_wrong_digits_as_asked_for():
    draw = torch.Generator().manual_seed(0)
    examples = [make.example(draw, 0.4) for _ in range(2000)]
    assert all(reward.score(make.example(draw, 0.0)) == 1.0 for _ in range(20))
    # A tenth of the digits is the same in both orders, and the middle one always is.
    expected = 1 - 0.4 * 0.9 * 6 / 7
    assert sum(map(reward.digits_right, examples)) / 2000 == pytest.approx(expected, abs=0.01)
    copies = [make.example(draw, 1.0) for _ in range(20)]
    assert all(copy[:7] == copy[8:15] for copy in copies)


def test_the_checkpoint_is_one_that_autotokenizer_and_automodel_load(tmp_path):
    record = small_model.make_checkpoint(make.TASK, tmp_path / "model", steps=2)
    assert 0 <= record["sampled_reward"] < 0.5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "3141592=2951413<eos>"
    assert len(tokenizer(text).input_ids) == 16 and tokenizer.decode(tokenizer(text).input_ids) == text
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.vocab_size == len(tokenizer) == 15
    assert model(**tokenizer(["3141592="], return_tensors="pt")).logits.isfinite().all()


# The results


def write_run(folder: Path, arm: str, seed: int, rewards: list[float]) -> Path:
    run = folder / f"{arm}-seed{seed}"
    with SummaryWriter(str(run / "tensorboard" / run.name)) as writer:
        for step, value in enumerate(rewards, start=1):
            writer.add_scalar("train/rollout/reward_mean", value, step)
            writer.add_scalar("train/entropy/mean", 0.5, step)
    return run


def test_the_table_has_the_steps_of_each_seed_and_the_reward_at_the_end(tmp_path, monkeypatch, capsys):
    rises, late = [0.0] * 20 + [1.0] * 20, [0.0] * 30 + [1.0] * 10
    runs = [write_run(tmp_path, "tpo", 0, rises), write_run(tmp_path, "tpo", 1, late)]
    runs += [write_run(tmp_path, arm, seed, [0.1] * 40) for arm in ("grpo", "grpo_kl") for seed in (0, 1)]
    table, png = tmp_path / "table.md", tmp_path / "curves.png"
    monkeypatch.setattr(sys, "argv", ["reversal.py", *map(str, runs), "--table", str(table), "--png", str(png)])
    study.main()
    lines = table.read_text().splitlines()
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines
    # Eleven steps have a mean of 0.9 when ten of them are right: those around step 25, and around step 35.
    assert lines[2:] == [
        "| TPO | 25, 35 | 1.000 ± 0.000 |",
        "| GRPO without KL | never, never | 0.100 ± 0.000 |",
        "| GRPO with KL | never, never | 0.100 ± 0.000 |",
    ]
    assert imread(png).std() > 0


def test_an_arm_of_the_script_is_an_arm_of_the_table():
    script = (LAUNCH / "reversal_study.sh").read_text()
    assert f"arms=({' '.join(study.ARMS)})" in script
