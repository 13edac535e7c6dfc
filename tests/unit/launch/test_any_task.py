"""Your own task, the routes and the sorting task, and the study of them: what is right, from runs to lines of results,
and from these to claims."""

import errno
import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from flag_parser import parse
from torch.utils.tensorboard import SummaryWriter

from openrlhf_stare.driver import checks

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "launch"
TASKS = ("own_task", "routes", "sorting")


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Your own task imports the `reward` beside it, and other tests import another one of this name.
    before, paths = sys.modules.pop("reward", None), list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = paths
    sys.modules.pop("reward", None)
    if before:
        sys.modules["reward"] = before
    return module


makes, rewards = ({task: load(f"{task}/{file}") for task in TASKS} for file in ("make", "reward"))
results, enter, study = (load(f"study/{name}") for name in ("results", "enter", "any_task"))


# ── what is right ──


@pytest.mark.parametrize(
    "task, query, right",
    [
        ("own_task", "bdf=abdef<eos>", 1),
        ("own_task", "bdf=bcdfg<eos>", 1),
        ("own_task", "bdf=bdefh", 0),  # no end
        ("own_task", "bdf=bdfea<eos>", 0),  # not in order
        ("own_task", "bdf=bddef<eos>", 0),  # one twice
        ("own_task", "bdf=acegi<eos>", 0),  # none of the given ones
        ("own_task", "bdf=bdefk<eos>", 0),
        ("own_task", "", 0),
        ("sorting", "315=135<eos>", 1),
        ("sorting", "355=355<eos>", 1),
        ("sorting", "315=153<eos>", 0),
        ("sorting", "315=134<eos>", 0),
        ("sorting", "315=135", 0),
        ("sorting", "315=135<eos><eos>", 0),
        ("routes", "a>a=<eos>", 0),
        ("routes", "nonsense", 0),
    ],
)
def test_the_reward_of_an_answer(task, query, right):
    reward = rewards[task]
    assert reward.score(query) == right
    found = reward.reward_func([query, query], ["", ""], ["", ""])
    assert found["rewards"].tolist() == found["scores"].tolist() == [right, right]
    assert all(isinstance(tensor, torch.Tensor) and len(tensor) == 2 for tensor in found["extra_logs"].values())


def test_a_way_along_the_edges_is_right_and_no_other():
    reward = rewards["routes"]
    start = "a"
    middle = reward.EDGES[start][0]
    end = reward.EDGES[middle][1]
    assert reward.score(f"{start}>{end}={middle}{end}<eos>") == 1
    assert reward.score(f"{start}>{end}={middle}{end}") == 0
    other = next(node for node in reward.NODES if node not in reward.EDGES[start])
    assert reward.score(f"{start}>{end}={other}{end}<eos>") == 0
    assert reward.score(f"{start}>{start}={middle}{end}<eos>") == (end == start)
    assert all(way[-1] == end for way in reward.routes(start, end, 3))


@pytest.mark.parametrize("task", TASKS)
def test_most_prompts_of_a_task_have_several_right_answers_or_one(task):
    make, reward = makes[task], rewards[task]
    prompts = make.make_prompts(200)
    assert len(prompts) == 200 and prompts == make.make_prompts(200) != make.make_prompts(200, seed=1)
    assert len({len(prompt["input"]) for prompt in prompts}) == 1
    draw = torch.Generator().manual_seed(0)
    right = [make.example(draw, 0.0) for _ in range(300)]
    assert all(reward.score(re.sub("(<eos>)+$", "<eos>", text)) == 1 for text in right)
    wrong = [make.example(draw, 1.0) for _ in range(300)]
    assert 0.2 < sum(reward.score(re.sub("(<eos>)+$", "<eos>", text)) == 0 for text in wrong) / 300 <= 1
    if task != "sorting":
        answers: dict[str, set] = {}
        for text in [make.example(draw, 0.0) for _ in range(4000)]:
            prompt, _, answer = text.partition("=")
            answers.setdefault(prompt, set()).add(answer)
        assert sum(len(of) > 1 for of in answers.values()) > 0.8 * len(answers)


# ── your own task ──


