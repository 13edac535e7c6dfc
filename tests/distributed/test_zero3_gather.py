"""ZeRO-3 on gloo reads parameters that have arrived: real DeepSpeed, two real ranks, OpenRLHF's own configurations.

What the ranks do is in zero3_gather_ranks.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIME_LIMIT = 240  # seconds, the start of the processes included: a hang is a failure


@pytest.fixture(scope="module")
def wrong(tmp_path_factory) -> dict[str, list[int]]:
    """Configuration -> the number of wrong values in each round of gathering."""
    folder = tmp_path_factory.mktemp("gather")
    program = [sys.executable, Path(__file__).with_name("zero3_gather_ranks.py"), folder / "store", folder / "wrong"]
    ended = subprocess.run(program, timeout=TIME_LIMIT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "wrong").read_text())


@pytest.mark.parametrize("use", ["train", "eval"])
def test_gathered_parameters_have_arrived(wrong, use):
    assert wrong[f"patched {use}"] == [0] * 3


@pytest.mark.parametrize("use", ["train", "eval"])
def test_without_the_setting_they_have_not(wrong, use):
    # The negative control: OpenRLHF's configuration as it is. If this fails, DeepSpeed waits for every gather now and
    # the setting in patches.strategy_on_cpu can go.
    assert any(wrong[f"plain {use}"])
