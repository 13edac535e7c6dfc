"""The models of the addends task, with the Python tool and without, made once for all pipeline tests."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("jobs")  # its assertions are shown in full

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def addends(tmp_path_factory) -> Path:
    """A folder with `model/` (2-layer Qwen2, warmed up) and `prompts.jsonl` (400 prompts)."""
    folder = tmp_path_factory.mktemp("addends")
    command = [sys.executable, ROOT / "launch/addends/make.py", folder, "--prompts", "400"]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def calculator(tmp_path_factory) -> Path:
    """A folder with `model/`, which uses the Python tool in most of its responses and boxes its answers, and
    `prompts.jsonl`."""
    folder = tmp_path_factory.mktemp("calculator")
    subprocess.run([sys.executable, ROOT / "tests/pipeline/tool_task.py", folder], check=True, timeout=600)
    return folder
