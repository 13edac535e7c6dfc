"""A job that loses a process or cannot start ends, says why, and leaves nothing.

`kill_jobs.py` kills at random moments and resumes every time; here it is one kill of each kind, and test_resume.py has
the one of a rank. A policy that collapses ends its job in test_jobs.py, and actor_group/ has ranks that cannot save.
"""

import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from jobs import ROOT, job_flags, marked_processes, run_job
from kill_jobs import killed_job, last_line

THREE_STEPS = ["--data.max_samples", "12", "--ckpt.save_steps", "1"]


@pytest.mark.parametrize(
    "target, shown",
    [
        ("engine core", "Loading weights took"),
        ("trainer", ""),  # as soon as it is there: while loading
        ("driver", "Started a local Ray instance"),
    ],
)
def test_a_job_that_loses_a_process_ends_and_names_it(addends, tmp_path, cluster, target, shown):
    running = None if target == "driver" else cluster  # test_jobs.py has the driver of a job on a running one
    job, kill = killed_job([*job_flags(addends, tmp_path), *THREE_STEPS], tmp_path, target, running, shown=shown)
    assert kill.pid and not kill.problems(job), f"{kill}: {kill.problems(job)}\n{job.output[-4000:]}"


def test_a_driver_that_waits_for_a_process_that_waits_for_the_dead_is_ended(tmp_path):
    """Ray tells such a driver nothing: the live actor never answers, and nobody asked the dead one for a result.

    Before that it waits for one that is stopped, and is told which.
    """
    command = [sys.executable, str(Path(__file__).with_name("waiting_driver.py"))]
    job = run_job([], tmp_path, timeout=180, command=command, env={"PYTHONPATH": str(ROOT)})
    assert job.status == 1 and not job.left_over
    assert "after the environment: None" in job.output  # a user's own actor may end
    assert last_line(job).startswith("train_ray: error: a vLLM engine (RolloutRayActor, process ")
    assert "KeyboardInterrupt" not in job.output
    waits = re.findall(r"^openrlhf-stare: No answer for \d+ s in training: waiting for (.*)", job.output, re.MULTILINE)
    first, second, _ = re.search(r"^ranks \[(\d+), (\d+), (\d+)\]", job.output, re.MULTILINE).groups()
    address = re.search(r"\(process \d+ on ([\d.]+)", waits[0])[1]
    assert waits == [
        f"actor rank 1 (process {second} on {address}; stopped, as by SIGSTOP), "
        f"actor rank 0 (process {first} on {address})"
    ]


def test_a_terminated_driver_says_so_and_takes_its_ray_along(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("waiting_driver.py")), "waits"]

    def terminate(process, mark) -> None:
        deadline = time.monotonic() + 60
        while "waiting" not in (tmp_path / "output.log").read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        while not parts <= {name for name, _ in listening} and time.monotonic() < deadline:
            time.sleep(0.2)  # the agents listen some seconds after the first actor can start
            listening.update(listeners(mark))
        process.send_signal(signal.SIGTERM)

    parts = {"gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}
    listening: set[tuple[str, str]] = set()
    job = run_job([], tmp_path, timeout=90, command=command, env={"PYTHONPATH": str(ROOT)}, meanwhile=terminate)
    assert job.status == 143 and not job.left_over, job.output
    assert last_line(job) == "train_ray: error: ended by SIGTERM" and "Traceback" not in job.output
    assert parts <= {name for name, _ in listening}, listening
    assert all(address.removeprefix("::ffff:").startswith("127.") for _, address in listening), listening


def listeners(mark: str) -> set[tuple[str, str]]:
    """The processes of a job that take connections, and at which addresses."""
    found = set()
    for pid in marked_processes(mark):
        with suppress(psutil.NoSuchProcess):  # Ray ends idle workers
            process = psutil.Process(pid)
            connections = [each for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
            found |= {(process.name(), each.laddr.ip) for each in connections}
    return found


def test_an_engine_s_error_of_many_lines_is_shown_whole(addends, tmp_path, cluster):
    """Without the checks before Ray only vLLM itself says that the model has fewer positions."""
    job = run_job([*job_flags(addends, tmp_path), "--no_checks", "--data.max_len", "2048"], tmp_path, cluster=cluster)
    assert job.status == 1 and not job.left_over
    before, error = job.output.split("train_ray: error: ")
    assert error.startswith("a vLLM engine (RolloutRayActor, process ")
    assert "failed while loading: " in error and "ValidationError: 1 validation error for ModelConfig" in error
    assert "max_model_len (2048) is greater than the derived max_model_len (max_position_embeddings=64" in error
    assert "KeyboardInterrupt" not in before


def test_an_actor_that_cannot_start_ends_the_job_with_its_own_error(addends, tmp_path, cluster):
    flags = ["--actor.lr_scheduler", "polynomial", "--actor.adam.lr", "1e-8"]  # which ends at 1e-7
    job = run_job([*job_flags(addends, tmp_path), *flags], tmp_path, cluster=cluster)
    assert job.status == 1 and not job.left_over
    assert "must be smaller than initial lr" in last_line(job)
