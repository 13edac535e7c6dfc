"""How a signal ends the command: with a sentence and the status that a shell expects, and without a traceback."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from openrlhf_stare.driver.console import ERROR

TERMINATED = 128 + signal.SIGTERM
_terminated = False


def listen_to_sigterm() -> None:
    """Have SIGTERM end what goes on as Ctrl-C does: only KeyboardInterrupt breaks Ray's waits.

    Ray sets a handler of its own when it starts, after which this is called again.
    """
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    global _terminated
    _terminated = True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt Ray's end
    raise KeyboardInterrupt


@contextmanager
def told() -> Iterator[None]:
    """Run the command.

    Raises:
        SystemExit: with status 143 after SIGTERM.
        KeyboardInterrupt: after Ctrl-C, whose traceback Python then does not print.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as it was while the modules were imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    listen_to_sigterm()
    try:
        yield
    except KeyboardInterrupt:
        if _terminated:
            print(f"{ERROR} ended by SIGTERM", file=sys.stderr, flush=True)
            sys.exit(TERMINATED)
        sys.excepthook = lambda *_: print("train_ray: interrupted", file=sys.stderr, flush=True)
        raise
