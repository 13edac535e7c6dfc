"""`launch/install.sh gpu`, as far as it goes without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_gpu_installation_resolves():
    """Also DeepSpeed's build, which has to be isolated: it dies where it sees torch."""
    command = ["bash", ROOT / "launch/install.sh", "gpu", "--dry-run"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    packages = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    pinned = {"openrlhf": "0.11.2", "vllm": "0.29.0", "deepspeed": "0.19.6", "ray": "2.55.0", "transformers": "5.15.0"}
    assert {name: packages[name] for name in pinned} == pinned
    assert packages["torch"].startswith("2.13.0")
    # What flags of OpenRLHF import: --ds.ring_attn_size, --ds.use_liger_kernel, and ours for mathematics.
    assert packages.keys() >= {"ring-flash-attn", "liger-kernel", "math-verify"}
    assert "flash-attn" not in packages  # it is built where torch is, and cannot be resolved without it
