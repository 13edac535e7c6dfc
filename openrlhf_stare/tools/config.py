"""The options of the Python tool. This dataclass is the only place where a default is written."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from openrlhf_stare.options import option


@dataclass(frozen=True)
class ToolConfig:
    """The options of the Python tool, checked when made.

    Raises:
        ValueError: an option is outside its range. The message starts with the option's name and its value and ends
            with the remedy.
    """

    max_calls: int = option(4, "programs that one response may run; the response ends with the call after the last")
    seconds: int = option(10, "processor time of a program; it is also stopped after twice as long by the clock")
    memory_mib: int = option(512, "address space of a program in MiB; its interpreter and libraries count")
    output_chars: int = option(2048, "characters of a program's output that the model is shown; it ends the program")
    run_model_code_without_sandbox: bool = option(
        False, "run programs with the rights of this user where bubblewrap is missing; only on a machine to throw away"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "run_model_code_without_sandbox" and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name} {value} is not above 0: give a number such as {field.default}")
