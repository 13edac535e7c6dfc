"""`python launch/substitutions_page.py`: write the table of substitutions into docs/substitutions.md.

What stands above the first mark of the page and below the second is written by hand and stays.
"""

from __future__ import annotations

from pathlib import Path

from openrlhf_stare.substitutions import CPU, NO_COMPILER, NO_FLASH_ATTN, OPENRLHF, TABLE, USED, Substitution, Theirs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "substitutions.md"
BEGIN, END = "<!-- made from the table: begin -->\n", "<!-- made from the table: end -->\n"


def with_the_table(page: str) -> str:
    """The page with the table between its two marks.

    Raises:
        ValueError: it does not have them.
    """
    above, _, rest = page.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no line {BEGIN.strip()} with a line {END.strip()} below it")
    return f"{above}{BEGIN}\n{table()}\n{END}{below}"


def table() -> str:
    """All rows, and what they rely on, as Markdown."""
    always = [row for row in OPENRLHF if not row.during]
    for_a_while = [row for row in OPENRLHF if row.during]
    relied_on = dict.fromkeys([*USED, *(theirs for row in TABLE for theirs in row.relies_on)])
    return "\n\n".join(
        [
            f"## Always, from the import of the module on: {len(always)}",
            _rows(always),
            f"## For a while: {len(for_a_while)}",
            _rows(for_a_while),
            f"## Where there is no GPU: {len(CPU)}",
            _rows(CPU),
            f"## Where flash-attn is not installed, as on every CPU: {len(NO_FLASH_ATTN)}",
            _rows(NO_FLASH_ATTN),
            f"## On a GPU without a compiler for its CUDA: {len(NO_COMPILER)}",
            _rows(NO_COMPILER),
            f"## What of theirs this relies on besides: {len(relied_on)}",
            _relied_on(relied_on),
        ]
    )


def _rows(rows: list[Substitution] | tuple[Substitution, ...]) -> str:
    lines = ["| Place | Ours | Processes | Without it |", "|---|---|---|---|"]
    for row in rows:
        place = f"`{row.place}`" + (f", during {row.during}" if row.during else "")
        lines.append(f"| {place} | `{row.by}` | {row.where} | {row.without} |")
    return "\n".join(lines)


def _relied_on(everything: dict[Theirs, None]) -> str:
    lines = ["| Theirs | Arguments | Has to mention |", "|---|---|---|"]
    for theirs in sorted(everything, key=lambda theirs: theirs.place):
        lines.append(f"| `{theirs.place}` | {_code(theirs.arguments)} | {_code(theirs.mentions)} |")
    return "\n".join(lines)


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(with_the_table(PAGE.read_text()))
