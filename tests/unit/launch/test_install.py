"""What the scripts install and run by what the machine has, as far as they go before they download anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_stare.driver import checks, command, flags, resources

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The scripts, with a folder of stand-ins for programs of the machine."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def nvidia_smi(checkout: Path, gpus: int, driver: str = "13.0", capability: str = "9.0") -> None:
    lines = "\n".join(f"echo 'GPU {number}: NVIDIA (UUID: GPU-{number})'" for number in range(gpus))
    program(
        checkout / "bin/nvidia-smi",
        f"""case "$*" in
-L) {lines or "exit 9"} ;;
*compute_cap*) echo {capability} ;;
*) echo '| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {driver} |' ;;
esac""",
    )


def run(checkout: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    ours = ("OPENRLHF_STARE_CPU", "FLASH_ATTN", "FLASH_ATTN_WHEEL", "CUDA_HOME", "CUDA_PATH", "PYTHON", "STEPS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"PATH": f"{checkout}/bin:{os.environ['PATH']}", **variables}
    words = ["bash", str(checkout / "launch" / script), *words]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("gpus", "variable", "stack"),
    [(0, None, "cpu"), (1, None, "gpu"), (2, None, "gpu"), (3, None, "gpu"), (1, "0", "gpu"), (3, "1", "cpu")],
)
def test_the_quickstart_takes_the_gpus_that_are_there_and_leaves_another_stack_alone(checkout, gpus, variable, stack):
    nvidia_smi(checkout, gpus)
    other = {"cpu": "gpu", "gpu": "cpu"}[stack]
    (checkout / ".venv/.installed").write_text(f"{other} of another time")
    done = run(checkout, "quickstart.sh", **({"OPENRLHF_STARE_CPU": variable} if variable else {}))
    sentence = f"install: .venv has the {other} stack: delete that folder, and run this again for the {stack} stack\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def installed(checkout: Path, stack: str) -> None:
    """What install.sh leaves behind, so that it has nothing to do, and a Python that writes down what it is to run."""
    words = "cat pyproject.toml launch/cpu-overrides.txt launch/install.sh | sha256sum"
    files = subprocess.run(["bash", "-c", words], cwd=checkout, capture_output=True, text=True, check=True).stdout
    (checkout / ".venv/.installed").write_text(f"{stack} {files.split()[0]} none")
    program(
        checkout / ".venv/bin/python",
        f"""case "$1 $2" in
*make.py*) touch "$2/prompts.jsonl" ;;
*train_ray) shift 2; printf '%s\\n' "$@" >{checkout}/flags ;;
esac""",
    )


@pytest.mark.parametrize(
    ("gpus", "machine", "needs", "colocated"),
    [
        (0, "the CPU", 3, False),  # processes that stand for GPUs
        (1, "one GPU", 1, True),
        (2, "two GPUs", 2, False),
        (3, "three GPUs", 3, False),
        (8, "three GPUs", 3, False),
    ],
)
def test_the_quickstarts_job_fits_the_gpus_and_is_accepted(checkout, monkeypatch, gpus, machine, needs, colocated):
    nvidia_smi(checkout, gpus)
    installed(checkout, "gpu" if gpus else "cpu")
    done = run(checkout, "quickstart.sh", "--preflight", "--dry-run")
    assert done.returncode == 0 and done.stderr == "", done
    assert f"quickstart: 200 steps on {machine}\n" in done.stdout
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "0" if gpus else "1")
    flat = flags.parse((checkout / "flags").read_text().splitlines())
    assert checks.check(command.nested(flat)) == []
    args = command.settle(flat)
    assert resources.required(args).gpus == needs
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (colocated,) * 3
    assert args.vllm.enforce_eager == (gpus > 0) and (args.vllm.gpu_memory_utilization < 0.5) == (gpus > 0)
    assert not list(resources.uneven_batches(args))


def test_the_cpu_can_be_insisted_on(checkout):
    nvidia_smi(checkout, 8)
    installed(checkout, "cpu")
    done = run(checkout, "quickstart.sh", OPENRLHF_STARE_CPU="1")
    assert "quickstart: 200 steps on the CPU\n" in done.stdout, done
    assert "--train.colocate_all" not in (checkout / "flags").read_text()


# ── before anything is downloaded ──


def stopped(checkout: Path, **variables: str) -> str:
    """The sentence with which the installer of the GPU stack ends, before it has made an environment."""
    done = run(checkout, "install.sh", "gpu", **variables)
    assert done.returncode == 2 and not (checkout / ".venv/pyvenv.cfg").exists(), done
    assert "the gpu stack into .venv" not in done.stdout
    [line] = done.stderr.splitlines()
    return line


def test_a_driver_for_an_older_cuda_is_named(checkout):
    nvidia_smi(checkout, 1, driver="12.8")
    assert stopped(checkout).startswith("install: the GPU's driver is for CUDA 12.8, and torch 2.13.0 for CUDA 13.0: ")


def test_a_gpu_without_bfloat16_is_named(checkout):
    nvidia_smi(checkout, 1, capability="7.5")
    assert stopped(checkout) == (
        "install: a GPU here has compute capability 7.5, and vLLM's bfloat16 needs 8.0: OPENRLHF_STARE_CPU=1 trains "
        "on the CPU"
    )


def python_with(checkout: Path, version: tuple[int, int], include: Path) -> str:
    """A Python that says of itself what it is told here, to what the installer asks."""
    program(
        checkout / "bin/python",
        f"""case "$*" in
