"""Which stack the scripts install, as far as they go before they install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("gpus", "variable", "stack"),
    [(0, None, "cpu"), (1, None, "cpu"), (2, None, "cpu"), (3, None, "gpu"), (1, "0", "gpu"), (3, "1", "cpu")],
)
def test_the_quickstart_takes_the_gpus_only_where_there_are_enough_and_leaves_another_stack_alone(
    tmp_path, gpus, variable, stack
):
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    nvidia_smi = tmp_path / "bin/nvidia-smi"
    nvidia_smi.parent.mkdir()
    lines = "".join(f"echo 'GPU {number}: NVIDIA (UUID: GPU-{number})'\n" for number in range(gpus))
    nvidia_smi.write_text(f"#!/bin/sh\n{lines or 'exit 9'}\n")
    nvidia_smi.chmod(0o755)
    other = {"cpu": "gpu", "gpu": "cpu"}[stack]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed").write_text(f"{other} of another time")
    environment = {name: value for name, value in os.environ.items() if name != "OPENRLHF_STARE_CPU"}
    environment["PATH"] = f"{nvidia_smi.parent}:{os.environ['PATH']}"
    if variable:
        environment["OPENRLHF_STARE_CPU"] = variable
    done = subprocess.run(
        ["bash", tmp_path / "launch/quickstart.sh"], env=environment, capture_output=True, text=True, timeout=60
    )
    sentence = f"install: .venv has the {other} stack: delete that folder, and run this again for the {stack} stack\n"
    assert (done.returncode, done.stderr) == (2, sentence)
    assert ("on the CPU, since this machine has" in done.stdout) == (gpus in (1, 2) and variable is None)
