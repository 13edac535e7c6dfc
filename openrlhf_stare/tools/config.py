"""The options of the Python tool. This dataclass is the only place where a default is written."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.options import Options, option

ONE_UP = "[1, inf)"


@dataclass(frozen=True)
class ToolConfig(Options):
    """The options of the Python tool, checked when made.

    Raises:
        ValueError: an option is outside its range. The message starts with the option's name and its value and ends
            with the remedy.
    """

    max_calls: int = option(4, "programs per response; the response ends with the call after the last", within=ONE_UP)
    seconds: int = option(10, "processor time of a program; by the clock it may take twice as long", within=ONE_UP)
    memory_mib: int = option(
        512, "address space of a program in MiB, interpreter and libraries included", within=ONE_UP
    )
    output_chars: int = option(
        2048, "characters of output shown to the model; a program that prints more is ended", within=ONE_UP
    )
    run_model_code_without_sandbox: bool = option(
        False, "without bubblewrap, run programs with this user's rights; only on a throwaway machine"
    )
