"""How an option is declared and how it is refused.

An option is one field of a frozen dataclass that derives from `Options`: its default, its help, its choices and its
range are written there and nowhere else. The flag, its help and the checks are made from the field.
"""

from __future__ import annotations

import dataclasses
import math
import os
from types import SimpleNamespace
from typing import Any


class UsageError(ValueError):
    """What the user asked for cannot run. The message is one sentence: the flag, its value and the remedy."""


class Secret(str):
    """A flag's value that is not shown where the arguments are printed."""

    def __repr__(self) -> str:
        return "'(not shown)'"


def option(
    default: object,
    description: str,
    choices: tuple[str, ...] | None = None,
    within: str | None = None,
    percent: bool = False,
) -> Any:
    """A field of an `Options` class. `Any`, as that of `dataclasses.field`, goes with the type that the field names.

    Args:
        default: its value where none is given; its type is the option's.
        description: the flag's help.
        choices: the values that it can have; None for any.
        within: the range of a number as an interval, such as "(0, 1]" or "[0, inf)".
        percent: whether it can also be a percentage, which is a text such as "50%".
    """
    metadata = {"help": description, "choices": choices, "within": within, "percent": percent}
    return dataclasses.field(default=default, metadata=metadata)


def of_environment(variable: str, *values: str) -> str | None:
    """What the environment variable says; None where it is unset or empty.

    Raises:
        UsageError: it says something else than one of these values.
    """
    given = os.environ.get(variable) or None
    if given is not None and given not in values:
        raise UsageError(f"{variable}={given} is neither {' nor '.join(values)}: set it to one of them, or unset it")
    return given


def share(value: float | str) -> float | None:
    """The share that a percentage is, 0.5 for "50%"; None for a number and for a text that is no percentage."""
    try:
        return float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else None
    except ValueError:
        return None


def number_or_percentage(text: str) -> float | str:
    """How a flag's text is read where a percentage is allowed; what is neither stays text, for `Options` to refuse."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one part, checked when made.

    Raises:
        ValueError: an option is of another type or outside its range. The message starts with the option's name and
            its value and ends with the remedy, so that `--PART.` before it makes the flag.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices, within = (getattr(self, field.name), *map(field.metadata.get, ("choices", "within")))
            if field.metadata.get("percent") and isinstance(value, str):
                is_share = 0 < (share(value) or 0) < math.inf
                self.require(
                    field.name, is_share, "is neither a number nor a percentage above 0", "give one, such as 50%"
                )
            elif choices:
                self.require(field.name, value in choices, f"is not one of {', '.join(choices)}", "choose one of them")
            elif isinstance(field.default, bool):
                self.require(field.name, isinstance(value, bool), "is neither True nor False", "give one of them")
            elif isinstance(field.default, (int, float)):
                example = f"give one, such as {field.default}"
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                self.require(field.name, is_number and math.isfinite(value), "is not a finite number", example)
                if isinstance(field.default, int):
                    self.require(field.name, isinstance(value, int), "is not an integer", example)
                if within:
                    remedy = f"give one inside it, such as {field.default}"
                    self.require(field.name, _is_inside(value, within), f"is outside {within}", remedy)

    def require(self, name: str, holds: bool, problem: str, remedy: str) -> None:
        """Refuse the option `name` unless `holds`: "NAME VALUE PROBLEM: REMEDY"."""
        if not holds:
            raise ValueError(f"{name} {getattr(self, name)} {problem}: {remedy}")


def given(args: SimpleNamespace, part: str) -> dict[str, Any]:
    """The options of a part that the user gave, from OpenRLHF's nested arguments; the others have their defaults."""
    return vars(getattr(args, part, SimpleNamespace()))


def _is_inside(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    return above and (value < high if interval[-1] == ")" else value <= high)
