"""The tool's programs where there are more of them than CPUs."""

import os
import subprocess
import sys
import time

import pytest

from openrlhf_stare.tools import cores, sandbox
from openrlhf_stare.tools.config import ToolConfig

ONE_SECOND = ToolConfig(seconds=1)  # of processor time, and two by the clock
COMPUTE = """import time
while time.process_time() < 0.9:
    pass
print("done")
"""


@pytest.fixture
def a_crowded_cpu():
    """One CPU for this process and its children, and five others that never rest on it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    # In sessions of their own, since Linux may share the CPU among sessions first.
    busy = [sys.executable, "-c", "while True: pass"]
    crowd = [subprocess.Popen(busy, start_new_session=True) for _ in range(5)]
    yield
    for process in crowd:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, allowed)


def test_a_program_that_only_waits_for_a_cpu_is_not_stopped(a_crowded_cpu):
    start = time.monotonic()
    assert sandbox.run(COMPUTE, ONE_SECOND) == sandbox.Outcome("done\n", failed=False)
    assert time.monotonic() - start > 2  # it was over the limit of the clock


def test_a_program_that_sleeps_is_stopped_there_too(a_crowded_cpu):
    outcome = sandbox.run("import time; time.sleep(600)", ONE_SECOND)
    assert outcome == sandbox.Outcome("[stopped after 2 seconds]\n", failed=True)


def test_a_program_that_computes_too_much_is_stopped_there_too(a_crowded_cpu):
    outcome = sandbox.run("while True: pass", ONE_SECOND)
    assert outcome == sandbox.Outcome("[stopped after 1 seconds of processor time]\n", failed=True)


# How many at a time


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
    ids=str,
)
def test_a_container_s_share_of_the_cpus_counts(tmp_path, monkeypatch, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cores.usable() == expected


@pytest.mark.parametrize(("engines", "expected"), [(1, 8 + 256), (8, 8 + 32), (64, 8 + 4)])
def test_the_engines_share_them(monkeypatch, engines, expected):
    monkeypatch.setattr(cores, "usable", lambda: 64)
    assert cores.programs_at_a_time(engines, gpus_of_each=1) == expected
