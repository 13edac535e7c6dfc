"""vLLM's processes end with one another: none waits for ever for one that was killed."""

import os
import subprocess
import sys

import pytest

# A process that loads the plugin, as vLLM's do, starts a child, kills it and then waits.
SCRIPT = """
import multiprocessing, time
from openrlhf_stare import vllm_plugin

vllm_plugin.register()
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), name="{name}", daemon=True)
    child.start()
    time.sleep(2)
    child.{end}()
    time.sleep(9)
    print("still there")
"""
CASES = {  # the child's name and its end: whether the process above it ends too
    ("EngineCore", "kill"): True,
    ("VllmWorker-0", "kill"): True,
    ("EngineCore", "is_alive"): False,
    ("Process-1", "kill"): False,  # a reward function's own
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The processes of all cases, which wait at the same time."""
    environment = {**os.environ, "OPENRLHF_STARE_CPU": "0"}
    processes = {}
    for name, end in CASES:
        script = tmp_path_factory.mktemp("case") / "script.py"
        script.write_text(SCRIPT.format(name=name, end=end))
        processes[name, end] = subprocess.Popen(
            [sys.executable, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize(("name", "end"), CASES)
def test_a_vllm_process_ends_with_one_below_it_that_failed(started, name, end):
    output, errors = started[name, end].communicate(timeout=60)
    if CASES[name, end]:
        assert started[name, end].returncode == 1 and output == ""
        assert f"vLLM's {name} ended with exit code -9" in errors
    else:
        assert output == "still there\n"
