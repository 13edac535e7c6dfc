"""The entropy study: what a trained model's answers are worth, and from runs to a table, a figure and claims."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

from openrlhf_stare.quickstart import task
from openrlhf_stare.quickstart.small_model import make_checkpoint

LAUNCH = Path(__file__).parents[3] / "launch"
STEPS, TARGET = 40, 0.4


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the dataclasses of the module look for it
    spec.loader.exec_module(module)
    return module


evaluate = load("study/evaluate")
summary, two_targets = load("study/summary"), load("study/two_targets")


# The evaluation


def answers_with(*right: str) -> list[list[str]]:
    """One prompt whose samples are these and otherwise wrong."""
    return [[*right, *["12=1+1<eos>"] * (evaluate.SAMPLES - len(right))]]


@pytest.mark.parametrize(
    "answers, distinct, first, any_of_32",
    [
        (answers_with("12=5+7<eos>", "12=5+7<eos>", "12=7+5<eos>", "12=9+3<eos>"), 3, 4 / 32, 1),
        (answers_with(), 0, 0, 0),
        (answers_with("12=5+7", "12=5+7<pad><eos>"), 0, 0, 0),  # right digits, but no right answer
        (answers_with(*["12=5+7<eos>"] * 32) + answers_with(), 0.5, 0.5, 0.5),  # means over two prompts
    ],
)
def test_the_figures_of_the_answers(answers, distinct, first, any_of_32):
    found = evaluate.measure(task.TASK, answers)
    assert found.pop("pass@8") == pytest.approx(any_of_8(answers))
    assert found == {"distinct_right": distinct, "pass@1": first, "pass@32": any_of_32}


def any_of_8(answers: list[list[str]]) -> float:
    """How likely 8 of a prompt's 32 samples have a right one, drawn one after the other; the mean of the prompts."""
    found = []
    for of_prompt in answers:
        wrong = sum(not task.TASK.score(answer) for answer in of_prompt)
        none_right = 1.0
        for drawn in range(8):
            none_right *= max(wrong - drawn, 0) / (32 - drawn)
        found.append(1 - none_right)
    return sum(found) / len(found)


def test_every_prompt_is_sampled_32_times_from_the_model(tmp_path, monkeypatch):
    make_checkpoint(task.TASK, tmp_path / "model", steps=60)  # knows the form of an answer, little of the arithmetic
    monkeypatch.setattr(evaluate, "BATCH", 100)  # 480 answers in five batches, of which one is smaller
    answers = evaluate.sample_answers(task.TASK, tmp_path / "model", seed=0)
    assert [{answer[:3] for answer in of_prompt} for of_prompt in answers] == [{f"{n:02}="} for n in range(2, 17)]
    assert all(len(of_prompt) == 32 for of_prompt in answers)
    ended = [answer for of_prompt in answers for answer in of_prompt if answer.endswith("<eos>")]
    assert len(ended) > 400 and not any(answer.count("<eos>") > 1 for answer in ended)
    assert all(len(set(of_prompt)) > 3 for of_prompt in answers)  # sampled, not greedy
    assert evaluate.sample_answers(task.TASK, tmp_path / "model", seed=0) == answers
    assert evaluate.sample_answers(task.TASK, tmp_path / "model", seed=1) != answers


def test_the_evaluation_is_written_down(tmp_path, monkeypatch):
    make_checkpoint(task.TASK, tmp_path / "model", steps=1)
    found = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "addends", str(tmp_path / "model"), "-o", str(found)])
    evaluate.main()
    assert json.loads(found.read_text()).keys() == {"distinct_right", "pass@1", "pass@8", "pass@32"}
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.lock", "found.json"}


# The results


GOOD = {  # arm -> the entropy and the reward of the second half, W, distinct right answers
    "grpo": (0.02, 0.99, None, 1.2),
    "fixed": (0.1, 0.98, 1.1, 1.5),
    "adaptive": (0.38, 0.96, 20.0, 4.0),
    "pi": (0.39, 0.95, 12.0, 4.2),
}


