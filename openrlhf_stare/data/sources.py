"""The data sets: where each is, and what a row of it asks and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from openrlhf_stare.data import DataError

Row = dict[str, Any]
ENDINGS = (".parquet", ".jsonl", ".json")


@dataclass(frozen=True)
class Source:
    """A data set on the Hugging Face Hub. A local file in its place has the same columns."""

    hub: str
    read: Callable[[Row], tuple[str, Any]]  # a row -> its problem, and its answer as the data set writes it
    split: str = "train"
    config: str | None = None
    evaluation: bool = False


def _columns(problem: str, answer: str) -> Callable[[Row], tuple[str, Any]]:
    return lambda row: (row[problem], row[answer])


def _content(row: Row) -> str:
    """The last message of a conversation."""
    content = row["prompt"][-1]["content"]
    if not isinstance(content, str):
        raise TypeError(f"the prompt's content is not text but {content!r:.40}")
    return content


def _list(answers: Any) -> list:
    # A string would pass for the list of its letters.
    if not isinstance(answers, list):
        raise TypeError(f"the answers are not a list but {answers!r:.40}")
    return answers


# DAPO's problems stand between an instruction that asks for a last line "Answer: …" and a reminder of it, which would
# contradict the template's.
_DAPO_INSTRUCTION, _DAPO_REMINDER = "Solve the following math problem", "\n\nRemember to put your answer"


def _dapo(row: Row) -> tuple[str, Any]:
    text = _content(row)
    instruction, _, rest = text.strip().partition("\n\n")
    problem, reminded, _ = rest.rpartition(_DAPO_REMINDER)
    wrapped = instruction.startswith(_DAPO_INSTRUCTION) and reminded
    return problem if wrapped else text, row["reward_model"]["ground_truth"]


def _skywork(row: Row) -> tuple[str, Any]:
    # The answer is a JSON list with one entry.
    answers = _list(json.loads(row["reward_model"]["ground_truth"]))
    return _content(row), answers[0] if answers else None


def _olympiad(row: Row) -> tuple[str, Any]:
    # Some problems refer to a text that several of them share.
    problem = "\n\n".join(part for part in (row["context"], row["question"]) if part)
    return problem, ", ".join(_list(row["final_answer"] or []))


# Names, splits and columns are those that published code loads; nothing here has been loaded from the Hub yet. Most
# evaluation sets are there in several uploads. AIME25, AMC23 and Minerva are math-ai's, with 30, 40 and 272 problems;
# Olympiad is its authors', of which the 674 English competition problems without pictures are taken.
SOURCES = {
    "dapo": Source("BytedTsinghua-SIA/DAPO-Math-17k", _dapo),  # every problem is there a hundred times
    "deepscaler": Source("agentica-org/DeepScaleR-Preview-Dataset", _columns("problem", "answer")),
    "skywork": Source("Skywork/Skywork-OR1-RL-Data", _skywork, split="math"),
    "polaris": Source("POLARIS-Project/Polaris-Dataset-53K", _columns("problem", "answer")),
    "aime24": Source("HuggingFaceH4/aime_2024", _columns("problem", "answer"), evaluation=True),
    "aime25": Source("math-ai/aime25", _columns("problem", "answer"), split="test", evaluation=True),
    "amc23": Source("math-ai/amc23", _columns("question", "answer"), split="test", evaluation=True),
    "math500": Source("HuggingFaceH4/MATH-500", _columns("problem", "answer"), split="test", evaluation=True),
    "minerva": Source("math-ai/minervamath", _columns("question", "answer"), split="test", evaluation=True),
    "olympiad": Source("Hothan/OlympiadBench", _olympiad, config="OE_TO_maths_en_COMP", evaluation=True),
}


def read(name: str, file: Path | None = None) -> Iterator[tuple[str, str]]:
    """Every row's problem and label, either of which can be empty; from the Hub, unless a local file is given.

    Raises:
        DataError: the data set cannot be loaded, or its rows are not as they should be.
    """
    source = SOURCES[name]
    rows = _hub_rows(source) if file is None else _local_rows(file)
    for number in count():
        row = None
        try:
            row = next(rows)
            problem, answer = source.read(row)
            row_read = _text(problem), label(answer)
        except StopIteration:
            return
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            columns = f", with the columns {', '.join(row)}," if isinstance(row, dict) else ""
            reason = " ".join(str(error).split())
            raise DataError(
                f"row {number} of {file or source.hub}{columns:.300} is not laid out as {name} on the Hub, "
                f"{source.hub} ({type(error).__name__}: {reason:.200}): give a file with the columns of that data set"
            ) from None
        yield row_read


def _text(problem: Any) -> str:
    if not isinstance(problem, str | None):
        raise TypeError(f"the problem is not text but {problem!r:.40}")
    return (problem or "").strip()


def label(answer: str | int | float | None) -> str:
    """The answer as text that math-verify reads, without dollar signs around it; empty for None and NaN.

    Raises:
        TypeError: it is neither text nor a number.
    """
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, str | int | float)):
        raise TypeError(f"the answer is neither text nor a number but {answer!r:.40}")
    text = "" if answer is None or answer != answer else str(answer).strip()
    if text.count("$") == 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    # Minerva's 4.5e33 would be read as 4.5 times e times 33.
    return re.sub(r"^([-+]?[0-9.]+)e([-+]?[0-9]+)$", r"\1 \\times 10^{\2}", text.strip())


def _hub_rows(source: Source) -> Iterator[Row]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError("datasets, which OpenRLHF brings, is not installed: pip install datasets") from None
    try:
        yield from datasets.load_dataset(path=source.hub, name=source.config, split=source.split)
    except Exception as error:  # of many kinds, from the network, the file system and the parsers
        reason = " ".join(str(error).split())
        raise DataError(f"{source.hub} cannot be loaded: {type(error).__name__}: {reason}") from error


def _local_rows(file: Path) -> Iterator[Any]:
    """The rows of this file alone: `datasets` takes a * in its name for a pattern."""
    if not file.is_file():
        raise DataError(f"{file} is not a file: give a .parquet or .jsonl file, or the name alone for the Hub")
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            batches = pyarrow.parquet.ParquetFile(file).iter_batches()
            yield from (batch.slice(row, 1).to_pylist()[0] for batch in batches for row in range(batch.num_rows))
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{file} cannot be loaded ({_first_line(error)}): give a whole .parquet file") from None
    elif file.suffix == ".jsonl":
        with open(file, "rb") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield _json(line, f"row {number} of {file}")
    elif file.suffix == ".json":
        yield from _list(_json(file.read_bytes(), str(file)))
    else:
        raise DataError(f"{file} ends in none of {', '.join(ENDINGS)}: convert it to one of them")


def _json(text: bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not valid JSON ({_first_line(error)}): fix it or take it out") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