def flags_of_the_script() -> list[str]:
    """The words of `flags` in launch/own_task/train.sh, with the variables that the script sets before."""
    text = (LAUNCH / "own_task/train.sh").read_text()
    body = text[text.index("flags=(") : text.index('run_job "$PWD/.venv/bin/python" -m openrlhf_stare.train_ray')]
    setup = f"task={LAUNCH}/own_task home=/h run=/r prompts_per_step=16\n"
    script = setup + body + 'printf "%s\\n" "${flags[@]}"'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_flags_of_your_own_task_are_accepted_and_close_the_loop_without_tuning():
    args = parse(*flags_of_the_script())
    assert checks.check(args) == []
    assert (args.entropy.target, args.entropy.schedule) == ("50%", "pi") and not hasattr(args, "stare")
    assert args.actor.adam.lr > 1e-6 and Path(args.reward.remote_url).is_file()
    longest = makes["own_task"].TASK.longest_answer
    assert args.rollout.max_new_tokens >= longest - 2 and args.data.max_len <= 64


def test_a_copy_of_the_folder_makes_its_own_prompts(tmp_path):
    copy = tmp_path / "launch/my_task"
    copy.mkdir(parents=True)
    for name in ("make.py", "reward.py"):
        text = (LAUNCH / "own_task" / name).read_text()
        (copy / name).write_text(text.replace('LETTERS = "abcdefghij"', 'LETTERS = "abcdefg"'))
    command = [
        sys.executable,
        copy / "make.py",
        tmp_path / "out",
        "--prompts",
        "70",
        "--only-prompts",
        "prompts.jsonl",
    ]
    subprocess.run(command, check=True, timeout=120)
    lines = [json.loads(line) for line in (tmp_path / "out/prompts.jsonl").read_text().splitlines()]
    assert len(lines) == 70 and len({line["input"] for line in lines}) == 35  # 3 of 7 letters
    assert not (tmp_path / "out/model").exists()


# ── the study ──


def write_run(folder: Path, entropy: float, reward: float, authority: float = 0.8, target: float | None = 0.5) -> Path:
    logs = folder / "tensorboard" / folder.name
    with SummaryWriter(str(logs)) as writer:
        for step in range(1, 41):
            figures = {"entropy/mean": 1.0 if step == 1 else entropy, "entropy/authority": authority}
            figures["rollout/reward_mean"] = reward
            if target:
                figures |= {"entropy/target": target, "entropy/gate_on": 1.0, "entropy/effort": 0.5}
            for name, value in figures.items():
                writer.add_scalar(f"train/{name}", value, step)
    facts = {"is_idle": False, "needs_advantages": True, "pursues_target": True}
    settings = {"strengths": [], "sets": None, "facts": facts if target else {}, "flags": {}, "arguments": {}}
    (logs / "settings.json").write_text(json.dumps(settings))
    (folder / "recipe").write_text(recipe(folder))
    return folder


def recipe(folder: Path, *more: str) -> str:
    """As the launch scripts write it."""
    flags = (
        "--actor.adam.lr",
        "3e-4",
        "--ckpt.output_dir",
        f"{folder}/model",
        "--reward.remote_url",
        "/r/routes/reward.py",
    )
    return "\n".join(["40 steps", *flags, *more]) + "\n"


def test_a_recipe_is_the_same_on_every_machine_and_in_every_order(tmp_path):
    here = results.recipe_hash(recipe(Path("/here/runs/routes-stare-seed0"), "--train.colocate_all"))
    there = recipe(Path("/there/routes-stare-seed0"), "--train.colocate_all", "--actor.adam.lr", "3e-4")
    reordered = "40 steps\n--train.colocate_all\n" + recipe(Path("/there/routes-stare-seed0")).partition("\n")[2]
    assert here == results.recipe_hash(there) == results.recipe_hash(reordered)
    others = [
        recipe(Path("/here/routes-stare-seed1"), "--train.colocate_all"),
        recipe(Path("/here/routes-stare-seed0"), "--train.colocate_all", "--actor.adam.lr", "1e-4"),
        recipe(Path("/here/routes-stare-seed0")),
        recipe(Path("/here/routes-stare-seed0"), "--train.colocate_all").replace("40 steps", "100 steps"),
        recipe(Path("/here/routes-stare-seed0"), "--train.colocate_all").replace("routes/reward", "sorting/reward"),
    ]
    assert len({here, *map(results.recipe_hash, others)}) == 6


