"""A cgroup for each program of the Python tool, where this user may make one.

Limits of a process do not count the kernel's memory for it, such as page tables and sockets. A cgroup does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

# The controller's file that says how much, in version 1 of the kernel's interface and in version 2.
LIMITS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
}
# What a process of one thread writes a 0 to in order to join. Version 1 can move a thread alone, without the wait for
# the lock on all forks of the machine.
TO_JOIN = ("tasks", "cgroup.procs")
NAME = "openrlhf_stare"


@contextlib.contextmanager
def limited(**limits: int) -> Iterator[list[str]]:
    """Cgroups with these limits, by the controller's name, for as long as the context lasts.

    Yields:
        The files that a process of one thread writes a 0 to in order to join; none where this user may make no cgroup.
    """
    made: dict[Path, tuple[Path, int]] = {}  # by the folder above; in version 2 one has all controllers
    to_join: list[str] = []
    try:
        with contextlib.suppress(OSError):  # read-only, as in most containers, or another user's
            for controller, limit in limits.items():
                folder, version = _place(controller)
                if folder not in made:
                    _remove_leftovers(folder)
                    own = folder / f"{NAME}-{_process(os.getpid())}-{secrets.token_hex(4)}"
                    own.mkdir()
                    made[folder] = own, version
                (made[folder][0] / LIMITS[controller][version - 1]).write_text(str(limit))
            to_join = [str(own / TO_JOIN[version - 1]) for own, version in made.values()]
        yield to_join
    finally:
        for own, _ in made.values():
            _remove(own)


def _place(controller: str) -> tuple[Path, int]:
    """The folder in which this process may make a cgroup with this controller, and the interface's version.

    Raises:
        FileNotFoundError: there is none.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path("/sys/fs/cgroup", controller, path.lstrip("/")), 1
        if not controllers:
            own = Path("/sys/fs/cgroup", path.lstrip("/"))
            # A cgroup with processes of its own has no controllers to give away, so ours is beside it.
            for folder in (own, own.parent):
                given = folder / "cgroup.subtree_control"
                # Who moves a process writes to the folder above both places, too.
                if (
                    given.exists()
                    and os.access(folder / "cgroup.procs", os.W_OK)
                    and LIMITS.keys() <= set(given.read_text().split())
                ):
                    return folder, 2
    raise FileNotFoundError(f"no cgroup with the controller {controller}")


def _process(pid: int) -> str:
    """What tells a process from every other: its number, when it started, and in which namespace the number holds.

    Raises:
        OSError: there is no such process.
    """
    # The name, in parentheses, may hold spaces. The time is the 22nd field.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{pid}-{started}-{os.stat('/proc/self/ns/pid').st_ino}"


@functools.cache  # once for each process
def _remove_leftovers(folder: Path) -> None:
    """Remove the cgroups of processes that were killed. Their programs ended with them."""
    for left in folder.glob(f"{NAME}-*-*-*-*"):
        pid, _, namespace, _ = left.name.removeprefix(f"{NAME}-").split("-")
        if namespace != str(os.stat("/proc/self/ns/pid").st_ino):
            continue
        with contextlib.suppress(OSError):  # it has gone just now, or has processes after all
            try:
                alive = left.name.startswith(f"{NAME}-{_process(int(pid))}-")
            except FileNotFoundError:
                alive = False
            if not alive:
                left.rmdir()


def _remove(folder: Path) -> None:
    """Once its processes, which were killed, are gone."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.01)
