"""The command: `python -m openrlhf_stare.report RUN [RUN …] -o report.html --png report.png`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openrlhf_stare.report import ReportError


def main(words: list[str] | None = None) -> None:
    """Make the report. Exit status 2, with one sentence: it cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_stare.report",
        description="Pictures of training runs, from their TensorBoard logs and token records. Several are compared.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run; all logs below it belong to it"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page, one file that needs no network")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the curves as one picture")
    args = parser.parse_args(words)
    try:
        _make(args)
    except (ModuleNotFoundError, OSError, ReportError) as error:
        print(f"report: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)


def _make(args: argparse.Namespace) -> None:
    if not (args.output or args.png):
        raise ReportError("nothing to write: give -o report.html, --png report.png or both")
    from openrlhf_stare.report import figures, page, reading

    runs = reading.read_runs(args.runs)
    if args.output:
        # A lone surrogate, which JSON can carry, has no UTF-8.
        args.output.write_text(page.html(runs), encoding="utf-8", errors="replace")
    if args.png:
        figures.png(runs, args.png)


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f'{error.name} is not installed: pip install "openrlhf-stare[report]"'
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
