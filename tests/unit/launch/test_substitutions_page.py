"""The page of the table of substitutions says what the table says."""

import importlib.util
from pathlib import Path

import pytest

from openrlhf_stare.substitutions import TABLE

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "launch" / "substitutions_page.py"
spec = importlib.util.spec_from_file_location("substitutions_page", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

TEXT = script.PAGE.read_text()


def test_the_page_is_what_the_command_writes():
    assert script.PAGE == ROOT / "docs" / "substitutions.md"
    assert script.with_the_table(TEXT) == TEXT, f"write it anew: python {SCRIPT.relative_to(ROOT)}"


def test_every_row_is_on_it_with_what_breaks_without_it():
    for row in TABLE:
        assert f"`{row.place}`" in TEXT and f"`{row.by}` | {row.where} | {row.without} |" in TEXT
        for theirs in row.relies_on:
            assert f"| `{theirs.place}` |" in TEXT


def test_what_is_written_by_hand_stays():
    by_hand = f"above\n{script.BEGIN}OLD TABLE\n{script.END}below\n"
    written = script.with_the_table(by_hand)
    assert written.startswith("above\n") and written.endswith("below\n") and "OLD TABLE" not in written
    with pytest.raises(ValueError, match="has no line"):
        script.with_the_table("no marks")
