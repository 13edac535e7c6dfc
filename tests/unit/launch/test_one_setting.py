"""One setting on many tasks: the choice of the constant bonus, and from results to tables, a figure and claims."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[3]
STUDY = ROOT / "launch/study"


def load(name: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(f"study_{name}", STUDY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


study = load("one_setting")
results = sys.modules["results"]  # which it imports


def result(task: str, arm: str, seed: int, **figures):
    """A line of results; without more figures it holds half of its first entropy."""
    usual = {"first_entropy": 1.0, "target": 0.5, "entropy": 0.5, "in_band": 1.0, "reward": 0.9, "step_seconds": 0.5}
    usual |= {"with_authority": 1.0, "in_band_with_authority": 1.0, "distinct_right": 4.0, "verdict": "held"}
    usual |= {"pass@1": 0.9, "pass@8": 1.0, "pass@32": 1.0}
    curves = {"step": [50.5, 150.5], "entropy": [1 + seed / 10, 0.5 + seed / 10], "reward": [0.3, 0.9]}
    stage = results.Stage(f"{task}-{arm}-seed{seed}", usual | figures, curves)
    return results.Result(stage.name, task, arm, seed, [stage], {})


# The choice


def choice(**in_band: tuple[float, float]) -> list:
    """The eight runs, with the shares in band of their two seeds; the entropy rises with the constant."""
    shares = {"0.003": (0, 0), "0.01": (0, 0), "0.03": (0, 0), "0.1": (0, 0)} | in_band
    entropy = {"0.003": 0.1, "0.01": 0.2, "0.03": 0.3, "0.1": 0.7}
    return [
        result("addends", f"bonus_{constant}", seed, in_band=share, entropy=entropy[constant])
        for constant, of in shares.items()
        for seed, share in zip((10, 11), of, strict=True)
    ]


@pytest.mark.parametrize(
    "in_band, chosen",
    [
        ({"0.01": (0.5, 0.4), "0.03": (1.0, 0.0)}, "0.03"),  # the largest mean share
        ({"0.003": (0.4, 0.4), "0.03": (0.8, 0.0)}, "0.03"),  # equal, and 0.3 is nearer to 0.5 than 0.1
        ({}, "0.1"),  # none in band: as a ratio 0.7 is nearer to 0.5 than 0.3
    ],
)
def test_the_constant_is_chosen_by_the_rule(in_band, chosen):
    others = [result("addends", "bonus_0.003", 0), result("routes", "bonus_0.003", 10), result("addends", "stare", 10)]
    assert study.choose(choice(**in_band) + others) == chosen


def test_there_is_no_choice_before_all_eight_runs(tmp_path):
    with pytest.raises(study.NoChoice, match="2 are missing: 0.01, seed 11; 0.1, seed 10"):
        study.choose([run for n, run in enumerate(choice()) if n not in (3, 6)])
    command = [sys.executable, STUDY / "one_setting.py", tmp_path / "none.jsonl", "--choose"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and not done.stdout and "run launch/one_setting_study.sh choice" in done.stderr


# The claims


def all_runs() -> list:
    """Runs by which all claims hold."""
    runs = choice(**{"0.03": (1.0, 1.0)})
    for seed in study.SEEDS:
        for task in study.TASKS:
            fits = {"in_band": 1.0} if task in ("addends", "routes") else {"in_band": 0.2}
            fits["entropy"] = {"own_task": 0.3, "reversal": 0.9}.get(task, 0.5)
            low = {"in_band": 0.0, "entropy": 0.1}
            runs += [
                result(task, "grpo", seed, **low, distinct_right=1.5, reward=0.95),
                result(task, "bonus_0.03", seed, **fits),
                result(task, "entropy_bonus", seed),
                result(task, "stare", seed),
                result(task, "stare+entropy_bonus", seed),
                result(task, "repo", seed, **low),
            ]
    runs += [result(task, "stare-lr1e-4", 0) for task in study.TASKS]
    for seed in study.COST_SEEDS:  # a machine that slows down: the turns are compared one by one
        runs += [
            result("addends", f"{way}-cost", seed, step_seconds=t * seed)
            for way, t in (("grpo", 1.0), ("stare", 1.05))
        ]
    return runs


def changed(task: str | None, arm: str, seed: int | None = None, **figures) -> list:
    """All runs, in some of which these figures are others."""
    runs = all_runs()
    for run in runs:
        if (task in (None, run.task)) and run.arm == arm and seed in (None, run.seed):
            run.figures.update(figures)
    return runs


@pytest.mark.parametrize(
    "runs, missed",
    [
        (all_runs(), []),
        (changed("own_task", "bonus_0.03", in_band=0.95), [1]),  # three tasks
        (changed("own_task", "bonus_0.03", entropy=0.5), [2]),  # too strong alone
        (changed("reversal", "stare", 0, in_band_with_authority=0.6, in_band=0.6), [3]),
        # Without authority in most steps of a seed the task is not asked of STARE.
        (changed("reversal", "stare", 0, with_authority=0.4, in_band_with_authority=None, in_band=0.6), []),
        (changed("reversal", "stare+entropy_bonus", in_band=0.8), [4]),
        (changed(None, "entropy_bonus", in_band=0.0), [5]),
        (changed(None, "repo", in_band=1.0), [6]),
        (changed("routes", "stare", distinct_right=2.0), [7]),
        (changed("reversal", "stare", distinct_right=1.0), []),  # has one right answer
        (changed("routes", "stare", reward=0.85), [8]),
        (changed("routes", "stare-lr1e-4", in_band=0.5), [9]),
        (changed("addends", "stare-cost", step_seconds=200.0), [10]),
    ],
)
def test_the_claims(runs, missed):
    claims = study.claims(runs, "0.03")
    assert [place for place, (holds, _) in enumerate(claims, start=1) if not holds] == missed, claims
    assert all(holds is not None and said for holds, said in claims) and len(claims) == 10


def test_the_claims_are_those_of_the_script():
    head = (ROOT / "launch/one_setting_study.sh").read_text().partition("set -euo")[0]
    assert re.findall(r"^# +(\d+)\. ", head, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert f"Of {', '.join(study.CONSTANTS[:3])} and {study.CONSTANTS[3]} that with" in head


def test_a_claim_without_its_runs_is_open():
    runs = [run for run in all_runs() if (run.arm, run.seed, run.task) != ("stare", 2, "routes")]
    open_ones = [place for place, (holds, _) in enumerate(study.claims(runs, "0.03"), start=1) if holds is None]
    assert open_ones == [3, 7, 8, 9]
    assert "1 of 12 runs of stare are missing" in study.claims(runs, "0.03")[2][1]
    assert {holds for holds, _ in study.claims([], None)} == {None}
    # With no task on which there is authority nothing was asked.
    assert study.claims(changed(None, "stare", 0, with_authority=0.1), "0.03")[2][0] is None


# The results


def test_tables_figure_and_claims_come_from_the_file_alone(tmp_path, monkeypatch, capsys):
    file = tmp_path / "any_task.jsonl"
    for run in changed("routes", "stare", 1, in_band=0.0, in_band_with_authority=0.0, reward=0.3):
        assert results.enter(file, run)
    assert not results.enter(file, all_runs()[0])  # a line with its recipe is there
    arguments = [file, "--table", tmp_path / "table.md", "--png", tmp_path / "curves.png"]
    monkeypatch.setattr(sys, "argv", ["one_setting.py", *map(str, arguments)])
    assert study.main() == 1
    out, table = capsys.readouterr().out, (tmp_path / "table.md").read_text()
    assert table in out and out.count("\nMISS ") == 2  # what it holds where it can, and the worst reward
    assert "| STARE, PI | 100 % | 100 % | 67 % | 100 % | 0.700 | 1.05 | 12 of 12 |" in table
    assert "| constant bonus | 100 % | 20 % | 100 % | 20 % | 0.900 | – | 12 of 12 |" in table
    assert "| routes | STARE, PI | 0, 1, 2 | 0.50 [0.50, 0.50] | 67 [0, 100] % | 0.700 [0.300, 0.900] |" in table
    assert table.count("\n| 0.03 | 1") == 2  # the choice
    drawn = (255 * imread(tmp_path / "curves.png")[..., :3]).round().astype(int)
    for colour in study.COLOURS[:3]:
        wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert (np.abs(drawn - wanted).max(-1) <= 3).sum() > 100, colour


@pytest.mark.parametrize("given", [(), ("--table", "table.md"), ("--png", "curves.png")])
def test_a_command_without_anything_to_do_is_told_in_a_sentence(tmp_path, monkeypatch, capsys, given):
    monkeypatch.setattr(sys, "argv", ["one_setting.py", str(tmp_path / "none.jsonl"), *given])
    with pytest.raises(SystemExit) as ended:
        study.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(": error: give --choose, or --table FILE and --png FILE\n")


def test_the_results_in_the_repository_can_be_read():
    for file in (ROOT / "docs/results").glob("*.jsonl"):
        lines = results.read(file)
        assert len({line.recipe for line in lines}) == len(lines) > 0
        assert not re.search(r"/(tmp|work|home|root)/", file.read_text())
        assert json.loads(file.read_text().splitlines()[0])["machine"]["openrlhf"]
