"""Thresholds and weights over real gloo process groups: any split of the tokens gives what one process gives.

What the ranks check is in selection_ranks.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TIME_LIMIT = 180  # seconds for one group, the start of its processes included: a hang is a failure


@pytest.mark.parametrize("world", [2, 3, 4])
def test_any_split_over_real_ranks_gives_what_one_process_gives(world, tmp_path):
    program = [sys.executable, Path(__file__).with_name("selection_ranks.py"), str(world), tmp_path / "store"]
    ended = subprocess.run(program, timeout=TIME_LIMIT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
