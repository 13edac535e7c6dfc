"""The models of the addends task, with the Python tool and without, and a running Ray, once for all pipeline tests."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("jobs")  # its assertions are shown in full
# Jobs compute in float32 on any CPU, where vllm_kl shows a single stale weight, but for one that asks for bfloat16.
os.environ["OPENRLHF_STARE_CPU_DTYPE"] = "float32"

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


@pytest.fixture(scope="session")
def cluster() -> Iterator:
    """`ray start --head`, for jobs that need no Ray of their own: each starts and ends some seconds sooner."""
    from jobs import Cluster, end_processes, marked  # rewritten by now

    mark, port, dashboard = uuid.uuid4().hex, 6391, 8291
    command = f"ray start --head --num-gpus=4 --num-cpus=8 --port={port} --dashboard-port={dashboard}"
    command += " --dashboard-agent-listen-port=8292"  # by default one that any connection may have been given
    environment = {**os.environ, **marked(mark), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("RAY_ADDRESS", None)
    try:
        subprocess.run(command.split(), env=environment, check=True, timeout=120)
        yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", mark)
    finally:
        end_processes(mark, grace=0)
