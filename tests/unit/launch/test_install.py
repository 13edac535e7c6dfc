"""What the scripts install and run by what the machine has, as far as they go before they download anything."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The scripts, with a folder of stand-ins for programs of the machine."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "openrlhf_stare/cpu").mkdir(parents=True)
    shutil.copy(ROOT / "openrlhf_stare/cpu/overrides.txt", tmp_path / "openrlhf_stare/cpu")
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


def environment(checkout: Path, **variables: str) -> dict[str, str]:
    ours = ("OPENRLHF_STARE_CPU", "FLASH_ATTN", "FLASH_ATTN_WHEEL", "CUDA_HOME", "CUDA_PATH", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in (*ours, "CUDA_VISIBLE_DEVICES")}
    return kept | {"PATH": f"{checkout}/bin:{os.environ['PATH']}", **variables}


def run(checkout: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    words = ["bash", str(checkout / "launch" / script), *words]
    return subprocess.run(words, env=environment(checkout, **variables), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("gpus", "variables", "stack"),
    [
        (0, {}, "cpu"),
        (1, {}, "gpu"),
        (3, {}, "gpu"),
        (1, {"OPENRLHF_STARE_CPU": "0"}, "gpu"),
        (3, {"OPENRLHF_STARE_CPU": "1"}, "cpu"),
        (3, {"CUDA_VISIBLE_DEVICES": "0,2"}, "gpu"),
        (3, {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        (3, {"CUDA_VISIBLE_DEVICES": "-1"}, "cpu"),
    ],
)
def test_the_quickstart_takes_the_gpus_that_are_there_and_leaves_another_stack_alone(checkout, gpus, variables, stack):
    nvidia_smi(checkout, gpus)
    other = {"cpu": "gpu", "gpu": "cpu"}[stack]
    (checkout / ".venv/.installed").write_text(f"{other} of another")
    done = run(checkout, "quickstart.sh", **variables)
    sentence = f"install: .venv has the {other} stack: delete .venv, and run this again for the {stack} stack\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_what_a_task_lacks_is_asked_of_the_python_that_is_installed_into(checkout):
    program(checkout / "bin/python3", "exit 1")  # of another version
    program(checkout / "bin/python3.11", 'case "$*" in *install_tasks.py*) echo "asked: $*" >&2; exit 2 ;; esac')
    done = run(checkout, "pretrained.sh")
    assert (done.returncode, done.stderr) == (2, "asked: launch/pretrained/install_tasks.py --check\n")


def test_a_variable_that_is_neither_1_nor_0_chooses_no_stack(checkout):
    nvidia_smi(checkout, 1)
    done = run(checkout, "install.sh", OPENRLHF_STARE_CPU="true")
    sentence = "install: OPENRLHF_STARE_CPU=true is neither 1 nor 0: set it to one of them, or unset it\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, sentence, "")


def installed(checkout: Path, stack: str, flash_attn: str = "none") -> None:
    """What install.sh leaves behind, so that it has nothing to do."""
    words = "cat pyproject.toml openrlhf_stare/cpu/overrides.txt launch/install.sh | sha256sum"
    files = subprocess.run(["bash", "-c", words], cwd=checkout, capture_output=True, text=True, check=True).stdout
    (checkout / ".venv/.installed").write_text(f"{stack} {files.split()[0]} {flash_attn}\n{checkout}\n")
    program(checkout / ".venv/bin/python", "echo 3.12")  # its version


def test_of_two_that_start_together_one_waits(checkout):
    installed(checkout, "cpu")
    with open(checkout / "launch/install.sh") as script:
        fcntl.flock(script, fcntl.LOCK_EX)
        words = ["bash", str(checkout / "launch/install.sh"), "cpu"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout.readline() == "install: another process installs here; this one waits for it\n"
            assert second.poll() is None
            fcntl.flock(script, fcntl.LOCK_UN)
            assert second.wait(20) == 0


def test_quick_tests_with_arguments_are_refused_before_anything_is_installed(checkout):
    done = run(checkout, "test.sh", "quick", "-k", "stare")
    said = "test: quick takes no arguments, here -k stare: leave them out, or leave out quick and name the tests\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


# Notes its start and the signal that ends it.
LONG = """trap 'echo SIGTERM >>"{notes}"; exit 143' TERM
trap 'echo SIGINT >>"{notes}"; exit 130' INT
echo "started $PATH" >>"{notes}"
while :; do sleep 0.05; done"""


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
@pytest.mark.parametrize("script", ["install.sh", "test.sh"])
def test_what_takes_long_ends_with_the_script(checkout, script, number, status):
    notes = checkout / "notes"
    if script == "install.sh":
        program(checkout / ".venv/bin/python", "echo 3.12")  # its version
        program(checkout / "bin/uv", LONG.format(notes=notes))
    else:
        (checkout / "launch/install.sh").write_text("")
        for name in ("bin/bwrap", "bin/chromium", "bin/ip", ".venv/bin/ruff", ".venv/bin/mypy"):
            program(checkout / name, "exit 0")
        program(checkout / ".venv/bin/python", LONG.format(notes=notes))
    variables = environment(checkout, PYTHON=python_with(checkout, (3, 12), checkout / "include"))
    words = ["bash", str(checkout / "launch" / script), *(["cpu"] if script == "install.sh" else [])]
    # Tests in the background of a script do not hear Ctrl-C, nor would what they start.
    hears = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    with subprocess.Popen(words, env=variables, **hears) as process:
        try:
            deadline = time.monotonic() + 60
            while not notes.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            # A terminal sends Ctrl-C to all, and whoever ends the script sends SIGTERM to it alone.
            os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
            assert process.wait(30) == status
            assert [line.split()[0] for line in notes.read_text().splitlines()] == ["started", number.name]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert not (checkout / ".venv/.installed").exists()


def test_an_environment_that_was_copied_or_lost_its_python_is_no_installation(checkout, tmp_path_factory):
    installed(checkout, "gpu")
    nvidia_smi(checkout, 1)
    assert run(checkout, "install.sh").stdout == ""
    copy = shutil.copytree(checkout, tmp_path_factory.mktemp("other") / "copy", symlinks=True)
    done = run(copy, "install.sh")
    assert done.returncode == 2 and done.stderr == (
        f"install: .venv was made in {checkout}, which its programs still use: delete .venv here, and run this again\n"
    )
    (checkout / "other_name").symlink_to(checkout)
    assert run(checkout / "other_name", "install.sh").stdout == ""
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/no/python")
    nvidia_smi(checkout, 1, driver="12.8")  # it goes on, and stops there
    assert "the GPU's driver is for CUDA 12.8" in run(checkout, "install.sh").stderr


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


def test_an_environment_of_another_python_is_not_taken_in_silence(checkout):
    python = python_with(checkout, (3, 12), checkout / "include")
    program(checkout / ".venv/bin/python", "echo 3.11")
    assert stopped(checkout, PYTHON=python) == (
        "install: .venv has Python 3.11, and PYTHON is 3.12: delete .venv, or use a clone of its own for each"
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


def test_a_wheel_with_a_space_in_its_name_is_installed_once(checkout):
    wheel = checkout / "a wheel.whl"
    wheel.touch()
    nvidia_smi(checkout, 1)
    installed(checkout, "gpu", flash_attn=str(wheel))
    done = run(checkout, "install.sh", "gpu", FLASH_ATTN_WHEEL=str(wheel))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_to_resolve_the_versions_leaves_what_is_installed(checkout):
    installed(checkout, "cpu")
    program(checkout / "bin/uv", 'echo "uv $*"')
    before = (checkout / ".venv/.installed").read_text()
    done = run(checkout, "install.sh", "gpu", "--dry-run")
    assert done.returncode == 0 and "uv pip compile" in done.stdout, done
    assert (checkout / ".venv/.installed").read_text() == before
    # With an environment whose Python does not run, too.
    program(checkout / ".venv/bin/python", "exit 1")
    (checkout / ".venv/kept").touch()
    assert run(checkout, "install.sh", "--dry-run").returncode == 0
    assert (checkout / ".venv/kept").exists() and (checkout / ".venv/.installed").read_text() == before


def test_flash_attn_is_added_to_an_installation_without_it(checkout, headers):
    nvidia_smi(checkout, 1)
    installed(checkout, "gpu")
    assert run(checkout, "install.sh", "gpu").stdout == ""
    line = stopped(checkout, FLASH_ATTN="1", CUDA_HOME="/no/toolkit", PYTHON=headers)
    assert line.startswith("install: FLASH_ATTN=1 needs the CUDA 13.0 toolkit")
