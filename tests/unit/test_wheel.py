"""The wheel works by itself: installed into an environment with torch alone, and beside the stack."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import openrlhf_stare
from openrlhf_stare.driver import seams

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

    version = torch.__version__.partition("+")[0]  # an index may have it without +cu130
    run(UV, "pip", "install", "--quiet", "--python", python, wheel, f"torch=={version}", "numpy")
    examples = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/library_use.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "examples.txt").write_text("\n".join(examples))
    run(python, "-c", LIBRARY_EXAMPLES, tmp_path / "examples.txt", cwd=tmp_path)
    says_how_to_install_the_stack(tmp_path)


def says_how_to_install_the_stack(folder: Path) -> None:
    """The command does, and what it says names a file that came with the wheel."""
    stare = folder / "env/bin/openrlhf-stare"
    assert "STEPS=50" in run(stare, "quickstart", "--help", cwd=folder)
    overrides = Path(run(stare, "cpu-overrides", cwd=folder).strip())
    assert overrides.is_relative_to(folder) and "flash-attn ;" in overrides.read_text()
    for words, name in (([], "train_ray"), (["quickstart"], "quickstart")):
        done = subprocess.run([stare, *words], cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and seams.WITHOUT_A_GPU in done.stderr, done
        assert done.stderr.startswith(f"{name}: error: OpenRLHF is not installed: ") and not done.stdout
    assert not (folder / "runs").exists()


def test_the_commands_run_beside_the_stack(wheel, tmp_path, monkeypatch):
    """Outside the repository, with what the wheel brings along: all but the job of the quickstart."""
    run(UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setitem(ENVIRONMENT, "STEPS", "1")
    stare = [sys.executable, "-m", "openrlhf_stare"]
    assert "--entropy.target" in run(*stare, "--help", cwd=tmp_path)
    shown = run(*stare, "quickstart", "--preflight", "--dry-run", cwd=tmp_path)
    [folder] = (tmp_path / "runs/quickstart").glob("*-preflight-dry-run")
    assert "quickstart: 1 steps on " in shown and f"quickstart: no logs in {folder}/tensorboard, so no table" in shown
    assert f"{tmp_path}/site/openrlhf_stare/quickstart/reward.py" in shown
    assert len((folder / "prompts.jsonl").read_text().splitlines()) == 16
    assert (tmp_path / "runs/quickstart/model/model.safetensors").exists()
