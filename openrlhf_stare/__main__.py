"""The command `openrlhf-stare`: train_ray, unless its first word is one of the two commands below."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

CPU_OVERRIDES = Path(__file__).with_name("cpu") / "overrides.txt"


def main() -> None:
    """`quickstart` trains a small model, and `cpu-overrides` prints the path of the file that uv needs to install the
    stack where there is no GPU. All other words are flags of train_ray."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the modules are imported needs no traceback
    match sys.argv[1:]:
        case ["quickstart", *flags]:
            from openrlhf_stare.quickstart import command

            sys.exit(command.main(flags))
        case ["cpu-overrides"]:
            print(CPU_OVERRIDES)
        case _:
            from openrlhf_stare import train_ray

            train_ray.main()


if __name__ == "__main__":
    main()
