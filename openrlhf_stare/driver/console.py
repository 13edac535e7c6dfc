"""`--console compact`: few lines on the console, and everything in `output.log` in the folder of `--ckpt.path`.

The driver's file descriptors 1 and 2 become that file, so it also gets what native code and Ray's threads write, and
keeps it if the driver is killed. A thread reads the file as it grows. Ray forwards the lines of all processes from all
nodes to the driver, so the training figures are read from OpenRLHF's own line for each step. What the file does not
take, as on a full disk, the thread gets from Python's streams, and the screen and the verdict go on.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from openrlhf_stare.algorithms.verdict import verdict
from openrlhf_stare.driver.progress import SEPARATOR, Progress, describe, step_figures
from openrlhf_stare.methods import base
from openrlhf_stare.notices import COLOUR, ENGINES_READY, MARK, notice, printable
from openrlhf_stare.options import UsageError

if TYPE_CHECKING:
    import rich.text

PHASES = ("checks", "Ray", "engines", "models", "first step")
PHASES_OF_A_LOOK = ("checks", "Ray", "engines", "answers")
LAST_LINES = 20  # of the process that failed
LINE_WIDTH = 300  # of lines that are not ours; OpenRLHF prints some of some thousand characters
ERRORS_SHOWN = 5  # lines of the level ERROR; what follows is in the file
READ_SECONDS = 0.2
# Ray's log monitor looks into the workers' files in turns, each a few tenths of a second after the other.
CATCH_UP_SECONDS = 1.0

ERROR = "train_ray: error:"
# Ray's prefix of a worker's line, with an address unless it is on the driver's node.
FORWARDED = re.compile(r"^\((?:[^()]* )?pid=(\d+)(?:, ip=([^)]*))?\) ?")
SAMPLES_PROMPTS = re.compile(r"^\(\w*(?:PPOTrainer|GenerateSamplesActor) pid=")  # whose bar counts them
PROCESS = re.compile(r"\b(?:pid=(\d+), ip=|process (\d+) on )([\w.:]*\w)")
LOGGED_ERROR = re.compile(r"^(?:\(\w+ pid=\d+\) )?(?:ERROR|CRITICAL) ")


# ── what is shown ──


class Screen:
    """Lines, and below them, on a terminal, one line that is rewritten."""

    def __init__(self, stream: TextIO) -> None:
        import rich.console
        import rich.live

        self.stream = stream
        self.start = self.phase_start = time.monotonic()
        self.phases: tuple[str, ...] = PHASES
        self.phase = 0  # index of the one that is going on
        self.status = ""  # the line for the last step
        self.console = rich.console.Console(file=stream, force_terminal=stream.isatty(), highlight=False)
        self.live = None
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = rich.live.Live(
                console=self.console, get_renderable=self._line, redirect_stdout=False, redirect_stderr=False
            )
            self.live.start()
            self.console.show_cursor(True)  # a killed driver could not bring it back

    def _line(self) -> rich.text.Text:
        import rich.text

        text = self.status
        if not text and self.phase < len(self.phases):
            text = f"{self.phases[self.phase]:<12}{time.monotonic() - self.phase_start:4.0f} s …"
        while len(text) > self.console.width and SEPARATOR in text:
            text = text.rpartition(SEPARATOR)[0]
        return rich.text.Text(text, no_wrap=True, overflow="ellipsis")

    def show(self, text: str) -> None:
        if self.live:
            self.console.out(printable(text))
        else:
            print(printable(text), file=self.stream, flush=True)

    def end_phase(self, name: str) -> None:
        """Show how long a phase took. Without effect if it has ended."""
        if self.phase > self.phases.index(name):
            return
        now = time.monotonic()
        self.show(f"{name:<12}{now - self.phase_start:4.0f} s")
        self.phase, self.phase_start = self.phases.index(name) + 1, now

    def show_step(self, progress: Progress, figures: dict[str, float], strength: str | None) -> None:
        self.status = describe(progress, figures, strength)
        if not self.live and (progress.starts_a_twentieth() or len(progress.times) == 1):
            self.show(self.status)

    def close(self) -> None:
        """Leave the last step's line where it is."""
        if self.live:
            self.phase = len(self.phases)
            self.live.stop()
            self.live = None


# ── what is captured ──


