"""The results of a study, kept in the repository: docs/results/NAME.jsonl, a line of JSON for each finished run.

    python launch/study/results.py done FILE RUN < RECIPE    ends with status 0 if FILE has this run's line, 3 if not

runs/ is not in git, and a machine may be gone tomorrow. So a study goes on from its file, on any machine: a run whose
line is there is done, and tables and figures are made from the lines alone. launch/study/enter.py writes them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

RECIPE_HASH = 12  # letters
INTERVAL = 0.95  # of the means that are drawn: how much of them an interval holds
NOT_DONE = 3  # no status of Python's own, so that a file that cannot be read is not one without the line


@dataclass(frozen=True)
class Stage:
    """One training: its name, its figures as launch/study/enter.py computes them, and its curves, thinned.

    `curves["step"]` are the middles of equal spans of steps, the other curves the means over these spans. `answers`
    are some of the trained model's, where the study keeps any: question, answer and reward.
    """

    name: str
    figures: dict[str, float | str | None]
    curves: dict[str, list[float]]
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """A line: what was trained, by a recipe's hash, the arm and the seed of a study, stage after stage, on what."""

    recipe: str
    task: str
    arm: str
    seed: int
    stages: list[Stage]
    machine: dict[str, str]

    @property
    def name(self) -> str:
        """That of the run's folder."""
        return f"{self.task}-{self.arm}-seed{self.seed}"

    @property
    def figures(self) -> dict[str, float | str | None]:
        """Those of the last stage."""
        return self.stages[-1].figures

    def number(self, figure: str) -> float:
        value = self.figures[figure]
        assert isinstance(value, (int, float)), f"{self.stages[-1].name} has no number {figure}"
        return float(value)


def recipe_hash(recipe: str) -> str:
    """The hash of a run's recipe as the launch scripts write it: a line for each word, `200 steps` first, then flags.

    The same on every machine, and for the same flags in another order: of a flag given twice the last counts, and of a
    path its last two parts, such as routes/reward.py.
    """
    first, *words = recipe.strip().splitlines()
    flags: dict[str, list[str]] = {"steps": [first]}
    flag = "steps"
    for word in words:
        if word.startswith("--"):
            flag, flags[word] = word, []
        else:
            flags[flag].append("/".join(word.split("/")[-2:]))
    return hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:RECIPE_HASH]


def read(file: Path) -> list[Result]:
    """The results in their order; none where there is no file yet.

    Raises:
        SystemExit: a line is none, as after a merge or on a full disk; or two are of one run.
    """
    found: list[Result] = []
    names: set[str] = set()
    # Not splitlines: an answer may have another character that ends a line.
    lines = file.read_text().removesuffix("\n").split("\n") if file.exists() and file.stat().st_size else []
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            found.append(Result(**{**line, "stages": [Stage(**stage) for stage in line["stages"]]}))
        except (ValueError, TypeError, KeyError):
            raise SystemExit(f"{file}, line {number}, is no result: delete it, or take the file from git") from None
        if (name := found[-1].name) in names:
            raise SystemExit(f"{file} has two lines of {name}: keep one, and compare runs of one setting in a file")
        names.add(name)
    return found


def written(name: str) -> Path:
    """The type of an argument: a file with results, so that a mistyped one is no study without runs."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {name}: it comes with the first finished run of the study")
    if not Path(name).stat().st_size:
        raise argparse.ArgumentTypeError(f"{name} is empty: a line comes with each finished run of the study")
    return Path(name)


def run_folder(name: str) -> Path:
    """The type of an argument: a folder that is there, a run's mostly."""
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {name}: give that of a run")
    return Path(name)


def is_done(file: Path, name: str, recipe: str) -> bool:
    """Whether the file has a line of this run.

    Raises:
        SystemExit: it has one with other flags, beside which a second one would not be read.
    """
    recipes = {result.name: result.recipe for result in read(file)}
    if recipes.get(name, recipe) != recipe:
        raise SystemExit(f"{file} has a line of {name} with other flags: delete it to train this run anew")
    return name in recipes


def enter(file: Path, result: Result) -> bool:
    """Adds a line unless one of the same run is there, which counts; says whether it did."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        # Runs beside each other enter their lines in the same file. A lock that is held is waited for and no error.
        with contextlib.suppress(OSError):  # a file system without flock
            fcntl.flock(lines, fcntl.LOCK_EX)
        if is_done(file, result.name, result.recipe):
            return False
        lines.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
    return True


def interval(values: list[float]) -> tuple[float, float]:
    """The bootstrap interval of the mean of some seeds: the means of all ways to draw as many with replacement.

    Of more than six seeds it is of 20,000 random draws, always the same.

    Three seeds give 27 draws, so the interval then reaches from the lowest seed to the highest or almost so.
    """
    draws: Iterable
    if len(values) <= 6:
        draws = itertools.product(values, repeat=len(values))
    else:
        generator = random.Random(0)
        draws = (generator.choices(values, k=len(values)) for _ in range(20_000))
    means = sorted(map(fmean, draws))
    outside = int((1 - INTERVAL) / 2 * len(means))
    return means[outside], means[-1 - outside]


def with_interval(values: list[float], digits: int = 3) -> str:
    """Such as `0.950 [0.937, 0.993]`: mean and interval; of a single value no interval."""
    low, high = interval(values)
    between = f" [{low:.{digits}f}, {high:.{digits}f}]" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{between}"


def markdown(rows: list[tuple[str, ...]]) -> str:
    """A table; the first row is its head."""
    head, *others = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *others))


def report(claims: list[tuple[bool | None, str]]) -> int:
    """Prints each claim: held, not held, or open where its runs are missing. Returns 1 if one is not held or there is
    none, else 0."""
    if not claims:
        print("open: no claim can be judged by these runs")
        return 1
    for holds, sentence in claims:
        print({True: "pass", False: "MISS", None: "open"}[holds], sentence)
    return int(any(holds is False for holds, _ in claims))


def present(
    description: str,
    arrange: Callable[[list[Result]], Any],
    table: Callable[[Any], str],
    draw: Callable[[Any, Path], None],
    claims: Callable[[Any], list[tuple[bool | None, str]]],
) -> int:
    """The command of a study that is judged by its file of results: writes its table and its figure, and prints table
    and claims. Returns `report`'s status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("results", type=written)
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arranged = arrange(read(args.results))
    text = table(arranged)
    args.table.write_text(text)
    draw(arranged, args.png)
    print(text)
    return report(claims(arranged))


if __name__ == "__main__":
    _, command, file, name = sys.argv
    assert command == "done", f"{command} is not done"
    sys.exit(0 if is_done(Path(file), name, recipe_hash(sys.stdin.read())) else NOT_DONE)
