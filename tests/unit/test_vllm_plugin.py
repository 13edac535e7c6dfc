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


@pytest.mark.parametrize(
    "name, end, ends_too",
    [
        ("EngineCore", "kill", True),
        ("VllmWorker-0", "kill", True),
        ("EngineCore", "is_alive", False),
        ("Process-1", "kill", False),  # a reward function's own
    ],
)
def test_a_vllm_process_ends_with_one_below_it_that_failed(tmp_path, name, end, ends_too):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(name=name, end=end))
    environment = {**os.environ, "OPENRLHF_STARE_CPU": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    if ends_too:
        assert done.returncode == 1 and done.stdout == ""
        assert f"vLLM's {name} ended with exit code -9" in done.stderr
    else:
        assert done.stdout == "still there\n"