class _Unfailing(io.FileIO):
    """A full disk or a closed pipe ends neither the job nor the thread that prints."""

    lost: Callable[[tuple[bytes, OSError]], None] | None = None  # gets what could not be written, and why

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.lost:
                self.lost((bytes(data), error))
            return len(data)


def _text_stream(descriptor: int, lost: Callable[[tuple[bytes, OSError]], None] | None = None) -> io.TextIOWrapper:
    raw = _Unfailing(descriptor, "w", closefd=False)
    raw.lost = lost
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)


class Console:
    """The descriptors 1 and 2, from the start of the command until `close`.

    Until the job starts they lead to a temporary file. If the command ends before that, as with a wrong flag or
    --help, all of it is shown as it is.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.python_streams = sys.stdout, sys.stderr
        self.saved = os.dup(1), os.dup(2)
        self.screen = Screen(_text_stream(self.saved[0]))
        self.early = tempfile.TemporaryFile(buffering=0)
        self._lead_to(self.early.fileno())
        self.lost: SimpleQueue[tuple[bytes, OSError]] = SimpleQueue()
        self.not_written: OSError | None = None  # why the file lacks lines, if it does
        sys.stdout, sys.stderr = _text_stream(1, self.lost.put), _text_stream(2, self.lost.put)
        self.path: Path | None = None  # of the file, once the job starts
        # By process id and address, which is None on the driver's node; those of the driver under None.
        self.last_lines: dict[tuple | None, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
        self.noticed: Counter[str] = Counter()
        self.steps: dict[int, dict[str, float]] = {}  # the figures of each, for the verdict
        self.at_the_end: list[str] = []
        self.stopping = threading.Event()
        self.reader: threading.Thread | None = None

    @staticmethod
    def _lead_to(descriptor: int) -> None:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)

    def start_job(self, args: SimpleNamespace, strength: str | None, facts: dict[str, bool]) -> None:
        """The job's own file takes over; its lines are followed from now on.

        Raises:
            UsageError: it cannot be written.
        """
        path = Path(args.ckpt.path).absolute() / "output.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A resumed job goes on in the same file. It holds prompts and flags, so it is for its owner alone.
            file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, mode=0o600))
            os.fchmod(file.fileno(), 0o600)
            progress = Progress(args.rollout.batch_size, args.algo.dynamic_filtering_enable)
            self._go_on_in(path, file, progress, strength, facts)
        except OSError as error:
            raise UsageError(
                f"--ckpt.path {args.ckpt.path} cannot be written ({error.strerror}): choose another folder"
            ) from None

    def start_look(self) -> None:
        """A file in the folder for temporary ones takes over, since `--look` writes nowhere else."""
        descriptor, name = tempfile.mkstemp(prefix="openrlhf-stare-look-", suffix=".log")
        self.screen.phases = PHASES_OF_A_LOOK
        self._go_on_in(Path(name), open(descriptor, "ab", buffering=0), Progress(1, False), None, {})

    def _go_on_in(
        self, path: Path, file: io.FileIO, progress: Progress, strength: str | None, facts: dict[str, bool]
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        start = file.tell()
        with open(path, "rb") as earlier:  # by the jobs that this one goes on from
            for line in filter(re.compile(b"Global step").search, earlier):
                if step := step_figures(COLOUR.sub("", line.decode(errors="replace").rstrip("\n"))):
                    self._count(*step)
        with file:
            os.write(file.fileno(), time.strftime("── started %Y-%m-%d %H:%M:%S ──\n").encode())
            os.write(file.fileno(), self._early_output())
            self._lead_to(file.fileno())
        self.path, self.strength, self.facts, self.progress = path, strength, facts, progress
        self.reader = threading.Thread(target=self._follow, args=(path, start), daemon=True)
        self.screen.end_phase("checks")
        self.screen.show(f"complete output: {path}")
        self.reader.start()

    def _early_output(self) -> bytes:
        return os.pread(self.early.fileno(), os.fstat(self.early.fileno()).st_size, 0)

    def _lost_output(self) -> bytes:
        """What Python's streams could not write since the last call."""
        lost = b""
        while not self.lost.empty():
            data, self.not_written = self.lost.get()
            lost += data
        return lost

    def _follow(self, path: Path, start: int) -> None:
        rest = b""
        with open(path, "rb") as file:
            file.seek(start)
            while True:
                last_turn = self.stopping.wait(READ_SECONDS)
                lost = self._lost_output()  # first: the file may have the beginning of its line
                *lines, rest = (rest + file.read() + lost).split(b"\n")
                if self.not_written:
                    sentence = f"{path} cannot be written ({self.not_written.strerror}) and lacks lines from here on"
                    self._show_once(f"{MARK}{sentence}", "not written", 1)
                for line in lines + [rest] * last_turn:
                    try:
                        self._take(line.decode(errors="replace"))
                    except Exception as error:  # a line can hold anything, and none ends the reader
                        self._show_once(f"{MARK}A line of the output was not understood ({error!r})", "odd line", 1)
                if last_turn:
                    return

    def _count(self, step: int, figures: dict[str, float]) -> None:
        """A step is trained, in the place of one by that number and those after it, which a resume has given up."""
        while self.steps and next(reversed(self.steps)) >= step:
            self.steps.popitem()
        self.steps[step] = figures

    def _take(self, line: str) -> None:
        """What one line of the output changes on the screen."""
        found = FORWARDED.match(line)
        text = line[found.end() :] if found else line
        drawn = COLOUR.sub("", text.rstrip("\r").rpartition("\r")[2])  # the last state of a progress bar
        if drawn.strip():
            self._remember(drawn, self.last_lines[found.groups() if found else None], is_bar="\r" in text)
        if step := step_figures(COLOUR.sub("", line)):
            self.screen.end_phase("models")
            self.screen.end_phase("first step")
            self.progress.advance(step[0], time.monotonic())
            self._count(*step)
            self.screen.show_step(self.progress, step[1], self.strength)
        elif SAMPLES_PROMPTS.match(line) and self.progress.count_prompts(text):
            self.screen.end_phase("models")
        elif MARK in drawn:  # maybe behind a progress bar
            notice = drawn[drawn.index(MARK) :]
            if notice.removeprefix(MARK) == ENGINES_READY:
                self.screen.end_phase("engines")
            else:
                self._show_once(notice, re.sub(r"\d[\d.e-]*", "0", notice), 1)
        elif LOGGED_ERROR.match(drawn):
            self._show_once(drawn[:LINE_WIDTH], "ERROR", ERRORS_SHOWN)

    @staticmethod
    def _remember(line: str, lines: deque[str], is_bar: bool) -> None:
        label = line.partition(":")[0]
        if is_bar and lines and lines[-1].startswith(f"{label}:"):
            lines.pop()  # an earlier state of the same bar
        lines.append(line)

    def _show_once(self, line: str, kind: str, limit: int) -> None:
        self.noticed[kind] += 1
        if self.noticed[kind] <= limit:
            self.screen.show(line)

    def driver_error(self) -> str:
        """What the driver wrote from its last `train_ray: error:` on; "" if it wrote none."""
        lines = list(self.last_lines[None])
        starts = [number for number, line in enumerate(lines) if line.startswith(ERROR)]
        return "\n".join(lines[starts[-1] :]) if starts else ""

    def close(self) -> None:
        """Give the descriptors back, everything read and shown."""
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # native code's buffers, which would go to the console at exit
        if self.reader:
            self.stopping.set()
            self.reader.join()
        self.screen.close()
        os.dup2(self.saved[0], 1)
        os.dup2(self.saved[1], 2)
        sys.stdout, sys.stderr = self.python_streams
        if not self.path:
            sys.stdout.flush()
            os.write(1, self._early_output())

    def _lines_of_failed(self, text: str) -> list[str]:
        """A heading and the last lines of the process that a sentence or a traceback names; none if there are none."""
        for found in reversed(list(PROCESS.finditer(text))):  # the last one raised the error, the others waited for it
            pid, address = found[1] or found[2], found[3]
            for key in ((pid, address), (pid, None)):
                if key in self.last_lines:
                    return [f"the last lines of process {pid}:", *(f"  {line}" for line in self.last_lines[key])]
        return []

    def _where(self) -> str:
        """What the last lines say of the file."""
        if self.not_written:
            return f"incomplete output, since not all could be written ({self.not_written.strerror}): {self.path}"
        return f"complete output: {self.path}"

    def finish(self) -> None:
        """The end of a job that did all its steps."""
        self.close()
        if self.path:
            if found := verdict([*self.steps.values()], **self.facts):
                print(found.sentence)
            seconds = timedelta(seconds=round(time.monotonic() - self.screen.start))
            print("\n".join([f"done in {seconds}; {self._where()}", *self.at_the_end]), flush=True)

    def fail(self, error: str | None = None, traceback: str = "") -> None:
        """The end of a job that failed: the last lines of the process that failed, and the error.

        Args:
            error: by default what the driver wrote last.
            traceback: says which process failed; by default the error does.
        """
        self.close()
        error = error or self.driver_error()
        for line in self._lines_of_failed(traceback or error):
            print(printable(line[:LINE_WIDTH]), file=sys.stderr)
        print(f"{self._where()}\n{printable(error)}", file=sys.stderr, flush=True)


