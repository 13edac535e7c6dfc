"""How a signal ends the command: with a sentence and the status that a shell expects, and without a traceback."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openrlhf_stare.driver.console import ERROR

TERMINATED = 128 + signal.SIGTERM
AGAIN_SECONDS = 0.5  # until a KeyboardInterrupt that was lost is raised again
_terminated = _interrupted = False


def listen_to_sigterm() -> None:
    """Have SIGTERM end what goes on as Ctrl-C does: only KeyboardInterrupt breaks Ray's waits."""
    signal.signal(signal.SIGTERM, _terminate)


def keep_listening(handler: Callable) -> None:
    """In the place of what sets Ray's handlers of SIGTERM when it starts, so that ours stays. What they do besides
    ending the process, Ray also does at its exit."""


def _terminate(number: int, frame: object) -> None:
    global _terminated
    _terminated = True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt Ray's end
    _interrupt(number, frame)


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, and watch that it ends what goes on: Python drops one that comes in a `__del__` or in a
    weakref's callback, of which each import has one, and so does `try: import … except:` in a library."""
    sys.unraisablehook = _tell_unless_interrupt
    signal.signal(signal.SIGALRM, _interrupt_again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
    raise KeyboardInterrupt


def _interrupt_again(number: int, frame: object) -> None:
    error = sys.exception()
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return  # it is on its way, through what ends Ray
        error = error.__context__
    raise KeyboardInterrupt


def _tell_unless_interrupt(lost: sys.UnraisableHookArgs) -> None:
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)


@contextmanager
def told() -> Iterator[None]:
    """Run the command.

    Raises:
        SystemExit: with status 143 after SIGTERM.
        KeyboardInterrupt: after Ctrl-C, whose traceback Python then does not print.
    """
    global _interrupted
    atexit.register(_end_of_sigint)  # before all others, so that it runs behind them
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as it was while the modules were imported
        signal.signal(signal.SIGINT, _interrupt)
    listen_to_sigterm()
    try:
        yield
    except KeyboardInterrupt:
        if _terminated:
            print(f"{ERROR} ended by SIGTERM", file=sys.stderr, flush=True)
            sys.exit(TERMINATED)
        _interrupted = True
        sys.excepthook = lambda *_: print("train_ray: interrupted", file=sys.stderr, flush=True)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end_of_sigint() -> None:
    """Python ends so after KeyboardInterrupt itself, unless something runs Python code at its exit (then with 1)."""
    if _interrupted:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
