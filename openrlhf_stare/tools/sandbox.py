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
import os
import platform
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_stare.tools.config import ToolConfig

NOBODY = "65534"
SCRATCH_BYTES = 16 * 2**20
THREADS, OPEN_FILES = 32, 64
# Libraries would start a thread for each core.
ENVIRONMENT = {"HOME": "/scratch", "TMPDIR": "/scratch", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# What the program's interpreter does before it becomes the program. Limits are set here and not outside, where the
# processes that the user has already would be counted with the program's.
START = """
import os, resource, sys
for name, soft_and_hard in {limits}.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), soft_and_hard)
os.execv(sys.executable, [sys.executable, "-I", "-B", "-u", "-X", "utf8", {program!r}])
"""

# For each machine its AUDIT_ARCH, then numbers of system calls: clone; clone3; those that are refused. They are
# fork and vfork (where there are such), shmget, msgget, memfd_create, memfd_secret (memory that no limit of a process
# counts), ptrace, add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd and io_uring_setup.
SYSTEM_CALLS = {
    "x86_64": (0xC000003E, 56, 435, (57, 58, 29, 68, 319, 447, 101, 248, 249, 250, 298, 321, 323, 425)),
    "aarch64": (0xC00000B7, 220, 435, (194, 186, 279, 447, 117, 217, 218, 219, 241, 280, 282, 425)),
}


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
    if platform.machine() not in SYSTEM_CALLS:
        raise SandboxMissing(
            f"the Python tool's filter of system calls is for {' and '.join(SYSTEM_CALLS)}, not for "
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

    Whatever the program does is told in the outcome. An OSError means that nothing could be started at all.
    """
    source = code.encode("utf-8", "replace")  # no file can hold a lone surrogate
    memory = config.memory_mib * 2**20
    limits = {"AS": (memory, memory), "FSIZE": (SCRATCH_BYTES, SCRATCH_BYTES), "NOFILE": (OPEN_FILES, OPEN_FILES)}
    # A program that goes on after the signal of the first limit is killed at the second.
    limits |= {"CPU": (config.seconds, config.seconds + 1), "MSGQUEUE": (0, 0), "CORE": (0, 0)}
    if config.run_model_code_without_sandbox:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_bytes(source)
            return _watch(_python(limits, str(program)), config, cwd=folder)
    with _in_memory(source) as program, _in_memory(_system_call_filter()) as call_filter:
        command = _bubblewrap(program, call_filter) + _python({**limits, "NPROC": (THREADS, THREADS)}, "/program.py")
        return _watch(command, config, pass_fds=(program, call_filter))


def _watch(command: list[str], config: ToolConfig, **options) -> Outcome:
    """Read the command's output until it ends or goes over a limit; then kill whatever is left of it."""
    most_seconds = 2 * config.seconds
    deadline = time.monotonic() + most_seconds
    output, note = b"", None
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
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while len(output) <= config.output_chars * 4:  # bytes of a character
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise subprocess.TimeoutExpired(command, most_seconds)
                if not (chunk := os.read(process.stdout.fileno(), 2**16)):
                    # A program may close its output and go on.
                    process.wait(max(0, deadline - time.monotonic()))
                    break
                output += chunk
        except subprocess.TimeoutExpired:
            note = f"stopped after {most_seconds} seconds"
        finally:
            # bubblewrap takes all processes inside with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    text = output.decode("utf-8", "replace")
    if len(text) > config.output_chars:
        text, note = text[: config.output_chars], f"output cut after {config.output_chars} characters"
    elif note is None and process.returncode == 128 + signal.SIGXCPU:
        note = f"stopped after {config.seconds} seconds of processor time"
    elif note is None and process.returncode > 128:
        note = f"killed by signal {process.returncode - 128}"
    if note is None:
        return Outcome(text, failed=process.returncode != 0)
    return Outcome(f"{text}\n[{note}]\n".lstrip("\n"), failed=True)


def _bubblewrap(program: int, call_filter: int) -> list[str]:
    """The command that runs what comes after it in the sandbox. The files' contents are given as open files."""
    bwrap = shutil.which("bwrap")
    view = _read_only_view()
    sandbox = [bwrap, "--unshare-user", "--unshare-all", "--disable-userns", "--uid", NOBODY, "--gid", NOBODY]
    sandbox += ["--cap-drop", "ALL", "--hostname", "sandbox", "--new-session", "--die-with-parent"]
    sandbox += [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
    sandbox += [*view, "--ro-bind-data", str(program), "/program.py", "--dev-bind", "/dev/null", "/dev/null"]
    sandbox += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/scratch", "--remount-ro", "/", "--chdir", "/scratch"]
    sandbox += ["--seccomp", str(call_filter)]
    if os.geteuid() != 0:
        return sandbox
    # Root becomes a user without privileges first. That user may be kept out of the folder in which Python lies
    # (/root, say), so root prepares a view of it, from which the sandbox is then made. The first process of a process
    # namespace takes all others with it when it dies, which it could not do by a signal to another user's.
    stage = [bwrap, "--unshare-pid", "--die-with-parent", "--ro-bind", "/usr", "/usr", *view, "--dir", "/tmp"]
    stage += ["--dev", "/dev", "--proc", "/proc"]
    return [*stage, shutil.which("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *sandbox]


def _read_only_view() -> list[str]:
    """bubblewrap's arguments for this Python and the system's libraries, each at its own place."""
    view = []
    folders = ["/usr/lib", "/usr/lib64", sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), sys.prefix]
    for folder in ("/lib", "/lib64"):
        if os.path.islink(folder):
            view += ["--symlink", os.readlink(folder), folder]
        else:
            folders.append(folder)
    for folder in filter(os.path.isdir, dict.fromkeys(folders)):
        # The parents that bubblewrap makes by itself would be root's alone.
        for parent in reversed(Path(folder).parents[:-1]):
            view += ["--dir", str(parent)]
        view += ["--ro-bind", folder, folder]
    return view


def _python(limits: dict[str, tuple[int, int]], program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", START.format(limits=limits, program=program)]


def _system_call_filter() -> bytes:
    """A seccomp filter in the kernel's own form: a classic BPF program over the number and arguments of a call."""
    arch, clone, clone3, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF's instructions
    number_at, arch_at, argument_at = 0, 4, 16  # in the kernel's struct seccomp_data
    kill, allow, error = 0x80000000, 0x7FFF0000, 0x00050000
    other_numbers = 0x40000000  # the calls of the x32 ABI
    not_permitted, no_such_call, clone_thread = 1, 38, 0x10000

    # (instruction, how many to skip if it holds, how many if not, operand)
    program = [(load, 0, 0, arch_at), (equal, 1, 0, arch), (end, 0, 0, kill), (load, 0, 0, number_at)]
    program += [(at_least, 0, 1, other_numbers), (end, 0, 0, kill)]
    # clone3 keeps its flags where no filter sees them. Without it the C library falls back on clone.
    program += [(equal, 0, 1, clone3), (end, 0, 0, error | no_such_call)]
    for number in refused:
        program += [(equal, 0, 1, number), (end, 0, 0, error | not_permitted)]
    program += [(equal, 1, 0, clone), (end, 0, 0, allow), (load, 0, 0, argument_at)]
    program += [(any_bit, 0, 1, clone_thread), (end, 0, 0, allow), (end, 0, 0, error | not_permitted)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


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
