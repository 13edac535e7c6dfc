"""Programs that try to break out of the Python tool's sandbox, to use up the machine or to stay."""

import contextlib
import errno
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent, indent

import pytest

from openrlhf_stare.tools import cgroup, sandbox, system_calls
from openrlhf_stare.tools.config import ToolConfig
from openrlhf_stare.tools.sandbox import Outcome

LIMITS = ToolConfig(seconds=15, memory_mib=256, output_chars=1000)
COLUMN = list(system_calls.ARCHITECTURES).index(os.uname().machine)  # of the numbers of system calls
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


def of_another_worker(pid: int) -> bool:
    """Whether it is below a process that runs other tests beside this one. What lost its parent is below none."""
    while pid != os.getpid() and pid > 1 < os.getppid():
        parent = int(re.search(r"^PPid:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])
        if parent == os.getppid():
            return True
        pid = parent
    return False


def sandboxed_processes() -> set[int]:
    """The processes that are in a process namespace below ours; not those that only wait to be reaped."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/status"):
        try:
            status = file.read_text()
            below = len(re.search(r"^NSpid:(.*)$", status, re.MULTILINE)[1].split()) > 1
            pid = int(file.parent.name)
            if below and not re.search(r"^State:\s*Z", status, re.MULTILINE) and not of_another_worker(pid):
                found.add(pid)
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
    clone, clone3 = system_calls.CLONE[COLUMN], system_calls.CLONE3[COLUMN]
    program = f"""
        refused(libc.syscall({clone}, signal.SIGCHLD, 0, 0, 0, 0))
        refused(libc.syscall({clone}, 0x00010000 | 0x00000800 | 0x00000100, 0, 0, 0, 0))  # a thread, its files its own
        refused(libc.syscall({clone3}, (ctypes.c_uint64 * 11)(), 88))
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


def meminfo() -> dict[str, int]:
    """The host's memory in MiB, by the names of /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) >> 10 for line in lines}


# Each takes a GiB or more of memory that no limit of a process counts, if it is let.
MEMORY_BOMBS = {
    "shared mappings that are written and shrunk": """
        import mmap
        hoard = []
        for _ in range(10):
            hoard.append(mmap.mmap(-1, 128 << 20))
            for page in range(0, 128 << 20, 4096):
                hoard[-1][page] = 1
            hoard[-1].resize(4096)
    """,
    "semaphores": """
        for _ in range(500):
            if libc.semget(0, 32_000, 0o1600) == -1:
                raise OSError
    """,
    "System V shared memory": """
        if libc.shmget(0, 1 << 20, 0o1600) == -1:
            raise OSError
    """,
    "System V messages": """
        if libc.msgget(0, 0o1600) == -1:
            raise OSError
    """,
    "files of no folder": """
        if libc.memfd_create(b"hoard", 0) == -1:
            raise OSError
    """,
    "extended attributes": """
        for name in range(250):
            open(str(name), "w").close()
            for attribute in range(60):
                os.setxattr(str(name), f"user.{attribute}", bytes(1 << 16))
    """,
    "symbolic links": """
        for name in range(700_000):
            os.symlink("x" * 60, str(name))
    """,
    "huge pages in pipes": """
        import mmap
        class Piece(ctypes.Structure):
            _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        huge, pipes = 2 << 20, []
        for _ in range(10):
            pipes.append(os.pipe())
            for _ in range(12):
                memory = mmap.mmap(-1, 2 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                memory.madvise(14)  # MADV_HUGEPAGE
                start = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) + huge - 1) & -huge
                ctypes.memset(start, 1, huge)
                if libc.vmsplice(pipes[-1][1], ctypes.byref(Piece(start, 1)), 1, 0) == -1:
                    raise OSError
    """,
    "asynchronous input and output": f"""
        for _ in range(1000):
            if libc.syscall({system_calls.REFUSED["io_setup"][COLUMN]}, 1000, ctypes.byref(ctypes.c_ulong())) == -1:
                raise OSError
    """,
    "letters of one byte in large socket buffers": """
        import socket
        hoard = []
        while True:
            hoard += socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for end in hoard[-2:]:
                end.setblocking(False)
                try:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
                except PermissionError:
                    pass
                try:
                    while True:
                        end.send(b"x")
                except BlockingIOError:
                    pass
    """,
}


@pytest.mark.parametrize("bomb", MEMORY_BOMBS)
def test_memory_that_no_process_is_charged_for(bomb):
    requests = Path("/proc/sys/fs/aio-nr")  # asynchronous ones that the whole machine has reserved
    before, peak, done = (meminfo(), int(requests.read_text())), (0, 0), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            now = meminfo()
            memory = now["Shmem"] + now["Slab"] - before[0]["Shmem"] - before[0]["Slab"]
            peak = max(peak[0], memory), max(peak[1], int(requests.read_text()) - before[1])

    program = indent(dedent(MEMORY_BOMBS[bomb]), "    ")
    program = f"try:\n{program}\nexcept OSError:\n    print('refused')\n"
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert run(program, LIBC) == Outcome("refused\n", failed=False)
    finally:
        done.set()
        watcher.join()
    assert peak[0] <= LIMITS.memory_mib + 100
    assert peak[1] < 1000


PAGE_TABLES = """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for number in range(60_000):  # a page each, a GiB apart, which costs the kernel two more
    page = libc.mmap((1 << 40) + number * (1 << 30), 4096, 1, 2 | 16 | 32, -1, 0)
    ctypes.string_at(page, 1)
print("held", number)
"""


@pytest.fixture
def cgroups():
    """Those of the sandbox that are there."""
    with cgroup.limited(memory=2**28, pids=40) as files:
        if not files:
            pytest.skip("this user may make no cgroup here")
    return lambda: [path for path in Path("/sys/fs/cgroup").rglob(f"openrlhf_stare-{os.getpid()}-*") if path.is_dir()]


def test_page_tables_count_where_there_are_cgroups(cgroups, monkeypatch):
    assert run(PAGE_TABLES, LIBC) == Outcome("[killed by signal 9]\n", failed=True)
    assert not cgroups()
    monkeypatch.setattr(cgroup, "_place", lambda controller: (Path("/proc"), 2))  # as where none can be made
    assert run(PAGE_TABLES, LIBC) == Outcome("held 59999\n", failed=False)
    assert not cgroups()


def test_in_version_2_one_cgroup_has_both_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "_place", lambda controller: (tmp_path, 2))
    with cgroup.limited(memory=2**28, pids=40) as to_join:
        [own] = tmp_path.iterdir()
        assert to_join == [f"{own}/cgroup.procs"]
        assert {file.name: file.read_text() for file in own.iterdir()} == {"memory.max": "268435456", "pids.max": "40"}


def test_cgroups_of_a_process_that_was_killed_are_removed_at_the_next_start(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "_place", lambda controller: (tmp_path, 2))
    with subprocess.Popen(["sleep", "100"]) as owner:
        dead, alive = cgroup._process(owner.pid), cgroup._process(os.getpid())
        owner.kill()
    pid, started, namespace = alive.split("-")
    kept = [
        f"openrlhf_stare-{alive}-ab",
        f"openrlhf_stare-{dead}1-ab",  # of another namespace
        "openrlhf_stare-7",
        "other-1-2-3-4",
    ]
    gone = [
        f"openrlhf_stare-{dead}-ab",
        f"openrlhf_stare-{dead}-cd",
        f"openrlhf_stare-{pid}-1{started}-{namespace}-ab",
    ]
    for name in (*kept, *gone):
        (tmp_path / name).mkdir()
    with cgroup.limited(memory=2**28, pids=40) as to_join:
        names = {Path(file).parent.name for file in to_join} | set(kept)
        assert {folder.name for folder in tmp_path.iterdir()} == names and len(names) == len(kept) + 1


def test_a_driver_that_is_killed_leaves_no_cgroup_beyond_the_next_start(cgroups):
    script = "from openrlhf_stare.tools import sandbox, config\n"
    script += "sandbox.run('import time; time.sleep(1000)', config.ToolConfig(seconds=1000))"
    left = lambda: {path for path in Path("/sys/fs/cgroup").rglob(f"openrlhf_stare-{job.pid}-*") if path.is_dir()}  # noqa: E731
    with subprocess.Popen([sys.executable, "-c", script]) as job:
        deadline = time.monotonic() + 60
        while not left() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        job.kill()
    assert left()
    time.sleep(1)  # the kernel ends what is inside
    cgroup._remove_leftovers.cache_clear()
    run("pass")
    assert not left()


def test_a_cgroup_leaves_a_program_its_memory(cgroups):
    program = "x = bytearray(200 << 20)\nfor n in range(15): open(str(n), 'wb').write(bytes(1 << 20))\nprint(len(x))"
    assert run(program) == Outcome(f"{200 << 20}\n", failed=False)


def test_where_memory_runs_out_the_kernel_kills_the_program_first():
    before = sandboxed_processes()
    run_it = threading.Thread(target=sandbox.run, args=("import time; time.sleep(3)", LIMITS))
    run_it.start()
    marks = set()
    while run_it.is_alive():
        for process in sandboxed_processes() - before:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                marks.add(Path(f"/proc/{process}/oom_score_adj").read_text().strip())
        time.sleep(0.05)
    assert marks == {"1000"}


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


@pytest.mark.parametrize("end", ["exit(255)", "exit(193)", "os._exit(152)", "os._exit(128)", "exit(3)"])
def test_a_status_of_the_program_s_own_is_no_signal(end):
    assert run(f"print(1)\n{end}", "import os\n") == Outcome("1\n", failed=True)


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
            attempt(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)  # of no network namespace
            attempt(socket.socket, socket.AF_INET, socket.SOCK_STREAM)  # buffers share one limit with the host's
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


def test_taking_over_the_sandbox_s_first_process():
    """It is bubblewrap's, so it must be out of reach, and under the program's limits all the same."""
    number = {name: numbers[COLUMN] for name, numbers in system_calls.REFUSED.items()}
    program = f"""
        here = ctypes.create_string_buffer(8)
        piece = (ctypes.c_size_t * 2)(ctypes.addressof(here), 8)
        for call, *arguments in (
            ({number["process_vm_readv"]}, 1, piece, 1, piece, 1, 0),
            ({number["process_vm_writev"]}, 1, piece, 1, piece, 1, 0),
            ({number["pidfd_getfd"]}, os.pidfd_open(1), 0, 0),
            ({number["kcmp"]}, 1, os.getpid(), 1, 0, 0),
            ({number["ptrace"]}, 16, 1, 0, 0),
        ):
            refused(libc.syscall(call, *arguments))
            assert ctypes.get_errno() == 1, (call, ctypes.get_errno())
        for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC"):
            limit = getattr(resource, "RLIMIT_" + name)
            assert resource.prlimit(1, limit) == resource.getrlimit(limit) != (resource.RLIM_INFINITY,) * 2, name
    """
    assert run(program, LIBC + ATTEMPTS) == Outcome("", failed=False)


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
        refused(libc.mount(b"", b"/scratch", b"", 32 | 2 | 4, b"nr_inodes=0"))  # the limit that its interpreter set
        assert os.statvfs("/scratch").f_files == 4096
        header, capabilities = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, capabilities) == 0
        assert [capabilities[at] for at in (0, 1, 3, 4)] == [0, 0, 0, 0]  # effective, permitted
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


@pytest.mark.parametrize("prefix", [sys.base_prefix, "/usr"])
def test_running_other_programs(prefix, monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", prefix)  # a Python in /usr does not show the programs beside it
    program = """
        for program in ("/bin/sh", "/usr/bin/sh", "/usr/bin/env", "/bin/su", "/sbin/mount", "/usr/sbin/chroot"):
            attempt(os.execv, program, [program])
            attempt(os.posix_spawn, program, [program], {})
        assert os.system("echo out") != 0
        folder = os.path.dirname(sys.executable)
        assert all(name.startswith("python") for name in os.listdir(folder)), os.listdir(folder)
        print("still this program")
    """
    assert run(program, ATTEMPTS) == Outcome("still this program\n", failed=False)


# The filter of system calls


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would do with a system call: 0 to let it be, -1 to kill the process, or an errno."""
    call_filter = system_calls.call_filter(machine)
    instructions = list(struct.iter_unpack("HBBI", call_filter))
    own = system_calls.ARCHITECTURES[machine] if architecture is None else architecture
    call = struct.pack("IIQ6Q", number, own, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator, at = 0, 0
    while True:
        what, if_true, if_false, operand = instructions[at]
        at += 1
        if what == system_calls.RETURN:
            return {0x7FFF: 0, 0x8000: -1}.get(operand >> 16, operand & 0xFFFF)
        if what == system_calls.LOAD:
            (accumulator,) = struct.unpack_from("I", call, operand)
        elif what == system_calls.AND:
            accumulator &= operand
        else:
            holds = {system_calls.EQUAL: accumulator == operand, system_calls.AT_LEAST: accumulator >= operand}[what]
            at += if_true if holds else if_false


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_of_each_machine(machine, column):
    thread = 0x003D0F00  # what the C library's pthread_create asks for
    clone, clone3, mmap, sock = (
        numbers[column]
        for numbers in (system_calls.CLONE, system_calls.CLONE3, system_calls.MMAP, system_calls.SOCKET)
    )
    own_files, shared, private, of_no_file, top_half = 0x400, 0x01, 0x02, 0x20, 1 << 32
    for numbers in system_calls.REFUSED.values():
        assert numbers[column] is None or verdict(machine, numbers[column]) == errno.EPERM
    assert verdict(machine, clone, thread) == verdict(machine, clone, thread | top_half) == 0
    assert verdict(machine, clone, 17) == verdict(machine, clone, thread & ~own_files) == errno.EPERM
    assert verdict(machine, clone3) == verdict(machine, 463) == verdict(machine, 1000) == errno.ENOSYS
    assert verdict(machine, 462) == 0
    assert verdict(machine, 0x40000000) == verdict(machine, 1, architecture=0x40000003) == -1  # x32; 32-bit x86
    assert verdict(machine, mmap, 0, 4096, 3, shared | of_no_file) == errno.EPERM
    assert verdict(machine, mmap, 0, 4096, 3, 0x03 | of_no_file | 0x4000 | top_half) == errno.EPERM
    assert verdict(machine, mmap, 0, 4096, 3, private | of_no_file) == verdict(machine, mmap, 0, 1, 3, shared) == 0
    assert verdict(machine, sock, socket.AF_UNIX) == verdict(machine, sock, socket.AF_NETLINK) == 0
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
        assert verdict(machine, sock, family) == errno.EAFNOSUPPORT
    close_range, option = system_calls.CLOSE_RANGE[column], system_calls.SETSOCKOPT[column]
    assert verdict(machine, close_range, 3, 9, 0) == 0 != verdict(machine, close_range, 3, 9, 2)
    assert verdict(machine, option, 3, 1, socket.SO_SNDBUF) == errno.EPERM != verdict(machine, option, 3, 1, 2)


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_refuses_filters_and_memory_by_prctl(machine, column):
    prctl, top_half = system_calls.PRCTL[column], 1 << 32
    for option in (22, 78):  # PR_SET_SECCOMP, PR_FUTEX_HASH
        assert verdict(machine, prctl, option, 1) == verdict(machine, prctl, option | top_half) == errno.EPERM
    assert verdict(machine, prctl, 47, 4) == verdict(machine, prctl, 15) == 0  # ambient capabilities; a thread's name
    for number in (444, 445, 446, (317, 277)[column]):  # Landlock, seccomp
        assert verdict(machine, number) == errno.EPERM


def test_a_program_adds_no_filter_and_no_table_of_the_kernel_s():
    """A single attempt each: thousands of filters can lock up the machine."""
    calls = [(system_calls.PRCTL[COLUMN], 78, 1, 1 << 24), (system_calls.PRCTL[COLUMN], 22, 2, 0)]
    calls += [
        (system_calls.REFUSED["seccomp"][COLUMN], 1, 0, 0),
        (444, 0, 0, 1),
    ]  # the last asks for Landlock's version
    program = f"""
        for call in {calls}:
            refused(libc.syscall(*call))
            assert ctypes.get_errno() == 1, (call, ctypes.get_errno())
    """
    assert run(program, LIBC) == Outcome("", failed=False)


def test_on_another_machine_nothing_runs(monkeypatch):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(sandbox.SandboxMissing, match="x86_64 and aarch64, not for riscv64"):
        sandbox.check(ToolConfig())


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
        while len(found := sandboxed_processes() - before) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        job.kill()
    assert len(found) >= 2
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
