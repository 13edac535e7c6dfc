"""A newcomer's first command, on a machine without a compiler: a clone, its installation, a job."""

import json
import os
import re
import shutil
import subprocess

from jobs import ROOT

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ninja", "nvcc")


def test_a_clone_installs_itself_and_trains_without_a_compiler(tmp_path):
    clone, compilers = tmp_path / "clone", tmp_path / "compilers"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():  # the working tree's, so that what is not committed yet is tried too
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    compilers.mkdir()
    for name in COMPILERS:  # first on the PATH, each fails
        (compilers / name).write_text('#!/bin/sh\necho "no compiler here: $0 $*" >&2\nexit 1\n')
        (compilers / name).chmod(0o755)
    path = f"{compilers}:{os.environ['PATH']}"
    # What a newcomer has not set, and other tests have: they install our runtime in this process.
    ours = re.compile("VIRTUAL_ENV|OPENRLHF_STARE_|VLLM_|DS_|TORCH_|OMP_")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    environment |= {"PATH": path, "CC": str(compilers / "cc"), "CXX": str(compilers / "c++"), "STEPS": "3"}
    done = subprocess.run(
        ["bash", "launch/quickstart.sh"], cwd=clone, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "install: the cpu stack into .venv" in done.stdout
    assert re.search(r"^reward +0\.\d+ ", done.stdout, re.M)
    assert len((done.stdout + done.stderr).splitlines()) <= 60, done.stdout + done.stderr
    [run] = clone.glob("runs/quickstart/*/report.html")
    assert "Global step 3:" in (run.parent / "checkpoints/output.log").read_text()
    assert (clone / ".venv/.installed").exists()
    assert list(clone.glob("runs/quickstart/*/model/config.json"))
    # Its flags of the method are those for a task of one's own. The verdict stands in the last lines and the report.
    assert re.search(r"^entropy \d\.\d+ nats, target 0\.\d+, over the second half", done.stdout, re.M)
    assert "over the second half of the steps" in (run.parent / "report.html").read_text()
    settings = json.loads(next(run.parent.rglob("settings.json")).read_text())
    assert settings["strengths"] == ["stare/reweight_w", "stare/reweight_m"] and settings["sets"] == ["L+", "L-"]
    assert settings["flags"]["stare.w_max"] == 60 and settings["arguments"]["actor.adam.lr"] == 3e-4
    follow_the_page_about_a_task_of_ones_own(clone, environment)


def follow_the_page_about_a_task_of_ones_own(clone, environment):
    """The folder is copied, its reward and its prompts are changed, and its script is started, as far as the job's own
    checks, which call the reward on the first prompt."""
    page = (clone / "docs/own_task.md").read_text()
    assert "bash launch/own_task/train.sh" in page and "`my_task` beside it" in page
    task = clone / "launch/my_task"
    shutil.copytree(clone / "launch/own_task", task)
    reward = task / "reward.py"
    reward.write_text(reward.read_text().replace("GIVEN, WANTED = 3, 5", "GIVEN, WANTED = 2, 4"))
    command = ["bash", "launch/my_task/train.sh", "--preflight", "--dry-run"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "preflight: ready" in done.stdout and f"{task}/reward.py" in done.stdout
    [prompts] = clone.glob("runs/my_task/2*/prompts.jsonl")
    assert len(prompts.read_text().splitlines()) == 3 * 16
