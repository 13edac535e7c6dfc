"""The methods over real gloo process groups: any number of ranks and any micro-batches give what one process gives.

What the ranks check is in methods_ranks.py; its four processes are groups of 1, 2 and 4, started once.
"""

import subprocess
import sys
from pathlib import Path

TIME_LIMIT = 240  # seconds, the start of the processes included: a hang is a failure


def test_any_split_gives_what_one_process_gives(tmp_path):
    program = [sys.executable, Path(__file__).with_name("methods_ranks.py"), tmp_path / "store"]
    ended = subprocess.run(program, timeout=TIME_LIMIT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
