"""Runs a Python program that nobody trusts: no network, no files but a scratch folder, and limits on all it can use.

bubblewrap (`bwrap`, 0.8 or newer) gives every run namespaces of its own: an empty network, its own processes, a
read-only view of this Python and of the system's libraries, `/dev/null`, and `/scratch` in memory. There is no /proc,
no shell, no device and no environment variable of the host. The program's user has no privileges, which is also why
limits bind. A filter of system calls keeps the program one process, because Linux counts memory and processor time
for each process by itself, and away from memory that is counted for none.

Each run is a fresh process: variables and files of one run are not there in the next.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import selectors
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_stare.tools import cgroup
from openrlhf_stare.tools.config import ToolConfig
from openrlhf_stare.tools.system_calls import ARCHITECTURES, call_filter

NOBODY = "65534"
SCRATCH_BYTES = 16 * 2**20
SCRATCH_FILES = 4096
THREADS, OPEN_FILES = 32, 64
SANDBOX_PROCESSES, SANDBOX_BYTES = 8, 32 * 2**20  # bubblewrap's own, in the cgroup with the program
# Libraries would start a thread for each core.
ENVIRONMENT = {"HOME": "/scratch", "TMPDIR": "/scratch", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# What the program's interpreter does before it becomes the program. Limits are set here and not outside, where the
# processes that the user has already would be counted with the program's.
START = """
import os, resource, sys
for name, soft_and_hard in {limits}.items():
    for process in {processes}:
        resource.prlimit(process, getattr(resource, "RLIMIT_" + name), soft_and_hard)
{in_sandbox}
os.execv(sys.executable, [sys.executable, "-I", "-B", "-u", "-X", "utf8", {program!r}])
"""
# bubblewrap has no option for the number of files, so it leaves the right to set it (CAP_SYS_ADMIN) to this
# interpreter, which gives it up: without ambient capabilities a user who is not root has none after execv.
# Importing ctypes itself would take as long as a tenth of a small program.
IN_SANDBOX = f"""
import _ctypes
libc = _ctypes.dlopen(None, 0)
remount, no_suid, no_devices, ambient_capabilities, clear_all = 32, 2, 4, 47, 4
limits = b"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES}"
mount = b"", b"/scratch", b"", remount | no_suid | no_devices, limits
for call, arguments in ("mount", mount), ("prctl", (ambient_capabilities, clear_all, 0, 0, 0)):
    if _ctypes.call_function(_ctypes.dlsym(libc, call), arguments) != 0:
        raise OSError(call + " failed")
