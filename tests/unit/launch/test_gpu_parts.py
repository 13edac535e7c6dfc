"""The parts that compute on a GPU, in small on the CPU, and with torch and transformers alone."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "launch/gpu_parts.py"
# Whatever of the stack is imported fails, as where it is not installed.
ALONE = f"""
import runpy, sys
sys.modules |= dict.fromkeys(("openrlhf", "vllm", "ray", "deepspeed", "flash_attn"))
sys.argv = ["gpu_parts.py", "--device", "cpu", "--out", sys.argv[1]]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def parts():
    spec = importlib.util.spec_from_file_location("gpu_parts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def test_all_parts_agree_with_another_way_of_computing_them(tmp_path):
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "table.md")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout and table.startswith(f"CPU, torch {torch.__version__}\n\n| Part | Difference |")
    for part in ("entropy of logits", "head without", "sdpa over two packed", "candidates, radix", "stare: weights"):
        assert part in table
    assert "differs" not in table and " ms |" in table


def test_what_differs_is_marked_and_fails(parts):
    rows = [parts.Row("a", 2.0, 1.0, ""), parts.Row("b", float("nan"), 1.0, ""), parts.Row("c", None, None, "1 ms")]
    assert [row.ok for row in rows] == [False, False, True]
    table = parts.table(rows, "cpu").splitlines()[4:]
    assert table == ["| a **differs** | 2 | 1 |  |", "| b **differs** | nan | 1 |  |", "| c | – | – | 1 ms |"]


def test_a_wrong_head_would_be_found(parts, monkeypatch):
    right = parts.fused_log_probs
    monkeypatch.setattr(parts, "fused_log_probs", lambda *args: tuple(2 * value for value in right(*args)))
    rows = list(parts.fused_head("cpu", parts.SIZES["cpu"]))
    assert {row.part for row in rows if not row.ok} == {
        "head without: log-probs / float64",
        "head without: entropies / float64",
        "head without / with logits: gradient of the hidden states, relative",
        "head without / with logits: gradient of the weights, relative",
    }
