"""The data sets: where each is, and what a row of it asks and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_stare.data import DataError

Row = dict[str, Any]
LOCAL_KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


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


# DAPO's problems stand between an instruction that asks for a last line "Answer: …" and a reminder of it, which would
# contradict the template's.
_DAPO = re.compile(
    r"Solve the following math problem.*?\n\n(?P<problem>.*)\n\nRemember to put your answer.*", re.DOTALL
)


def _dapo(row: Row) -> tuple[str, Any]:
    text = row["prompt"][-1]["content"]
    wrapped = _DAPO.fullmatch(text.strip())
    return wrapped["problem"] if wrapped else text, row["reward_model"]["ground_truth"]


def _skywork(row: Row) -> tuple[str, Any]:
    # The answer is a JSON list with one entry.
    answers = json.loads(row["reward_model"]["ground_truth"])
    return row["prompt"][-1]["content"], answers[0] if answers else None


def _olympiad(row: Row) -> tuple[str, Any]:
    # Some problems refer to a text that several of them share.
    problem = "\n\n".join(part for part in (row["context"], row["question"]) if part)
    return problem, ", ".join(row["final_answer"] or [])


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
    place = str(file or source.hub)
    for number, row in enumerate(_load(source, file, place)):
        try:
            problem, answer = source.read(row)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"row {number} of {place}, with the columns {', '.join(row)}, is not laid out as {name} on the Hub, "
                f"{source.hub} ({type(error).__name__}: {error}): give a file with the columns of that data set"
            ) from None
        yield (problem or "").strip(), label(answer)


def label(answer: Any) -> str:
    """The answer as text that math-verify reads, without dollar signs around it."""
    text = "" if answer is None else str(answer).strip()
    if text.count("$") == 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    # Minerva's 4.5e33 would be read as 4.5 times e times 33.
    return re.sub(r"^([-+]?[0-9.]+)e([-+]?[0-9]+)$", r"\1 \\times 10^{\2}", text.strip())


def _load(source: Source, file: Path | None, place: str) -> Any:
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError("datasets, which OpenRLHF brings, is not installed: pip install datasets") from None
    if file is None:
        arguments = {"path": source.hub, "name": source.config, "split": source.split}
    elif not file.is_file():
        raise DataError(f"{file} is not a file: give a .parquet or .jsonl file, or the name alone for the Hub")
    elif file.suffix not in LOCAL_KINDS:
        raise DataError(f"{file} ends in none of {', '.join(LOCAL_KINDS)}: convert it to one of them")
    else:
        arguments = {"path": LOCAL_KINDS[file.suffix], "data_files": str(file), "split": "train"}
    try:
        return datasets.load_dataset(**arguments)
    except Exception as error:  # of many kinds, from the network, the file system and the parsers
        reason = " ".join(str(error).split())
        raise DataError(f"{place} cannot be loaded: {type(error).__name__}: {reason}") from error