--version) echo Python {version[0]}.{version[1]}.0 ;;
*version_info*) exec {sys.executable} -c "import sys; sys.version_info = {version!r}; ${{2#import sys; }}" ;;
*include*) echo {include} ;;
esac""",
    )
    return str(checkout / "bin/python")


@pytest.mark.parametrize(("minor", "taken"), [(9, False), (10, True), (11, True), (12, True), (13, False)])
def test_three_pythons_will_do(checkout, minor, taken):
    """Where its headers are missing the installer ends after the question."""
    nvidia_smi(checkout, 1)
    line = stopped(checkout, PYTHON=python_with(checkout, (3, minor), checkout / "include"))
    if taken:
        assert line.startswith(f"install: {checkout}/include/Python.h is not there, which Triton needs on a GPU: ")
    else:
        assert line == (
            f"install: {checkout}/bin/python is Python 3.{minor}.0; set PYTHON to a Python 3.10, 3.11 or 3.12"
        )


@pytest.fixture
def headers(checkout) -> str:
    (checkout / "include").mkdir()
    (checkout / "include/Python.h").touch()
    return python_with(checkout, (3, 12), checkout / "include")


@pytest.mark.parametrize(
    ("release", "found"), [(None, "not there"), ("12.9", "12.9")], ids=["no nvcc", "an older one"]
)
def test_flash_attn_needs_the_toolkit(checkout, headers, release, found):
    nvidia_smi(checkout, 1)
    (checkout / "cuda/bin").mkdir(parents=True)
    if release:
        program(checkout / "cuda/bin/nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.1'")
    line = stopped(checkout, FLASH_ATTN="1", CUDA_HOME=f"{checkout}/cuda", PYTHON=headers)
    assert line == (
        f"install: FLASH_ATTN=1 needs the CUDA 13.0 toolkit, and {checkout}/cuda/bin/nvcc is "
        f"{found}: install it and set CUDA_HOME to it, or leave FLASH_ATTN out"
    )


def test_a_wheel_has_to_be_there(checkout):
    nvidia_smi(checkout, 1)
    assert stopped(checkout, FLASH_ATTN_WHEEL="no/such.whl") == "install: FLASH_ATTN_WHEEL=no/such.whl is no wheel"


def test_flash_attn_is_added_to_an_installation_without_it(checkout, headers):
    nvidia_smi(checkout, 1)
    installed(checkout, "gpu")
    assert run(checkout, "install.sh", "gpu").stdout == ""
    line = stopped(checkout, FLASH_ATTN="1", CUDA_HOME="/no/toolkit", PYTHON=headers)
    assert line.startswith("install: FLASH_ATTN=1 needs the CUDA 13.0 toolkit")
