"""Makes a folder that several processes may want to make at the same time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone_at(folder: Path) -> Iterator[None]:
    """Wait until no other process is at the folder, whose lock, beside it, ends with the process that has it."""
    with open(f"{folder}.lock", "w") as lock:
        with contextlib.suppress(OSError):  # a file system without flock
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
