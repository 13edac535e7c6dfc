"""The wheel works by itself: installed into an environment with torch alone, and beside the stack."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import openrlhf_stare

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
# What launch/install.sh does for uv, which does not read pip's variables.
ENVIRONMENT = os.environ | {
    "UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", ""),
    "UV_EXTRA_INDEX_URL": os.environ.get("UV_EXTRA_INDEX_URL") or os.environ.get("PIP_EXTRA_INDEX_URL", ""),
    "UV_INDEX_STRATEGY": os.environ.get("UV_INDEX_STRATEGY", "unsafe-best-match"),
}
LIBRARY_EXAMPLES = """
import doctest, sys, openrlhf_stare
assert openrlhf_stare.__file__.startswith(sys.prefix), openrlhf_stare.__file__
for name in openrlhf_stare.__all__:
    if name not in ("StarePolicyLoss", "policy_loss"):  # the two that extend OpenRLHF's loss
        getattr(openrlhf_stare, name)
failed, tried = doctest.testfile(sys.argv[1], module_relative=False)
sys.exit(failed or not tried)
"""


def run(*command: object, **options) -> str:
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, env=ENVIRONMENT, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    [path] = folder.glob("*.whl")
    return path


def test_its_name_has_the_one_version_and_its_description_can_be_shown(wheel):
    assert wheel.name.startswith(f"openrlhf_stare-{openrlhf_stare.__version__}-")
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel)


def test_the_library_needs_torch_alone(wheel, tmp_path):
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    python = tmp_path / "env/bin/python"
    import torch

    run(UV, "pip", "install", "--quiet", "--python", python, wheel, f"torch=={torch.__version__}", "numpy")
    examples = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/library_use.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "examples.txt").write_text("\n".join(examples))
    run(python, "-c", LIBRARY_EXAMPLES, tmp_path / "examples.txt", cwd=tmp_path)


def test_the_command_runs_beside_the_stack(wheel, tmp_path):
    run(UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from openrlhf_stare import train_ray; "
        f"assert train_ray.__file__.startswith({str(tmp_path)!r}); sys.argv[1:] = ['--help']; train_ray.main()"
    )
    assert "--entropy.target" in run(sys.executable, "-c", program, cwd=tmp_path)
