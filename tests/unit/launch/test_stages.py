"""The studies with a second stage: their rules, and from runs to a table, a figure and claims."""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

from openrlhf_stare.quickstart import task
from openrlhf_stare.quickstart.reward import score

LAUNCH = Path(__file__).parents[3] / "launch"


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the dataclasses of the module look for it
    spec.loader.exec_module(module)
    return module


RULES = ("smallest", "closest", "largest", "even")
smallest, closest, largest, even = (load(f"second_stage/{rule}") for rule in RULES)
STUDIES = ("second_stage", "sequence", "methods", "one_setting", "results")
second_stage, sequence, methods, one_setting, results = (load(f"study/{name}") for name in STUDIES)


# The rules


@pytest.mark.parametrize("total", task.TOTALS)
def test_a_rule_takes_some_of_the_right_pairs(total):
    answers = [f"{total:02}={first}+{second}<eos>" for first in range(10) for second in range(10)]
    right = [(int(a[3]), int(a[5])) for a in answers if score(a)]
    assert [(int(a[3]), int(a[5])) for a in answers if smallest.score(a)] == [min(right)]
    least = min(abs(first - second) for first, second in right)
    assert [(int(a[3]), int(a[5])) for a in answers if closest.score(a)] == [
        pair for pair in right if abs(pair[0] - pair[1]) == least
    ]
    assert [(int(a[3]), int(a[5])) for a in answers if largest.score(a)] == [max(right)]
    evens = [pair for pair in right if pair[0] in (0, 2, 4, 6, 8)]
    assert [(int(a[3]), int(a[5])) for a in answers if even.score(a)] == evens and evens


@pytest.mark.parametrize("rule", [smallest, closest, largest, even])
def test_what_is_no_answer_gets_nothing(rule):
    for query in ("", "12=", "12=3+9", "12=6+6", "12=3+9<eos><eos>", "12=3+9<pad>", "12=3+9x<eos>", "00=0+0"):
        assert rule.score(query) == 0
    queries = ["02=0+2<eos>", "02=1+1<eos>", "02=2+0<eos>"]
    right = {smallest: [1, 0, 0], closest: [0, 1, 0], largest: [0, 0, 1], even: [1, 0, 1]}
    assert rule.reward_func(queries, ["02="] * 3, ["02"] * 3)["rewards"].tolist() == right[rule]


# The scripts