"""
# Where memory runs out, the kernel kills processes with this mark first. It takes no privilege. $0 names the cgroups'
# files, whose paths have no spaces.
KILLED_FIRST = """
{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null
for cgroup in $0; do { echo 0 > "$cgroup"; } 2> /dev/null; done
exec "$@"
"""


class SandboxMissing(RuntimeError):
    """Programs cannot be run safely on this machine. The message is one sentence with the remedy."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        output: stdout and stderr as they came, and in brackets at the end why the program was stopped, if it was.
        failed: it was stopped, or its exit status was not 0.
    """

    output: str
    failed: bool


def check(config: ToolConfig) -> None:
    """Run a small program, unless the user insists on going without a sandbox.

    Raises:
        SandboxMissing: there is no sandbox here.
    """
    if config.run_model_code_without_sandbox:
        return
    if platform.machine() not in ARCHITECTURES:
        raise SandboxMissing(
            f"the Python tool's filter of system calls is for {' and '.join(ARCHITECTURES)}, not for "
            f"{platform.machine()}: run the job on such machines"
        )
    if shutil.which("bwrap") is None:
        raise SandboxMissing(
            "the Python tool runs code that a model wrote, in a sandbox of bubblewrap, and there is no bwrap on the "
            "PATH: install the package bubblewrap (0.8 or newer) on every node"
        )
    outcome = run("print(6 * 7)", config)
    if outcome != Outcome("42\n", failed=False):
        raise SandboxMissing(
            f"the Python tool's sandbox does not work on this machine ({' '.join(outcome.output.split())}): install "
            "bubblewrap 0.8 or newer and allow user namespaces, which containers and some distributions forbid"
        )


def run(code: str, config: ToolConfig) -> Outcome:
    """Run the program and return when it has ended or been stopped, soon after twice `config.seconds` at the latest.

    The time for which it was ready to run and had no CPU does not count.

    Whatever the program does is told in the outcome. An OSError means that nothing could be started at all.
    """
    source = code.encode("utf-8", "replace")  # no file can hold a lone surrogate
    memory = config.memory_mib * 2**20
    limits = {"AS": (memory, memory), "FSIZE": (SCRATCH_BYTES, SCRATCH_BYTES), "NOFILE": (OPEN_FILES, OPEN_FILES)}
    # A program that goes on after the signal of the first limit is killed at the second.
    limits |= {"CPU": (config.seconds, config.seconds + 1), "MSGQUEUE": (0, 0), "CORE": (0, 0)}
    limits |= {"MEMLOCK": (0, 0), "SIGPENDING": (THREADS, THREADS)}
    if config.run_model_code_without_sandbox:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "program.py")
            file.write_bytes(source)
            return _watch(_python(str(file), limits), config, cwd=folder)
    with (
        _in_memory(source) as program,
        _in_memory(call_filter(platform.machine())) as system_calls,
        cgroup.limited(memory=memory + SCRATCH_BYTES + SANDBOX_BYTES, pids=THREADS + SANDBOX_PROCESSES) as cgroups,
    ):
        limits["NPROC"] = (THREADS, THREADS)
        command = ["/bin/sh", "-c", KILLED_FIRST, " ".join(cgroups), *_bubblewrap(program, system_calls)]
        # The sandbox's first process is bubblewrap's own.
        command += _python("/program.py", limits, processes=(1, 0), in_sandbox=IN_SANDBOX)
        return _watch(command, config, pass_fds=(program, system_calls))


def _watch(command: list[str], config: ToolConfig, **options: Any) -> Outcome:
    """Read the command's output until it ends or goes over a limit; then kill whatever is left of it."""
    most_seconds = 2 * config.seconds
    start, output, note = time.monotonic(), b"", None
    delays: dict[str, float] = {}
    with (
        selectors.DefaultSelector() as selector,
        subprocess.Popen(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        ) as process,
    ):
        assert process.stdout
        selector.register(process.stdout, selectors.EVENT_READ)
        ended = os.pidfd_open(process.pid)
        try:
            while len(output) <= config.output_chars * 4:  # bytes of a character
                remaining = start + most_seconds - time.monotonic()
                if remaining <= 0:
                    delays |= _seconds_without_a_cpu(process.pid)
                    remaining += sum(delays.values())
                if remaining <= 0:
                    note = f"stopped after {most_seconds} seconds"
                    break
                ready = {key.fd for key, _ in selector.select(remaining)}
                if ended in ready:
                    break
                if ready and not (chunk := os.read(process.stdout.fileno(), 2**16)):
                    # A program may close its output and go on.
                    selector.unregister(process.stdout)
                    selector.register(ended, selectors.EVENT_READ)
                elif ready:
                    output += chunk
        finally:
            os.close(ended)
            # bubblewrap takes all processes inside with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    text = output.decode("utf-8", "replace")
    killed_by = _signal(process.returncode, time.monotonic() - start, config)
    if len(text) > config.output_chars:
        text, note = text[: config.output_chars], f"output cut after {config.output_chars} characters"
    elif note is None and killed_by == signal.SIGXCPU:
        note = f"stopped after {config.seconds} seconds of processor time"
    elif note is None and killed_by > 0:
        note = f"killed by signal {killed_by}"
    if note is None:
        return Outcome(text, failed=process.returncode != 0)
    return Outcome(f"{text}\n[{note}]\n".lstrip("\n"), failed=True)


def _signal(status: int, seconds: float, config: ToolConfig) -> int:
    """The number of the signal that ended a program after some seconds by the clock, 0 for none.

    bubblewrap tells of it as shells do, by 128 more, and may itself be killed with the program when memory runs out. A
    status that the program gave itself is taken for a signal only where there is such a one and it could have come.
    """
    number = -status if status < 0 else status - 128
    if number not in signal.valid_signals():
        return 0
    # Linux tells nobody but bubblewrap how much processor time a program took.
    most = seconds * min(THREADS, os.cpu_count() or 1)
    return 0 if number == signal.SIGXCPU and most < config.seconds else number


def _seconds_without_a_cpu(pid: int) -> dict[str, float]:
    """For how long this process and those below it were each ready to run and had no CPU, as far as Linux says."""
    delays, processes = {}, [str(pid)]
    while processes:
        place = Path("/proc", processes.pop())
        with contextlib.suppress(OSError):  # it has ended
            delays[place.name] = int((place / "schedstat").read_text().split()[1]) / 1e9
            processes += (place / "task" / place.name / "children").read_text().split()
    return delays


def _bubblewrap(program: int, system_calls: int) -> list[str]:
    """The command that runs what comes after it in the sandbox. The files' contents are given as open files."""
    bwrap, setpriv = shutil.which("bwrap"), shutil.which("setpriv")
    assert bwrap
    python = sys.executable, (sys.prefix, sys.base_prefix)
    sandbox = [bwrap, "--unshare-user", "--unshare-all", "--uid", NOBODY, "--gid", NOBODY]
    sandbox += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--hostname", "sandbox"]
    sandbox += ["--new-session", "--die-with-parent", "--clearenv"]
    sandbox += [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
    sandbox += _read_only_view(*python)
    if sys.executable != os.path.realpath(sys.executable):
        sandbox += [*_parents(sys.executable), "--symlink", os.path.realpath(sys.executable), sys.executable]
    sandbox += ["--ro-bind-data", str(program), "/program.py", "--dev-bind", "/dev/null", "/dev/null"]
    sandbox += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/scratch", "--remount-ro", "/", "--chdir", "/scratch"]
    sandbox += ["--seccomp", str(system_calls)]
    if os.geteuid() != 0:
        return sandbox
    # Root becomes a user without privileges first. That user may be kept out of the folder in which Python lies
    # (/root, say), so root prepares a view of it, from which the sandbox is then made. The first process of a process
    # namespace takes all others with it when it dies, which it could not do by a signal to another user's.
    stage = [bwrap, "--unshare-pid", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    stage += [*_read_only_view(*python, without=("/usr",)), "--dir", "/tmp"]
    stage += ["--dev", "/dev", "--proc", "/proc"]
    assert setpriv
    return [*stage, setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *sandbox]


@functools.cache
def _read_only_view(executable: str, prefixes: tuple[str, ...], without: tuple[str, ...] = ()) -> list[str]:
    """bubblewrap's arguments for this Python and its and the system's libraries, each at its own place, less what is
    below the folders `without`."""
    python = os.path.realpath(executable)
    places = {"/usr/lib", "/usr/lib64", "/lib", "/lib64", *site.getsitepackages(), python}
    folders = (*prefixes, str(Path(python).parents[1]))
    places |= {os.path.join(folder, name) for folder in folders for name in ("lib", "lib64", "pyvenv.cfg")}
    view, seen = [], [*without]
    for place in sorted(filter(os.path.exists, places)):
        if any(Path(place).is_relative_to(other) for other in seen):
            continue
        seen.append(place)
        link = os.path.islink(place) and os.path.realpath(place) in places  # such as /lib and a venv's lib64
        view += [*_parents(place), *(["--symlink", os.readlink(place)] if link else ["--ro-bind", place]), place]
    return view


def _parents(place: str) -> list[str]:
    """bubblewrap's arguments for the folders above a place. Those that it makes by itself would be root's alone."""
    return [word for parent in reversed(Path(place).parents[:-1]) for word in ("--dir", str(parent))]


def _python(
    program: str, limits: dict[str, tuple[int, int]], processes: tuple[int, ...] = (0,), in_sandbox: str = ""
) -> list[str]:
    """The command that runs the program under the limits; 0 is the process itself."""
    start = START.format(program=program, limits=limits, processes=processes, in_sandbox=in_sandbox)
    return [sys.executable, "-I", "-S", "-c", start]


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """An open file with the content, in memory."""
    file = os.memfd_create("openrlhf_stare")
    try:
        os.write(file, content)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)