def write_run(folder: Path, arm: str, seed: int, entropy, reward, weight, distinct) -> Path:
    """A run whose entropy falls from 1 to `entropy` over the first half. `entropy` may be a list, one per step."""
    run = folder / f"{arm}-seed{seed}"
    curve = entropy if isinstance(entropy, list) else [1.0] * (STEPS // 2) + [entropy] * (STEPS // 2)
    writer = SummaryWriter(str(run / "tensorboard" / run.name))
    for step, value in enumerate(curve, start=1):
        writer.add_scalar("train/entropy/mean", value, step)
        writer.add_scalar("train/rollout/reward_mean", reward, step)
        if weight:
            writer.add_scalar("train/entropy/target", TARGET, step)
            writer.add_scalar("train/stare/reweight_w", weight, step)
    writer.close()
    settings = {"strengths": ["stare/reweight_w"], "sets": None, "facts": {}, "flags": {}, "arguments": {}}
    (run / "tensorboard" / run.name / "settings.json").write_text(json.dumps(settings))
    (run / "evaluation.json").write_text(json.dumps({"distinct_right": distinct, "pass@1": reward, "pass@32": 1.0}))
    return run


def write_study(folder: Path, seeds: int = 3, **changed) -> list[Path]:
    """The runs of a study in which all claims hold but for what is changed, which is changed on the last seed."""
    return [
        write_run(folder, arm, seed, *(changed.get(arm, figures) if seed == seeds - 1 else figures))
        for arm, figures in GOOD.items()
        for seed in range(seeds)
    ]


def run_summary(monkeypatch, capsys, tmp_path: Path, runs: list[Path]) -> tuple[int, str]:
    outputs = ["--table", tmp_path / "table.md", "--png", tmp_path / "entropy.png"]
    monkeypatch.setattr(sys, "argv", ["summary.py", *map(str, runs + outputs)])
    return summary.main(), capsys.readouterr().out


def test_a_study_whose_claims_hold(tmp_path, monkeypatch, capsys):
    pi = (0.42, 0.94, 18.0, 4.5)
    status, out = run_summary(monkeypatch, capsys, tmp_path, write_study(tmp_path, pi=pi))
    assert status == 0 and "MISS" not in out
    text = (tmp_path / "table.md").read_text()
    assert text in out
    rows = {
        row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    }
    assert list(rows) == ["", "---", "GRPO", "STARE, fixed", "STARE, adaptive", "STARE, PI"]
    assert rows["GRPO"] == ["0.020 ± 0.000", "0.0 ± 0.0 %", "0.990 ± 0.000", "1.20 ± 0.00", "0.990 ± 0.000",
                            "1.000 ± 0.000", "–"]  # fmt: skip
    # The mean and the sample standard deviation over the seeds: 0.39, 0.39 and 0.42.
    assert rows["STARE, PI"] == ["0.400 ± 0.017", "100.0 ± 0.0 %", "0.947 ± 0.006", "4.30 ± 0.17", "0.947 ± 0.006",
                                 "1.000 ± 0.000", "14.0 ± 3.5"]  # fmt: skip


def test_the_figure_shows_the_arms(tmp_path, monkeypatch, capsys):
    run_summary(monkeypatch, capsys, tmp_path, write_study(tmp_path))
    pixels = (255 * imread(tmp_path / "entropy.png")[..., :3]).round().astype(int)
    for colour in summary.COLOURS[: len(GOOD)]:
        wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert (np.abs(pixels - wanted).max(-1) <= 3).sum() > 200, colour


# A fifth of the second half's steps out of the band, with the same mean.
WANDERING = [1.0] * 20 + [0.55, 0.23] * 2 + [0.39] * 16


@pytest.mark.parametrize(
    "changed, missed",
    [
        ({"grpo": (0.11, 0.99, None, 1.2)}, ["GRPO's entropy ends at 0.110 or less on every seed"]),
        ({"adaptive": (WANDERING, 0.96, 20.0, 4.0)}, ["STARE, adaptive: on every seed 80.0 % of the steps or more"]),
        ({"pi": (WANDERING, 0.95, 20.0, 4.2)}, ["STARE, PI: on every seed 80.0 % of the steps or more"]),
        ({"pi": (0.31, 0.95, 20.0, 4.2)}, ["STARE, PI: the mean entropy is -9.2 % off the target"]),
        ({"adaptive": (0.38, 0.96, 20.0, 0.5)}, []),  # (4 + 4 + 0.5) / 3 is still twice 1.2
        ({"adaptive": (0.38, 0.96, 20.0, 0.0), "grpo": (0.02, 0.99, None, 2.4)},
         ["STARE, adaptive: 2.67 distinct right answers; wanted: twice GRPO's 1.60"]),
        ({"pi": (0.39, 0.80, 20.0, 4.2)}, ["STARE, PI: the mean reward is 0.090 below GRPO's"]),
    ],
)  # fmt: skip
def test_a_claim_that_does_not_hold_is_named_with_its_figure(tmp_path, monkeypatch, capsys, changed, missed):
    status, out = run_summary(monkeypatch, capsys, tmp_path, write_study(tmp_path, **changed))
    found = [line.removeprefix("MISS ") for line in out.splitlines() if line.startswith("MISS")]
    assert status == bool(missed) and len(found) == len(missed)
    assert all(line.startswith(sentence) for line, sentence in zip(found, missed, strict=True))


def test_one_seed_has_means_without_a_spread(tmp_path, monkeypatch, capsys):
    status, out = run_summary(monkeypatch, capsys, tmp_path, write_study(tmp_path, seeds=1))
    assert status == 0 and "±" not in (tmp_path / "table.md").read_text().splitlines()[2]


# Two targets in one run


@pytest.mark.parametrize(
    "second_half, status, said",
    [
        (0.42, 0, "pass target 0.4, steps 21 to 40: entropy 0.420 ± 0.000, 100.0 % of the steps within ±25 %"),
        (0.6, 1, "MISS target 0.4, steps 21 to 40: entropy 0.600 ± 0.000, 0.0 % of the steps within ±25 %"),
    ],
)
def test_whether_the_entropy_follows_a_second_target(tmp_path, monkeypatch, capsys, second_half, status, said):
    # A log for each start of the job; the entropy needs half of the steps to settle on a target.
    for start, target, settled in ((1, 0.6, 0.57), (21, 0.4, second_half)):
        writer = SummaryWriter(str(tmp_path / "tensorboard"), filename_suffix=f".{start}")
        for step in range(start, start + 20):
            writer.add_scalar("train/entropy/mean", 1.0 if step < start + 10 else settled, step)
            writer.add_scalar("train/entropy/target", target, step)
        writer.close()
    monkeypatch.setattr(sys, "argv", ["two_targets.py", str(tmp_path)])
    assert two_targets.main() == status
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("pass target 0.6, steps 1 to 20: entropy 0.570 ± 0.000, 100.0 % of the steps")
    assert second.startswith(said)
