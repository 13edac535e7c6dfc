"""A launch script that is ended ends its jobs first, and else leaves their status, stdin and Ctrl-C as they are."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# In train_ray's place: it notes its start and each signal, and ends half a second after one, as Ray would.
JOB = """
import os, signal, sys, time
from pathlib import Path

notes = Path(sys.argv[1], str(os.getpid()))
def note(word):
    with notes.open("a") as file:
        print(word, file=file, flush=True)

ended_by = []
def heard(number, frame):
    note(signal.Signals(number).name)
    ended_by.append(number)

for number in (signal.SIGTERM, signal.SIGINT):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, heard)
note("started")
if "STATUS" in os.environ:
    note(f"read {sys.stdin.read()}")
    sys.exit(int(os.environ["STATUS"]))
deadline = time.monotonic() + 30
while not ended_by and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.5)
note("ended")
if ended_by == [signal.SIGTERM]:
    sys.exit(143)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGINT)
"""
SCRIPTS = [
    "own_task/train.sh",
    "pretrained.sh",
    "two_targets.sh",
    "reversal_study.sh tpo 0",  # a run of a study
    "methods_study.sh grpo 0",  # one within another script
    "second_stage.sh smallest-grpo-grpo 3",  # and behind a lock
]


@pytest.fixture
def checkout(tmp_path):
    """A copy of launch/ with stand-ins for the installer and for Python, which trains nothing."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch/install.sh").write_text("")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"""#!/bin/sh
case "$*" in
*"-m openrlhf_stare.train_ray"*) exec {sys.executable} {tmp_path}/job.py {tmp_path}/jobs ;;
*"results.py done"*) exit 3 ;;
*own_task/make.py*) touch "$2/prompts.jsonl" ;;
*) echo "$*" >>{tmp_path}/afterwards ;;
esac
""")
    python.chmod(0o755)
    return tmp_path


def start(checkout: Path, script: str, *, interruptible: bool = True, **variables: str) -> subprocess.Popen:
    """In a process group of its own, as from a terminal, where Ctrl-C goes to all of it."""
    name, *words = script.split()
    return subprocess.Popen(
        ["bash", checkout / "launch" / name, *words],
        cwd=checkout,
        env={**os.environ, "RUN": str(checkout / "run"), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL if interruptible else signal.SIG_IGN),
    )


def noted(checkout: Path) -> list[list[str]]:
    """What each of the jobs has noted."""
    return [path.read_text().splitlines() for path in (checkout / "jobs").iterdir()]


def wait_for(checkout: Path, jobs: int) -> None:
    deadline = time.monotonic() + 60
    while sum("started" in notes for notes in noted(checkout)) < jobs:
        assert time.monotonic() < deadline, noted(checkout)
        time.sleep(0.05)
    (checkout / "afterwards").unlink(missing_ok=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_sigterm_ends_the_job_and_then_the_script(checkout, script):
    with start(checkout, script) as process:
        wait_for(checkout, jobs=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert noted(checkout) == [["started", "SIGTERM", "ended"]]
    assert not (checkout / "afterwards").exists()  # no report of it, and no second half


@pytest.mark.parametrize("script", SCRIPTS)
def test_ctrl_c_reaches_the_job_once_and_the_script_ends_by_it_too(checkout, script):
    with start(checkout, script) as process:
        wait_for(checkout, jobs=1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
        assert noted(checkout) == [["started", "SIGINT", "ended"]]
    assert not (checkout / "afterwards").exists()


def test_a_job_that_ctrl_c_ends_at_once_ends_the_script_by_it_every_time(tmp_path):
    """One in ten bash loses the status of a job that ends while its `wait` is interrupted."""
    job = tmp_path / "job.sh"
    job.write_text(f"trap 'exit 130' INT; touch {tmp_path}/started; while :; do sleep 0.01; done")
    hears = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    for _ in range(25):
        words = ["bash", "-euc", f"source launch/run_job.sh; run_job sh {job}; touch {tmp_path}/afterwards"]
        with subprocess.Popen(words, cwd=ROOT, **hears) as process:
            deadline = time.monotonic() + 60
            while not (tmp_path / "started").exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == -signal.SIGINT
        (tmp_path / "started").unlink()
    assert not (tmp_path / "afterwards").exists()


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_study_ends_all_of_its_runs_and_starts_no_more(checkout, number, status):
    with start(checkout, "reversal_study.sh", JOBS="2") as process:
        wait_for(checkout, jobs=2)
        os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
        assert process.wait(30) == status
        ended = noted(checkout)
    assert len(ended) == 2  # of nine; they may get SIGTERM twice, of which train_ray ignores the second
    assert all(list(dict.fromkeys(notes)) == ["started", number.name, "ended"] for notes in ended), ended
    assert not (checkout / "afterwards").exists()


def test_a_number_that_another_process_has_by_now_is_not_waited_for():
    """`kill` finds one. The job ended with a status like that of an interrupted `wait`."""
    script = """
source launch/run_job.sh
kill() { return 0; }
in_background bash -c 'exit 143'
job=$!
while [[ -n $(jobs -pr) ]]; do sleep 0.1; done
wait_for "$job" || echo "status $?"
"""
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("status 143\n", 0)


def test_a_study_goes_through_its_runs_and_fails_if_one_has_failed(checkout):
    with start(checkout, "reversal_study.sh", JOBS="2", STATUS="0") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and len(noted(checkout)) == 9, said
    assert len(re.findall("steps in", said)) == 9
    shutil.rmtree(checkout / "runs")
    with start(checkout, "reversal_study.sh", JOBS="2", STATUS="3") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and len(re.findall("failed", said)) == 9


@pytest.mark.parametrize("script, status", [("own_task/train.sh", 3), ("pretrained.sh", 3), ("two_targets.sh", 3)])
def test_the_status_is_the_job_s_and_so_is_stdin(checkout, script, status):
    with start(checkout, script, STATUS="3") as process:
        process.communicate("some words", timeout=60)
    assert process.returncode == status and noted(checkout) == [["started", "read some words"]]


def test_a_script_that_ignores_ctrl_c_has_a_job_that_does(checkout):
    """As in the background of another script, where both go on."""
    with start(checkout, "own_task/train.sh", interruptible=False) as process:
        wait_for(checkout, jobs=1)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None and noted(checkout) == [["started"]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def test_two_targets_leaves_a_run_alone_that_another_process_is_at(checkout):
    run = checkout / "runs/two_targets/run"
    run.mkdir(parents=True)
    with open(f"{run}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with start(checkout, "two_targets.sh", STATUS="0") as process:
            said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and said == "two_targets: another process is at it\n" and run.is_dir()
    assert noted(checkout) == []
