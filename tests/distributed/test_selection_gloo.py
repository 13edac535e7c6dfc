"""Thresholds and weights over real gloo process groups: any split of the tokens gives what one process gives.

What the ranks check is in selection_ranks.py; its four processes are groups of 2, 3 and 4, started once.
"""

import subprocess
import sys
from pathlib import Path

TIME_LIMIT = 240  # seconds, the start of the processes included: a hang is a failure


def test_any_split_over_real_ranks_gives_what_one_process_gives(tmp_path):
    program = [sys.executable, Path(__file__).with_name("selection_ranks.py"), tmp_path / "store"]
    ended = subprocess.run(program, timeout=TIME_LIMIT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
