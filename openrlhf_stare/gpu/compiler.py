"""Whether DeepSpeed can compile its Adam for the GPU, read from files: importing torch takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path

# What torch's own headers include, of which an installation of nvcc alone has the first.
HEADERS = ("cuda_runtime.h", "cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h")
# What DeepSpeed can read of the architectures that torch is told to compile for; torch takes 9.0a and names as well.
NUMBERED = re.compile(r"\d+\.\d+(\+PTX)?")


@functools.cache
def missing() -> str | None:
    """What is not here of what DeepSpeed needs to compile for torch's CUDA, as a clause; None if all is."""
    needed, nvcc = cuda_of_torch(), cuda_home() / "bin" / "nvcc"
    if needed is None:
        return "torch is made for no CUDA"
    found = release(nvcc)
    if found is None:
        return f"there is no CUDA {needed} toolkit ({nvcc} does not run)"
    if found != needed:  # DeepSpeed knows no newer one that goes with this
        return f"{nvcc} is of CUDA {found}, and torch of CUDA {needed}"
    for header in HEADERS:
        if not (cuda_home() / "include" / header).is_file():
            return f"{cuda_home()}/include has no {header}"
    programs = (os.environ.get("CXX", "g++"), "a C++ compiler"), ("ninja", "ninja")
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    for program, what in programs:
        if shutil.which(program, path=path) is None:
            return f"{what} is not on the PATH"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h) are not installed"
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if any(not NUMBERED.fullmatch(one) for one in architectures.replace(";", " ").split()):
        return f"DeepSpeed cannot read TORCH_CUDA_ARCH_LIST={architectures}, only numbers such as 9.0 or 9.0+PTX"
    return None


def cuda_home() -> Path:
    """The folder of the CUDA toolkit, looked for as torch does when it compiles."""
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(home)
    nvcc = shutil.which("nvcc")
    return Path(nvcc).parent.parent if nvcc else Path("/usr/local/cuda")


def cuda_of_torch() -> str | None:
    """Major and minor version of the CUDA that torch is made for, such as 13.0."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))["cuda"]


def release(nvcc: Path) -> str | None:
    """The version that it names, such as 13.0; None if it cannot be run."""
    try:
        text = subprocess.run([nvcc, "-V"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+\.\d+)", text)
    return found and found[1]
