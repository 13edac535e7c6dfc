"""The studies with a second stage: their rules, and from runs to a table, a figure and claims."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

LAUNCH = Path(__file__).parents[3] / "launch"


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the dataclasses of the module look for it
    spec.loader.exec_module(module)
    return module


make = load("addends/make")
smallest, closest = load("second_stage/smallest"), load("second_stage/closest")
second_stage, methods = load("study/second_stage"), load("study/methods")


# The rules


@pytest.mark.parametrize("total", make.TOTALS)
def test_a_rule_takes_some_of_the_right_pairs(total):
    answers = [f"{total:02}={first}+{second}<eos>" for first in range(10) for second in range(10)]
    right = [(int(a[3]), int(a[5])) for a in answers if make.score(a)]
    assert [(int(a[3]), int(a[5])) for a in answers if smallest.score(a)] == [min(right)]
    least = min(abs(first - second) for first, second in right)
    assert [(int(a[3]), int(a[5])) for a in answers if closest.score(a)] == [
        pair for pair in right if abs(pair[0] - pair[1]) == least
    ]


@pytest.mark.parametrize("rule", [smallest, closest])
def test_what_is_no_answer_gets_nothing(rule):
    for query in ("", "12=", "12=3+9", "12=6+6", "12=3+9<eos><eos>", "12=3+9<pad>", "12=3+9x<eos>", "00=0+0"):
        assert rule.score(query) == 0
    rewards = rule.reward_func(["02=0+2<eos>", "02=1+1<eos>"], ["02=", "02="], ["02", "02"])["rewards"]
    assert rewards.tolist() == ([1, 0] if rule is smallest else [0, 1])


# The results


def write_run(folder: Path, entropy: list[float], reward: list[float], seconds: float = 1.0) -> Path:
    writer = SummaryWriter(str(folder / "tensorboard" / folder.name))
    for step, (h, r) in enumerate(zip(entropy, reward, strict=True), start=1):
        writer.add_scalar(f"train/{second_stage.ENTROPY}", h, step)
        writer.add_scalar("train/rollout/reward_mean", r, step)
        writer.add_scalar("train/timing/step_total", seconds, step)
    writer.close()
    (folder / "evaluation.json").write_text(json.dumps({"distinct_right": 3.0}))
    return folder


def run(module, monkeypatch, capsys, tmp_path: Path, runs: list[Path], *more) -> tuple[int | None, str]:
    outputs = [*more, "--table", tmp_path / "table.md", "--png", tmp_path / "figure.png"]
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, runs + outputs)])
    status, out = module.main(), capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() in out
    return status, out


def cells(tmp_path: Path) -> dict[str, list[str]]:
    lines = (tmp_path / "table.md").read_text().splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize(
    "end, status, missed",
    [
        (0.97, 0, []),
        (0.94, 1, ["STARE → STARE ends at 0.940 or more on every seed; wanted: 0.95"]),
        (0.83, 1, ["STARE → STARE ends at 0.830", "STARE → STARE ends 0.130 or more above GRPO → GRPO"]),
    ],
)
def test_the_second_stage(tmp_path, monkeypatch, capsys, end, status, missed):
    first = tmp_path / "first"
    for arm, h in (("grpo", 0.02), ("pi", 0.4)):
        for seed in range(2):
            write_run(first / f"{arm}-seed{seed}", [h] * 30, [0.9] * 30)
    runs = []
    for arm, reward in (("grpo-grpo", 0.7), ("pi-grpo", 0.85), ("grpo-pi", 0.75), ("pi-pi", 0.99)):
        for seed in range(2):
            last = end if (arm, seed) == ("pi-pi", 1) else reward
            rewards = [0.1] * 30 + [last] * 30
            runs.append(write_run(tmp_path / f"{arm}-seed{seed}", [0.1] * 60, rewards))
    found_status, out = run(second_stage, monkeypatch, capsys, tmp_path, runs, "--first", first)
    assert found_status == status
    misses = [line.removeprefix("MISS ") for line in out.splitlines() if line.startswith("MISS")]
    assert len(misses) == len(missed)
    assert all(line.startswith(sentence) for line, sentence in zip(misses, missed, strict=True))
    rows = cells(tmp_path)
    assert list(rows) == ["GRPO → GRPO", "STARE → GRPO", "GRPO → STARE", "STARE → STARE"]
    assert rows["GRPO → GRPO"] == ["0.700 ± 0.000", "0.700, 0.700", "never, never", "0.020 ± 0.000"]
    assert rows["STARE → GRPO"][3] == "0.400 ± 0.000"
    assert rows["STARE → STARE"][1] == f"0.990, {end:.3f}"
    drawn = (255 * imread(tmp_path / "figure.png")[..., :3]).round().astype(int)
    for colour in second_stage.COLOURS[:4]:
        wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert (np.abs(drawn - wanted).max(-1) <= 3).sum() > 100, colour


def test_the_methods_side_by_side(tmp_path, monkeypatch, capsys):
    runs = []
    for arm, h, seconds in (("grpo", 0.05, 0.5), ("kl_cov", 0.45, 0.6), ("kl_cov_pi", 0.39, 0.55)):
        for seed in range(2):
            # Half of the second half's steps are out of the band for kl_cov.
            entropy = [1.0] * 20 + ([h, h + 0.2] if arm == "kl_cov" else [h, h]) * 10
            runs.append(write_run(tmp_path / f"{arm}-seed{seed}", entropy, [0.9] * 40, seconds))
            write_run(tmp_path / "again" / f"{arm}-seed{seed}", [0.1] * 20, [0.5 + seed / 10] * 20)
    run(methods, monkeypatch, capsys, tmp_path, runs)
    rows = cells(tmp_path)
    assert list(rows) == ["GRPO", "`kl_cov`, as published", "`kl_cov`, PI"]
    assert rows["GRPO"][1:] == ["0.0 ± 0.0 %", "0.900 ± 0.000", "3.00 ± 0.00", "0.550 ± 0.071", "1.00"]
    assert rows["`kl_cov`, as published"][:2] == ["0.550 ± 0.000", "50.0 ± 0.0 %"]
    assert rows["`kl_cov`, PI"][1] == "100.0 ± 0.0 %" and rows["`kl_cov`, PI"][-1] == "1.10"
    assert (tmp_path / "figure.png").stat().st_size > 10_000
