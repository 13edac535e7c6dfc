"""How any option is declared and refused; the ranges of each method's options are tested beside the method."""

import math
from dataclasses import dataclass, fields

import pytest

from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class Example(Options):
    share: float = option(0.1, "a share", within="(0, 1]")
    count: int = option(4, "a number", within="[0, inf)")
    kind: str = option("one", "a choice", ("one", "two"))
    switch: bool = option(False, "a switch")
    folder: str = option("", "anything")
    signed: float = option(0.0, "any number")


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("share", 0, "is outside (0, 1]"),
        ("share", 1.5, "is outside (0, 1]"),
        ("share", -math.inf, "is not a finite number"),
        ("share", math.nan, "is not a finite number"),
        ("share", "0.1", "is not a finite number"),
        ("share", True, "is not a finite number"),
        ("count", -1, "is outside [0, inf)"),
        ("count", 2.5, "is not an integer"),
        ("kind", "three", "is not one of one, two"),
        ("switch", 1, "is neither True nor False"),
        ("signed", math.inf, "is not a finite number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_a_remedy(name, value, problem):
    with pytest.raises(ValueError) as refused:
        Example(**{name: value})
    start, remedy = str(refused.value).split(": ")
    assert start == f"{name} {value} {problem}"
    assert remedy.startswith(("give", "choose"))


@pytest.mark.parametrize("options", [{"share": 1}, {"share": 1e-9}, {"count": 0}, {"signed": -3}, {"kind": "two"}])
def test_a_value_inside_is_kept_as_it_is(options):
    made = Example(**options)
    assert {name: getattr(made, name) for name in options} == options


def test_a_field_carries_all_that_a_flag_needs():
    kind = {field.name: field for field in fields(Example)}["kind"]
    assert (kind.default, kind.metadata["help"], kind.metadata["choices"]) == ("one", "a choice", ("one", "two"))