# ── what the command calls ──

_console: Console | None = None


def add_flag(parser: argparse._ActionsContainer) -> None:
    """Add `--console`."""
    parser.add_argument(
        "--console",
        choices=("compact", "full"),
        default="full",
        help="compact shows the phases of the start, a line for the last step (one per twentieth of the run where "
        "lines cannot be rewritten), warnings and errors, and writes everything to output.log under --ckpt.path; full "
        "shows everything (default: %(default)s)",
    )


def _is_compact(argv: list[str]) -> bool:
    # Before the real parser is there: importing OpenRLHF takes seconds, and prints.
    early = argparse.ArgumentParser(add_help=False)
    early.add_argument("--console", nargs="?")
    return early.parse_known_args(argv)[0].console == "compact"


@contextmanager
def opened(argv: list[str]) -> Iterator[None]:
    """Run the command with the console that its flags ask for. Its exit status stays what it is."""
    global _console
    if not _is_compact(argv):
        yield
        return
    # A file needs no colours, and a process that fails needs its own lines, even if another's are the same.
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    _console = console = Console()
    try:
        yield
    except BaseException as error:
        if not console.path or (isinstance(error, SystemExit) and not error.code):
            console.finish()
            raise
        _fail(console, error)
    else:
        console.finish()
    finally:
        _console = None