def test_a_finished_run_becomes_a_line_once_and_is_done_then(tmp_path, monkeypatch, capsys):
    run, file = write_run(tmp_path / "routes-stare-seed3", 0.52, 0.9), tmp_path / "results/lines.jsonl"
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["enter.py", str(file), "--run", str(run)])
        enter.main()
    assert (
        capsys.readouterr().out
        == "routes-stare-seed3: entered in lines.jsonl\nroutes-stare-seed3: is in lines.jsonl\n"
    )
    [line] = results.read(file)
    assert str(tmp_path) not in file.read_text()
    line.stages[0].answers.append({"question": "?", "answer": "a bird\u2028sings\x85", "reward": 1.0})
    assert results.enter(tmp_path / "answers.jsonl", line) and results.read(tmp_path / "answers.jsonl") == [line]
    assert (line.task, line.arm, line.seed, line.figures["verdict"]) == ("routes", "stare", 3, "held")
    assert line.machine["torch"] == version("torch") and line.machine["cpu"]
    wanted = {"first_entropy": 1.0, "target": 0.5, "entropy": 0.52, "in_band": 1.0, "with_authority": 1.0, "steps": 40}
    assert wanted.items() <= line.figures.items() and line.figures["effort"] == 0.5
    curves = line.stages[0].curves
    assert curves["step"] == list(range(1, 41)) and curves["entropy"][:2] == [1.0, 0.52]

    def is_done(text: str) -> tuple[int, str]:
        command = [sys.executable, LAUNCH / "study/results.py", "done", file, run.name]
        done = subprocess.run(command, input=text, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stderr

    assert is_done((run / "recipe").read_text()) == (0, "")
    said = f"{file} has a line of routes-stare-seed3 with other flags: delete it to train this run anew\n"
    assert is_done(recipe(run, "--train.colocate_all")) == (1, said)
    run = run.with_name("routes-stare-seed4")
    assert is_done(recipe(run)) == (3, "")
    run = run.with_name("routes-stare-seed3")
    # A file that cannot be read is not one in which the run is missing, so nothing is trained again.
    file.write_text(f"{file.read_text()}<<<<<<< a merge\n")
    said = f"{file}, line 2, is no result: delete it, or take the file from git\n"
    assert is_done((run / "recipe").read_text()) == (1, said)


def test_a_run_without_a_recipe_or_with_other_steps_in_its_curves_is_not_entered(tmp_path):
    first, run = (write_run(tmp_path / f"routes-stare-seed{seed}", 0.52, 0.9) for seed in (0, 1))
    file = tmp_path / "lines.jsonl"
    (first / "recipe").write_text(recipe(first).replace("40 steps", "60 steps"))
    said = "enter: {} has curves of 40 steps and a recipe of 60: delete it, and train the run anew"
    for last, before in ((first, []), (run, [first])):
        with pytest.raises(SystemExit) as ended:
            enter.enter(file, last, before, None)
        assert ended.value.code == said.format(first) and not file.exists()
    (first / "recipe").unlink()
    with pytest.raises(SystemExit) as ended:
        enter.enter(file, run, [first], None)
    said = f"enter: {first} is no complete run, as it has no recipe: train that stage to its end"
    assert ended.value.code == said and not file.exists()
    enter.enter(file, run, [], None)
    assert [line.figures["steps"] for line in results.read(file)] == [40]


def test_a_file_system_without_locks_keeps_no_line_out(tmp_path, monkeypatch):
    def flock(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(results.fcntl, "flock", flock)
    line = results.Result("recipe", "routes", "stare", 0, [], {})
    assert results.enter(tmp_path / "lines.jsonl", line) and results.read(tmp_path / "lines.jsonl") == [line]


def test_a_long_curve_is_thinned_to_the_means_of_equal_spans(tmp_path):
    folder = tmp_path / "routes-grpo-seed0"
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for step in range(1, 201):
            writer.add_scalar("train/entropy/mean", step / 100, step)
            writer.add_scalar("train/rollout/reward_mean", step % 2, step)
            if step > 100:  # a curve with other steps is left out
                writer.add_scalar("train/entropy/authority", 1, step)
    stage = enter.stage(folder)
    assert stage.curves.keys() == {"step", "entropy", "reward"}
    assert [len(curve) for curve in stage.curves.values()] == [50] * 3
    assert stage.curves["step"][:2] == [2.5, 6.5] and stage.curves["entropy"][-1] == 1.985
    assert set(stage.curves["reward"]) == {0.5} and stage.figures["reward_end"] == 0.5
    # Half of the first entropy is 0.005; there is no target, no authority and no verdict.
    assert stage.figures["target"] == 0.005 and stage.figures["in_band"] == 0
    assert stage.figures["with_authority"] == 1 and stage.figures["verdict"] is None


def test_a_figure_that_a_step_lacks_moves_no_other(tmp_path):
    folder = tmp_path / "routes-stare-seed0"
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for step in range(1, 41):
            entropy = float("nan") if step == 25 else 0.52
            steps_figures = {"entropy/mean": entropy, "entropy/target": 0.5, "rollout/reward_mean": 0.9}
            for name, value in (steps_figures | {"entropy/authority": 0.8}).items():
                writer.add_scalar(f"train/{name}", value, step)
    figures = enter.stage(folder, part=3).figures
    assert (figures["target"], figures["in_band"], figures["with_authority"]) == (0.5, 1.0, 1.0)


def test_the_bootstrap_interval_of_a_few_seeds():
    assert results.interval([0.5]) == (0.5, 0.5) and results.with_interval([0.5]) == "0.500"
    assert results.interval([0.0, 0.0, 3.0]) == (0.0, 3.0)  # one draw of 27 has three times 3
    assert results.interval([0.0, 1.0, 2.0, 3.0]) == (0.5, 2.5)  # of 256 draws 6 are left out at either end
    assert results.with_interval([0.9, 1.0, 0.8], 2) == "0.90 [0.80, 1.00]"
    low, high = results.interval([float(seed) for seed in range(8)])  # drawn at random, always the same
    assert (low, high) == results.interval([float(seed) for seed in range(8)]) and 1.5 < low < 2.5 < 4.5 < high < 5.5


@pytest.mark.parametrize(
    "task, stare, grpo, status, said",
    [
        (
            "routes",
            {"entropy": 0.52},
            {},
            0,
            "pass routes, seed 0: 100 % of the steps with authority are in band, held",
        ),
        ("routes", {"entropy": 0.2}, {}, 1, "MISS routes, seed 0: 0 % of the steps with authority are in band, slow"),
        ("routes", {"entropy": 0.52}, {"entropy": 0.5}, 0, "GRPO held it too (100 %), so this shows nothing"),
        ("addends", {"entropy": 0.1, "authority": 0.1}, {}, 0, "pass addends, seed 0: little authority in most steps"),
        (
            "sorting",
            {"entropy": 0.04, "authority": 0.05, "reward": 0.985},
            {},
            0,
            "pass sorting, seed 0: reward 0.985",
        ),
        ("sorting", {"entropy": 0.04, "authority": 0.05, "reward": 0.97}, {}, 1, "MISS sorting, seed 0: reward 0.970"),
        ("sorting", {"entropy": 0.5, "authority": 0.9, "reward": 0.99}, {}, 1, "GRPO's 0.990, held; wanted"),
    ],
)
def test_the_claims_of_the_study(tmp_path, monkeypatch, capsys, task, stare, grpo, status, said):
    runs = [
        write_run(tmp_path / f"{task}-stare-seed0", **{"reward": 0.9} | stare),
        write_run(tmp_path / f"{task}-grpo-seed0", **{"entropy": 0.1, "reward": 0.99} | grpo, target=None),
        write_run(tmp_path / "reversal-stare-seed1", 0.5, 0.9),  # GRPO's is still missing
    ]
    file = tmp_path / "any_task.jsonl"
    for folder in runs:
        enter.enter(file, folder, [], None)
    monkeypatch.setattr(sys, "argv", ["any_task.py", str(file), "--table", str(tmp_path / "table.md")])
    assert study.main() == status
    out = capsys.readouterr().out
    assert said in out
    assert (tmp_path / "table.md").read_text().count("\n") == 3 and f"| {task}, 0 | 1.000 | 0.500 |" in out


def test_the_script_has_the_tasks_and_nothing_of_stares_but_three_flags():
    text = (LAUNCH / "any_task_study.sh").read_text()
    assert '--policy_loss "$method" --entropy.schedule pi --entropy.target 50%)' in text and "--stare." not in text
    done = subprocess.run(
        ["bash", LAUNCH / "any_task_study.sh", "nothing-stare", "0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "nothing-stare has no task in launch/nothing" in done.stderr


def test_without_arms_named_the_script_goes_through_all_of_them(tmp_path):
    """In a folder without the tasks, each arm is refused by its name."""
    (tmp_path / "launch/addends").mkdir(parents=True)
    for name in ("any_task_study.sh", "addends/job.sh", "run_job.sh"):
        (tmp_path / "launch" / name).write_text((LAUNCH / name).read_text())
    (tmp_path / "launch/install.sh").touch()
    done = subprocess.run(["bash", tmp_path / "launch/any_task_study.sh"], capture_output=True, text=True, timeout=60)
    tasks = ("addends", "reversal", "own_task", "routes", "sorting")
    assert {line.split()[1] for line in done.stderr.splitlines() if "has no task" in line} == {
        f"{task}-{arm}" for task in tasks for arm in ("stare", "grpo")
    }
