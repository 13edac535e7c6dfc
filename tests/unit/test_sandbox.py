"""Programs that try to break out of the Python tool's sandbox, to use up the machine or to stay."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from openrlhf_stare.tools import sandbox
from openrlhf_stare.tools.config import ToolConfig
from openrlhf_stare.tools.sandbox import Outcome

LIMITS = ToolConfig(seconds=15, memory_mib=256, output_chars=1000)
LIBC = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(result):
    assert result == -1, result
"""
# Prints every attempt that does not raise an OSError.
ATTEMPTS = """
import os, resource, socket, sys
def attempt(what, *args):
    try:
        print(what.__name__, args, "gave", what(*args))
    except OSError:
        pass
"""


def sandboxed_processes() -> set[int]:
    """The processes that are in a process namespace below ours; not those that only wait to be reaped."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/status"):
        try:
            status = file.read_text()
            below = len(re.search(r"^NSpid:(.*)$", status, re.MULTILINE)[1].split()) > 1
            if below and not re.search(r"^State:\s*Z", status, re.MULTILINE):
                found.add(int(file.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def assert_gone(before: set[int]) -> None:
    """The kernel kills what is left in a namespace when its first process dies; that takes a moment."""
    deadline = time.monotonic() + 5
    while left := sandboxed_processes() - before:
        assert time.monotonic() < deadline, f"{left} are left"
        time.sleep(0.05)


def run(program: str, prelude: str = "", config: ToolConfig = LIMITS) -> Outcome:
    """What the model is told; the run has ended in time and has left nothing behind."""
    before, start = sandboxed_processes(), time.monotonic()
    outcome = sandbox.run(prelude + dedent(program), config)
    assert time.monotonic() - start < 2 * config.seconds + 5
    assert_gone(before)
    return outcome


def test_a_program_s_output_and_its_errors_come_back():
    assert run("import sys; print(6 * 7); print('and', file=sys.stderr)") == Outcome("42\nand\n", failed=False)
    assert run("pass") == Outcome("", failed=False)
    outcome = run("print('before')\n1 / 0")
    assert outcome.failed and outcome.output.startswith("before\nTraceback")
    assert outcome.output.endswith("ZeroDivisionError: division by zero\n") and "1 / 0" in outcome.output
    assert run("import sympy, numpy; print(sympy.factorint(12), numpy.eye(2).sum())", config=ToolConfig()) == Outcome(
        "{2: 2, 3: 1} 2.0\n", failed=False
    )


def test_a_run_knows_nothing_of_the_one_before():
    program = "import os; print(os.listdir()); open('left', 'w').close()"
    assert run(program) == run(program) == Outcome("[]\n", failed=False)


# Using up the machine


def test_fork_bomb():
    program = """
        children = 0
        for _ in range(10_000):
            try:
                children += os.fork() > 0
            except PermissionError:
                pass
        print(children)
    """
    assert run(program, "import os") == Outcome("0\n", failed=False)


def test_fork_bomb_below_python():
    _, clone, clone3, (first, *_) = sandbox.SYSTEM_CALLS[os.uname().machine]
    program = f"""
        refused(libc.syscall({clone}, signal.SIGCHLD, 0, 0, 0, 0))
        refused(libc.syscall({clone3}, (ctypes.c_uint64 * 11)(), 88))
        refused(libc.syscall({first}, 0, 1 << 20, 0o1600))
        libc.syscall(0x40000000 + {clone}, signal.SIGCHLD, 0, 0, 0, 0)
    """
    assert run(program, LIBC) == Outcome(f"[killed by signal {signal.SIGSYS.value}]\n", failed=True)


def test_thread_bomb():
    program = """
        import threading, time
        threading.stack_size(1 << 15)
        while True:
            threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
            print(threading.active_count(), end=" ", flush=True)
    """
    outcome = run(program)
    assert outcome.failed and "can't start new thread" in outcome.output
    counts = [int(word) for word in outcome.output.split("Traceback")[0].split()]
    assert 2 <= max(counts) <= sandbox.THREADS


def test_memory_bomb():
    outcome = run("hoard = []\nwhile True: hoard.append(bytearray(1 << 25))")
    assert outcome.failed and outcome.output.endswith("MemoryError\n")


def test_memory_that_no_process_is_charged_for():
    program = """
        refused(libc.shmget(0, 1 << 20, 0o1600))
        refused(libc.msgget(0, 0o1600))
        refused(libc.memfd_create(b"hoard", 0))
        print("refused")
    """
    assert run(program, LIBC) == Outcome("refused\n", failed=False)


def test_filling_the_disk():
    program = """
        total = 0
        try:
            for name in range(100):
                total += open(str(name), "wb").write(bytes(1 << 20))
        except OSError as error:
            print(total >> 20, error.strerror)
        for name in range(100):
            if os.path.exists(str(name)): os.remove(str(name))
        try:
            with open("large", "wb") as file:
                while True: file.write(bytes(1 << 20))
        except OSError as error:
            print(os.path.getsize("large") >> 20, error.strerror)
    """
    mib = sandbox.SCRATCH_BYTES >> 20
    outcome = run(program, "import os")
    assert re.fullmatch(rf"(\d+) No space left on device\n{mib} .*\n", outcome.output)
    assert int(outcome.output.split()[0]) <= mib


def test_endless_output():
    outcome = run("while True: print('again ' * 1000)")
    assert outcome.failed and outcome.output.startswith("again again")
    assert outcome.output.endswith("[output cut after 1000 characters]\n") and len(outcome.output) < 1100


def test_hoarding_open_files():
    program = """
        files = []
        try:
            while True:
                files.append(open("/dev/null"))
        except OSError as error:
            print(len(files) + 3, error.strerror)
    """
    assert run(program) == Outcome(f"{sandbox.OPEN_FILES} Too many open files\n", failed=False)


def test_endless_work_and_endless_sleep():
    short = ToolConfig(seconds=1)
    assert run("while True: pass", config=short) in (
        Outcome("[stopped after 1 seconds of processor time]\n", failed=True),
        Outcome("[stopped after 2 seconds]\n", failed=True),  # on a busy machine
    )
    assert run("import time; print('z', flush=True); time.sleep(100)", config=short) == Outcome(
        "z\n\n[stopped after 2 seconds]\n", failed=True
    )


def test_recursion_without_end():
    outcome = run("import sys; sys.setrecursionlimit(10**9)\ndef deeper(): deeper()\ndeeper()")
    assert outcome.failed
    assert run("import ctypes; ctypes.string_at(0)") == Outcome("[killed by signal 11]\n", failed=True)


# Seeing the host


def test_reading_the_host_s_files(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("for nobody")
    tmp_path.chmod(0o755)
    files = [str(secret), __file__, "/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/maps"]
    folders = ["/proc", "/etc", "/home", "/var", "/tmp", "/boot", "/run", "/sys", "/bin"]
    # A folder above the Python environment is there, and shows the way to it.
    folders = [folder for folder in folders if not Path(sys.prefix).is_relative_to(folder)]
    program = f"""
        for path in {files}:
            attempt(open, path)
            os.symlink(path, "link")
            attempt(open, "link")
            os.remove("link")
            attempt(open, "../" * 10 + path)
        for folder in {folders}:
            attempt(os.listdir, folder)
    """
    assert run(program, ATTEMPTS) == Outcome("", failed=False)


def test_no_open_file_of_the_host_is_inherited(tmp_path):
    program = """
        for descriptor in range(3, 1000):
            attempt(os.fstat, descriptor)
    """
    folder = os.open("/", os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        assert run(program, ATTEMPTS) == Outcome("", failed=False)
    finally:
        os.close(folder)


def test_reading_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    program = """
        print(sorted(set(os.environ) - {"PWD", "LC_CTYPE"}))
        libc.getenv.restype = ctypes.c_char_p
        print(libc.getenv(b"WANDB_API_KEY"))
    """
    assert run(program, LIBC) == Outcome(f"{sorted(sandbox.ENVIRONMENT)}\nNone\n", failed=False)


def test_the_devices_are_one():
    program = """
        assert os.listdir("/dev") == ["null"]
        for device in ("mem", "kmsg", "tty", "ptmx", "sda", "vda", "nvidia0", "shm/x"):
            attempt(open, "/dev/" + device, "rb")
        attempt(os.mknod, "/scratch/mem", 0o20666, os.makedev(1, 1))
        attempt(os.mknod, "/dev/mem", 0o20666, os.makedev(1, 1))
    """
    assert run(program, ATTEMPTS) == Outcome("", failed=False)


def test_reading_the_input():
    outcome = run("input()")
    assert outcome.failed and "EOFError" in outcome.output


# Reaching out


def test_opening_sockets():
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0openrlhf_stare")  # without a file
        unix.listen()
        for listener in (tcp, unix):
            listener.setblocking(False)
        program = f"""
            attempt(socket.create_connection, ("127.0.0.1", {tcp.getsockname()[1]}), 1)
            attempt(socket.socket(socket.AF_UNIX).connect, "\\0openrlhf_stare")
            attempt(socket.create_connection, ("1.1.1.1", 53), 1)
            attempt(socket.getaddrinfo, "example.org", 443)
            attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW)
            attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
            assert socket.gethostname() == "sandbox"
        """
        assert run(program, ATTEMPTS) == Outcome("", failed=False)
        for listener in (tcp, unix):
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_touching_the_host_s_processes():
    with subprocess.Popen(["sleep", "100"]) as victim:
        program = f"""
            for pid in ({victim.pid}, {os.getpid()}):
                attempt(os.kill, pid, 9)
                attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
            attempt(os.kill, -1, 9)
            assert os.getppid() < 10
            print(libc.ptrace(16, {victim.pid}, 0, 0))
        """
        assert run(program, LIBC + ATTEMPTS) == Outcome("-1\n", failed=False)
        assert victim.poll() is None
        victim.kill()


def test_gaining_privileges():
    program = """
        assert os.getresuid() == (65534, 65534, 65534) and set(os.getgroups()) <= {65534}
        attempt(os.setuid, 0)
        attempt(os.setgroups, [0])
        attempt(os.chroot, "/scratch")
        attempt(socket.sethostname, "mine")
        attempt(os.nice, -5)
        refused(libc.mount(b"none", b"/scratch", b"tmpfs", 0, None))
        refused(libc.umount2(b"/scratch", 2))
        for namespace in (0x10000000, 0x00020000, 0x40000000):  # user, mount, network
            refused(libc.unshare(namespace))
        for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
            try:
                resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                print("lifted", limit)
            except ValueError:
                pass
    """
    assert run(program, LIBC + ATTEMPTS) == Outcome("", failed=False)


def test_running_other_programs():
    program = """
        for program in ("/bin/sh", "/bin/su", "/sbin/mount"):
            attempt(os.execv, program, [program])
            attempt(os.posix_spawn, program, [program], {})
        assert os.system("echo out") != 0
    """
    assert run(program, ATTEMPTS) == Outcome("", failed=False)


def test_writing_outside_the_scratch_folder():
    program = """
        for folder in ("/", "/dev", "/usr", "/usr/lib", sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)):
            attempt(open, os.path.join(folder, "written"), "w")
            attempt(os.mkdir, os.path.join(folder, "made"))
        for path in ("/program.py", os.__file__, sys.executable):
            attempt(open, path, "a")
            attempt(os.remove, path)
            attempt(os.chmod, path, 0o777)
        attempt(os.link, os.__file__, "/scratch/link")
    """
    assert run(program, ATTEMPTS) == Outcome("", failed=False)


# Staying


def test_outliving_the_limit():
    program = """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        os.setsid() if os.getpid() != os.getsid(0) else None
        try:
            if os.fork() == 0 and os.fork() == 0:
                print("a daemon")
        except PermissionError:
            pass
        print("staying", flush=True)
        os.closerange(0, 3)
        while True:
            time.sleep(1)
    """
    outcome = run(program, "import os", ToolConfig(seconds=2))
    assert outcome == Outcome("staying\n\n[stopped after 4 seconds]\n", failed=True)


def test_outliving_the_job():
    """A program ends with the process that runs it, even if that is killed without a chance to clean up."""
    before = sandboxed_processes()
    script = "from openrlhf_stare.tools import sandbox, config\n"
    script += "sandbox.run('import time; time.sleep(1000)', config.ToolConfig(seconds=1000))"
    with subprocess.Popen([sys.executable, "-c", script]) as job:
        deadline = time.monotonic() + 60
        while len(sandboxed_processes() - before) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(sandboxed_processes() - before) >= 2
        job.kill()
    assert_gone(before)


# Strange texts


def test_source_that_no_file_can_hold():
    assert run("print('\ud800')") == Outcome("?\n", failed=False)


def test_output_that_is_no_text():
    outcome = run("import sys; sys.stdout.buffer.write(b'\\xff\\x00\\xf0\\x9f')")
    assert outcome == Outcome("\ufffd\0\ufffd", failed=False)


@pytest.mark.parametrize("code", ["print('\0')", "\N{SNOWMAN}", "if", "print(1" + "+1" * 10**5 + ")"])
def test_source_that_is_no_program(code):
    assert run(code).failed


# Without a sandbox


def test_without_bubblewrap_nothing_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sandbox.SandboxMissing, match="install the package bubblewrap"):
        sandbox.check(ToolConfig())
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox.os, "geteuid", lambda: 1000)
    with pytest.raises(sandbox.SandboxMissing, match="bwrap: No permissions to create new namespace.*user namespaces"):
        sandbox.check(ToolConfig())


def test_only_by_its_name_does_the_user_go_without(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    config = ToolConfig(seconds=2, memory_mib=256, run_model_code_without_sandbox=True)
    sandbox.check(config)
    assert sandbox.run("import os; print(os.getuid(), list(os.environ))", config).output.startswith(f"{os.getuid()} [")
    assert sandbox.run("bytearray(1 << 30)", config).output.endswith("MemoryError\n")
    start = time.monotonic()
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(77)'])"
    assert sandbox.run(child, config) == Outcome("[stopped after 4 seconds]\n", failed=True)
    assert time.monotonic() - start < 15