@pytest.mark.parametrize(
    "script, reason, arms",
    [
        (
            "second_stage.sh",
            "no rule",
            {f"{rule}-{arm}" for rule in ("smallest", "closest") for arm in second_stage.ARMS},
        ),
        ("one_setting_study.sh", "no task", {f"addends-bonus_{constant}" for constant in one_setting.CONSTANTS}),
    ],
)
def test_a_script_goes_through_all_of_its_arms(tmp_path, script, reason, arms):
    """In a folder without rules and tasks, each arm is refused by its name, once for each seed."""
    (tmp_path / "launch/addends").mkdir(parents=True)
    for name in (script, "any_task_study.sh", "addends/job.sh", "run_job.sh"):
        (tmp_path / "launch" / name).write_text((LAUNCH / name).read_text())
    (tmp_path / "launch/install.sh").touch()
    part = ["choice"] if script == "one_setting_study.sh" else []
    command = ["bash", tmp_path / "launch" / script, *part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    refused = [text.split()[1] for text in done.stderr.splitlines() if f"has {reason}" in text]
    assert set(refused) == arms and len(refused) == len(arms) * (3 if script == "second_stage.sh" else 2)
    assert done.returncode != 0


@pytest.mark.parametrize("script", ["any_task", "pretrained", "sequence", "one_setting"])
@pytest.mark.parametrize("seed", ["six", "08", "1234567890"])  # to bash 08 is a wrong octal number
def test_what_is_no_seed_is_refused_before_any_run(script, seed):
    command, environment = ["bash", LAUNCH / f"{script}_study.sh"], os.environ | {"SEEDS": f"0 12 {seed}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and not done.stdout
    why = f"{seed} is no seed: give 0, or up to nine digits without a 0 in front"
    assert done.stderr == f"{script}_study: SEEDS=0 12 {seed}: {why}\n"


@pytest.mark.parametrize("script", ["entropy", "reversal", "one_setting"])
def test_a_study_that_trains_all_of_its_arms_refuses_a_choice_of_them(script):
    command, environment = ["bash", LAUNCH / f"{script}_study.sh"], os.environ | {"ARMS": "grpo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    said = f"{script}_study: ARMS=grpo is no choice that this study has: unset it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_part_that_is_none_is_refused_before_the_first_one():
    command = ["bash", LAUNCH / "one_setting_study.sh", "choice", "arm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = "one_setting_study: arm is not one of choice, arms, third, cost and results\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    "script, arms", [("second_stage", "largest-grpo-grpo"), ("pretrained_study", "sums-grpo"), ("both_ways", "grpo")]
)
def test_an_arm_that_is_not_of_the_study_is_refused_before_any_run(script, arms):
    command, environment = ["bash", LAUNCH / f"{script}.sh"], os.environ | {"ARMS": arms}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and done.stderr.startswith(f"{script}: {arms} is not one of ") and not done.stdout


def shell(script: str, **variables: str) -> subprocess.CompletedProcess:
    """Some of what the scripts share, with `set -eu` and in the repository's root."""
    command = ["bash", "-euc", f"source launch/addends/job.sh; {script}"]
    environment = {name: value for name, value in os.environ.items() if name != "OPENRLHF_STARE_CPU_DTYPE"} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=LAUNCH.parent, env=environment)


@pytest.mark.parametrize(
    "steps, dtype, file",
    [
        ("120", {}, "sequence.jsonl"),
        ("10", {}, "sequence_10.jsonl"),
        ("120", {"OPENRLHF_STARE_CPU_DTYPE": "bfloat16"}, "sequence_bfloat16.jsonl"),
        ("120", {"OPENRLHF_STARE_CPU": "0"}, "sequence_gpu.jsonl"),
        ("120", {"after": "20"}, "sequence_after_20.jsonl"),
    ],
)
def test_runs_of_other_steps_or_another_type_have_a_file_of_their_own(steps, dtype, file):
    script = 'usual_steps=120 model_steps=${after:-}; results_of sequence; echo "$results $OPENRLHF_STARE_CPU_DTYPE"'
    done = shell(script, steps=steps, **dtype)
    assert done.stdout == f"docs/results/{file} {dtype.get('OPENRLHF_STARE_CPU_DTYPE', 'float32')}\n", done


def test_a_type_that_is_none_is_told_in_a_sentence():
    done = shell("usual_steps=1; results_of sequence", steps="1", OPENRLHF_STARE_CPU_DTYPE="float")
    said = "bash: OPENRLHF_STARE_CPU_DTYPE=float is neither float32 nor bfloat16: set it to one of them, or unset it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_run_that_another_process_is_at_is_left_alone(tmp_path):
    run = tmp_path / "home/routes-stare-seed0"
    begin = "job=(--flag); begin_run; echo begun"
    settings = {"arm": "routes-stare", "seed": "0", "steps": "3", "run": str(run), "results": ""}
    assert "begun" in shell(begin, **settings).stdout
    (run / "output.log").write_text("alive")
    with open(f"{run}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shell(begin, **settings)
    assert done.returncode == 1 and done.stderr.endswith(": routes-stare, seed 0: another process is at it\n")
    assert (run / "output.log").read_text() == "alive"
    assert "begun" in shell(begin, **settings).stdout and not (run / "output.log").exists()


def test_a_file_system_without_locks_keeps_no_run_from_starting(tmp_path):
    flock = tmp_path / "flock"
    flock.write_text("#!/bin/sh\nexit 71\n")  # what it says then; 1 is that another process has the lock
    flock.chmod(0o755)
    settings = {"arm": "a", "seed": "0", "steps": "3", "run": str(tmp_path / "home/run"), "results": ""}
    done = shell("job=(--flag); begin_run; echo begun", **settings, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0 and "begun" in done.stdout, done


def test_python_speaks_utf8_whatever_the_locale():
    done = shell('"$python" -c "print(chr(0x2192))"', LC_ALL="C", PYTHONUTF8="0")
    assert (done.stdout, done.stderr) == ("→\n", "")


def test_a_second_stage_after_a_first_of_other_steps_and_a_run_in_another_type_are_others(tmp_path):
    recipes = set()
    for number, (after, dtype) in enumerate([("", "float32"), ("20", "float32"), ("", "bfloat16")]):
        run = tmp_path / f"run{number}"
        settings = {"arm": "a", "seed": "0", "steps": "3", "run": str(run), "results": ""}
        script = f"job=(--flag value) model_steps={after}; begin_run"
        assert shell(script, **settings, OPENRLHF_STARE_CPU_DTYPE=dtype).returncode == 0
        recipes.add(results.recipe_hash((run / "begun").read_text()))
    assert len(recipes) == 3 and results.recipe_hash("3 steps\n--flag\nvalue\n") in recipes


@pytest.mark.parametrize(
    "script, arm, seed, run",
    [
        ("any_task_study", "addends-stare", 0, "any_task_study/addends-stare-seed0"),
        ("second_stage", "smallest-stare-grpo", 3, "second_stage/smallest-stare-grpo-seed3"),
        ("sequence_study", "grpo", 6, "sequence_study/even-grpo-seed6"),
        ("pretrained_study", "chain_sum-stare20", 1, "pretrained_study/float32/chain_sum-stare20-seed1"),
        ("pretrained_study", "again-grpo", 0, "pretrained_study/float32/again-grpo-seed0"),
    ],
)
def test_a_run_whose_line_is_in_the_repository_is_done(tmp_path, script, arm, seed, run):
    """On any machine: in a copy without runs. Where it is not known, it is held here, so that nothing is trained."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    shutil.copytree(LAUNCH.parent / "docs/results", tmp_path / "docs/results")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    lock = tmp_path / "runs" / f"{run}.lock"
    lock.parent.mkdir(parents=True)
    ours = ("STEPS", "AGAIN_STEPS", "FIRST_STEPS", "OPENRLHF_STARE_CPU_DTYPE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = ["bash", tmp_path / f"launch/{script}.sh", arm, str(seed)]
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and ": is in docs/results/" in done.stdout, done


# The results


def write_run(folder: Path, entropy: list[float], reward: list[float], seconds: float = 1.0) -> Path:
    writer = SummaryWriter(str(folder / "tensorboard" / folder.name))
    for step, (h, r) in enumerate(zip(entropy, reward, strict=True), start=1):
        writer.add_scalar("train/entropy/mean", h, step)
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


def line(task: str, arm: str, seed: int, ends: list[float], entropy: float = 0.1) -> str:
    """A line of results with a stage for each of the rewards at the end."""
    stages = []
    for place, end in enumerate(ends):
        figures = {"steps": 60, "reward_end": end, "entropy_end": entropy, "steps_to_solve": 30 if end > 0.9 else None}
        # No seed's curve lies upon another's.
        curves = {"step": [15.5, 45.5], "reward": [seed / 10, end], "entropy": [entropy, seed / 10]}
        stages.append({"name": f"stage{place}", "figures": figures, "curves": curves})
    recipe = f"{task}-{arm}-{seed}"
    return json.dumps({"recipe": recipe, "task": task, "arm": arm, "seed": seed, "stages": stages, "machine": {}})


def judged(module, monkeypatch, capsys, tmp_path: Path, lines: list[str]) -> tuple[int, list[str]]:
    """Exit status and the claims that were printed, of results with these lines."""
    file = tmp_path / "results.jsonl"
    file.write_text("".join(text + "\n" for text in lines))
    outputs = ["--table", tmp_path / "table.md", "--png", tmp_path / "figure.png"]
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, [file, *outputs])])
    status, out = module.main(), capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() in out
    return status, [text for text in out.splitlines() if text.startswith(("pass", "MISS", "open"))]


def is_drawn(tmp_path: Path, count: int) -> bool:
    """Whether so many seeds are in the figure, each in a colour of its own."""
    drawn = (255 * imread(tmp_path / "figure.png")[..., :3]).round().astype(int)
    wanted = [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in second_stage.COLOURS[:count]]
    return all((np.abs(drawn - colour).max(-1) <= 3).sum() > 100 for colour in wanted)


ENDS = {"grpo-grpo": 0.7, "stare-grpo": 0.96, "grpo-stare": 0.75, "stare-stare": 0.97, "bonus-grpo": 0.95}


@pytest.mark.parametrize(
    "changed, verdicts",
    [
        ({}, "pass pass pass pass pass"),
        ({("stare-stare", 5): 0.94}, "MISS pass pass pass pass"),
        ({("stare-stare", 5): 0.78}, "MISS MISS pass MISS pass"),
        ({("stare-grpo", 4): 0.69}, "pass pass MISS MISS MISS"),
        ({("grpo-stare", 3): 0.99, ("grpo-stare", 4): 0.99}, "pass pass pass MISS pass"),
        ({("bonus-grpo", 3): 0.7}, "pass pass pass pass MISS"),
        ({("grpo-grpo", seed): 0.90 for seed in (3, 4, 5)}, "pass MISS MISS pass pass"),
        ({("bonus-grpo", 3): None}, "pass pass pass pass open"),
    ],
)
def test_the_claims_of_the_second_stage(tmp_path, monkeypatch, capsys, changed, verdicts):
    ends = {("smallest", arm, seed): end for arm, end in ENDS.items() for seed in (3, 4, 5)}
    ends |= {("smallest", *key): end for key, end in changed.items()}
    lines = [line(*key, [0.9, end]) for key, end in ends.items() if end is not None]
    status, claims = judged(second_stage, monkeypatch, capsys, tmp_path, lines)
    found = [claim[:4] for claim in claims]
    assert found[:5] == verdicts.split() and status == ("MISS" in found)
    assert found[5:] == ["open"] * 5  # the other rule
    assert is_drawn(tmp_path, 3)


def test_the_table_of_the_second_stage(tmp_path, monkeypatch, capsys):
    ends = zip((3, 4, 5), (0.5, 0.6, 0.97), strict=True)
    lines = [line("closest", "stare-grpo", seed, [0.9, end], entropy=0.4) for seed, end in ends]
    judged(second_stage, monkeypatch, capsys, tmp_path, lines)
    assert (tmp_path / "table.md").read_text().splitlines()[2:] == [
        "| closest addends | STARE → GRPO | 0.690 [0.500, 0.970] | 3: 0.500, 4: 0.600, 5: 0.970 | never, never, 30 "
        "| 0.400 [0.400, 0.400] |"
    ]


LATER = {
    "grpo": [0.99, 0.6, 0.6, 0.5, 0.6],
    "bonus": [0.95, 0.9, 0.9, 0.85, 0.8],
    "stare": [0.95, 0.9, 0.9, 0.9, 0.85],
    "stare+entropy_bonus": [0.95, 0.9, 0.9, 0.9, 0.9],
}


@pytest.mark.parametrize(
    "changed, verdicts",
    [
        ({}, "pass pass pass pass pass"),
        ({"grpo": [0.99, 0.8, 0.8, 0.8, 0.8]}, "MISS pass pass pass pass"),
        ({"stare": [0.79, 0.9, 0.9, 0.9, 0.9]}, "pass MISS pass pass pass"),
        ({"stare": [0.95, 0.95, 0.9, 0.9, 0.84]}, "pass pass MISS pass pass"),
        ({"bonus": [0.9, 0.95, 0.95, 0.95, 0.95]}, "pass pass pass MISS pass"),
        ({"stare+entropy_bonus": [0.95, 0.8, 0.8, 0.8, 0.8]}, "pass pass pass pass MISS"),
        ({"bonus": None}, "pass pass pass open pass"),
    ],
)
def test_the_claims_of_the_sequence(tmp_path, monkeypatch, capsys, changed, verdicts):
    ways = {way: ends for way, ends in (LATER | changed).items() if ends}
    lines = [line("even", way, seed, ends) for way, ends in ways.items() for seed in (6, 7, 8)]
    status, claims = judged(sequence, monkeypatch, capsys, tmp_path, lines)
    assert [claim[:4] for claim in claims] == verdicts.split() and status == ("MISS" in verdicts)
    assert len(cells(tmp_path)) == len(ways) and is_drawn(tmp_path, 3)


@pytest.mark.parametrize("seeds, verdict", [((6, 7), "pass"), ((6,), "open")])
def test_two_seeds_are_enough_for_the_claims_of_the_sequence(tmp_path, monkeypatch, capsys, seeds, verdict):
    lines = [line("even", way, seed, ends) for way, ends in LATER.items() for seed in seeds]
    _, claims = judged(sequence, monkeypatch, capsys, tmp_path, lines)
    assert {claim[:4] for claim in claims} == {verdict}


def test_results_that_are_not_there_are_no_study_without_runs(tmp_path, monkeypatch, capsys):
    outputs = ["--table", tmp_path / "table.md", "--png", tmp_path / "figure.png"]
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, [tmp_path / "none.jsonl", *outputs])])
    with pytest.raises(SystemExit) as ended:
        sequence.main()
    assert ended.value.code == 2 and f"there is no file {tmp_path / 'none.jsonl'}" in capsys.readouterr().err
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(SystemExit) as ended:
        sequence.main()
    assert ended.value.code == 2 and f"{tmp_path / 'none.jsonl'} is empty" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    "study, words",
    [
        *((study, ["none-seed0"]) for study in ("both_ways", "methods", "reversal_results", "summary", "two_targets")),
        ("enter", ["lines.jsonl", "--run", "none-seed0"]),
    ],
)
def test_a_run_that_is_not_there_is_told_in_a_sentence(tmp_path, monkeypatch, capsys, study, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", *words])
    with pytest.raises(SystemExit) as ended:
        load(f"study/{study}").main()
    assert ended.value.code == 2 and "there is no folder none-seed0: give that of a run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