def _fail(console: Console, error: BaseException) -> None:
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            console.fail(error.code)
            raise SystemExit(1) from None
        console.fail()
        raise error from None
    traceback.print_exc()
    if isinstance(error, KeyboardInterrupt):
        console.fail("train_ray: interrupted")
        sys.excepthook = lambda *_: None  # the traceback is in the file
        raise error
    text = COLOUR.sub("", "".join(traceback.format_exception(error))).strip()
    *lines, last = [line for line in text.splitlines() if line.strip(" ^~")]
    console.fail("\n".join([*(line[:LINE_WIDTH] for line in lines[-LAST_LINES:]), f"{ERROR} {last}"]), text)
    raise SystemExit(1) from None


def start_job(args: SimpleNamespace) -> None:
    """The checks are over and the job starts.

    Args:
        args: OpenRLHF's nested arguments.

    Raises:
        UsageError: the file for the output cannot be written.
    """
    if _console:
        method = base.make(args)
        strength = next(iter(base.strength_figures(method)), None)
        _console.start_job(args, strength, base.facts(method, args) if method else {})


def start_look() -> None:
    """The checks are over and `--look` starts."""
    if _console:
        _console.start_look()


def show(text: str) -> None:
    """Lines for the user, whichever console there is."""
    if _console:
        print(printable(text))  # for the file
        _console.screen.show(text)
    else:
        print(printable(text), flush=True)


def tell_twice(sentence: str) -> None:
    """A notice that is shown once more at the end of a job that did all its steps."""
    notice(sentence)
    if _console:
        _console.at_the_end.append(sentence)


def end_phase(name: str) -> None:
    """A phase is over, of `PHASES` or, in a look, of `PHASES_OF_A_LOOK`."""
    if _console:
        _console.screen.end_phase(name)


def catch_up() -> None:
    """Wait for the workers' last lines, before Ray is shut down: whichever console there is, the user wants them."""
    time.sleep(CATCH_UP_SECONDS)


def fail(error: str) -> None:
    """Show the error of a driver that is to be ended at once."""
    print(error, file=sys.stderr, flush=True)
    if _console and _console.path:
        _console.fail(error)
