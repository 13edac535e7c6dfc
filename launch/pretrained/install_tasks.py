"""Installs reasoning-gym unless it is there: python launch/pretrained/install_tasks.py [--check]

It needs pycosat, which is to be had as C source alone. Without a C compiler or Python's header this ends with status 2
and one sentence, before anything is fetched. With --check it only looks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REMEDY = "or train on the sentences (TASK=sentences; of the study, ARMS=sentences-grpo), which need neither"


def missing() -> str | None:
    """What building pycosat lacks on this machine, with the remedy; None if it lacks nothing."""
    compiler = os.environ.get("CC", "").split() or ["gcc"]
    if not shutil.which(compiler[0]) and not shutil.which("cc"):
        return f"no C compiler found, which pycosat, a part of reasoning-gym, is built with: install gcc, {REMEDY}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return (
            f"{header} is not there, which pycosat, a part of reasoning-gym, is built with: install the headers of "
            f"this Python (python3-dev), {REMEDY}"
        )
    return None


def install() -> int:
    """Install the extra `tasks` with uv if launch/install.sh has brought it, else with pip; the exit status."""
    uv = shutil.which("uv") or shutil.which(Path(sys.executable).with_name("uv"))
    environment = {
        "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "").replace(" ", ","),  # as uv separates them
        "UV_EXTRA_INDEX_URL": os.environ.get("PIP_EXTRA_INDEX_URL", ""),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        **os.environ,
    }
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    return subprocess.run([*command, "-e", f"{ROOT}[tasks]"], env=environment).returncode


def main() -> int:
    if importlib.util.find_spec("reasoning_gym"):
        return 0
    if lacking := missing():
        print(f"install_tasks: {lacking}", file=sys.stderr)
        return 2
    if "--check" in sys.argv[1:]:
        return 0
    print("install_tasks: reasoning-gym and what it needs, 7 MB", file=sys.stderr)
    return install()


if __name__ == "__main__":
    sys.exit(main())
