"""Processes that judge answers for a reward function, each a script that answers lines of JSON.

An answer may hang what judges it, or crash it: it costs its own reward only. They are plain processes with pipes,
because a pool's workers would import the main module of OpenRLHF's actor, and a busy one would live on when the actor
is killed.
"""

from __future__ import annotations

import json
import queue
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS_OVER = 5.0  # after which a process is killed that does not end itself, as one that is stopped cannot
SECONDS_TO_START = 120.0  # on a machine with much to do
MEMORY = 4 << 30  # bytes of address space, far above what an answer needs: a few hundred MiB


class WorkerFailed(Exception):
    """There is no answer; the message says what became of the process: "took too long", for instance."""


class Workers:
    """At most `most` processes of the script, started as they are needed; each lives as long as this process."""

    def __init__(self, script: Path, most: int) -> None:
        self.script = script
        # Those with nothing to do; None stands for one to be started. The last to come is the first to go, so that few
        # are started where few are needed.
        self._idle: queue.LifoQueue[subprocess.Popen | None] = queue.LifoQueue()
        for _ in range(most):
            self._idle.put(None)

    def ask(self, question: str, seconds: float) -> Any:
        """The answer to a line of JSON, for which there is so much wall-clock time.

        Raises:
            WorkerFailed: it took longer, or the process ended over it.
            RuntimeError: there is no process, which is not the answer's fault.
        """
        worker = self._idle.get()
        try:
            if worker is None or worker.poll() is not None:
                worker = self._started(seconds)
            print(question, file=worker.stdin, flush=True)
            reply = _reply(worker, seconds + SECONDS_OVER)
            if not reply:
                slow = worker.wait() == -signal.SIGALRM
                raise WorkerFailed("took too long" if slow else f"ended with status {worker.returncode}")
            return json.loads(reply)
        except OSError as error:
            raise WorkerFailed(f"could not be asked ({error})") from None
        finally:
            self._idle.put(worker)

    def _started(self, seconds: float) -> subprocess.Popen:
        command = [sys.executable, str(self.script), str(seconds)]
        try:
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:  # no memory is left for it, say, or no process
            raise RuntimeError(f"{self.script.name} did not start ({error})") from None
        if not _reply(worker, SECONDS_TO_START):
            raise RuntimeError(f"{self.script.name} did not start (status {worker.wait()})")
        return worker


def _reply(worker: subprocess.Popen, seconds: float) -> str:
    """The process's next line; nothing if it has ended, or has been killed because it let that time pass."""
    ready = select.poll()
    assert worker.stdout
    ready.register(worker.stdout, select.POLLIN)
    if not ready.poll(1000 * seconds):
        worker.kill()
    return worker.stdout.readline()


def serve(answer: Callable[..., Any], seconds: float, first: tuple = ()) -> None:
    """The script's part: answer until the input ends, which it does with the process that started us, however that one
    ended. A question is a list of `answer`'s arguments; `first` is one to warm up with, which nobody has asked.

    The kernel ends this process when an answer takes longer than `seconds`. A signal handler would have to wait for
    Python's next instruction, and 9**9**9 is a single one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Whatever the libraries print must not pass for an answer.
    replies, sys.stdout = sys.stdout, sys.stderr
    if first:
        answer(*first)
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        given = answer(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(given), file=replies, flush=True)
