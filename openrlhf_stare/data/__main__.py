"""The command: `python -m openrlhf_stare.data SOURCE [SOURCE …] --out FOLDER`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_stare.data import DataError
from openrlhf_stare.data.cleaning import EvaluationPrompts, normalised
from openrlhf_stare.data.sources import SOURCES, read

TRAIN = "train"
TEMPLATES = {
    "after": "{problem}\n\nReason step by step, and put the final answer within \\boxed{{}}.",
    "before": "Reason step by step, and put the final answer within \\boxed{{}}.\n\n{problem}",
    "none": "{problem}",
}


@dataclass
class Counts:
    """What became of a source's rows."""

    read: int = 0
    without_answer: int = 0
    duplicates: int = 0
    in_evaluation: int = 0
    written: int = 0


def main(words: list[str] | None = None) -> None:
    """Prepare the data. Exit status 2, with one sentence: it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_stare.data",
        description=f"Writes FOLDER/{TRAIN}.jsonl from the training sources, without duplicates and without problems "
        "of the evaluation sources, and FOLDER/NAME.jsonl for each evaluation source.",
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="NAME for the data set on the Hub, or NAME=FILE for a local .parquet or .jsonl file with its columns; of "
        f"a problem in two training sources the first is kept; the names are {', '.join(SOURCES)}",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files are written")
    parser.add_argument(
        "--template",
        choices=TEMPLATES,
        default="after",
        help="where the instruction to reason step by step and to box the answer stands; none: the model's chat "
        "template brings it (default: %(default)s)",
    )
    args = parser.parse_args(words)
    try:
        sources = _sources(args.sources)
        _check_that_none_is_overwritten(sources, args.out)
        args.out.mkdir(parents=True, exist_ok=True)
        files, counts = prepare(sources, TEMPLATES[args.template])
        for name, rows in files.items():
            (args.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    except (DataError, OSError) as error:
        print(f"data: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    print(_report(counts, args.out))


def prepare(sources: dict[str, Path | None], template: str) -> tuple[dict[str, list[dict]], dict[str, Counts]]:
    """Clean the sources: a name -> its local file, or None for the Hub.

    Returns:
        The rows of each file, by the file's name without its ending, and the counts of each source. A row has the keys
        input, label and datasource; OpenRLHF's evaluation reports each datasource by itself.

    Raises:
        DataError: a source cannot be read, or a file would be empty.
    """
    evaluation = [name for name in sources if SOURCES[name].evaluation]
    training = [name for name in sources if name not in evaluation]
    files: dict[str, list[dict]] = {name: [] for name in _files(sources)}
    counts = {name: Counts() for name in [*evaluation, *training]}

    # Evaluation sets stay as they are published, with any problem that is in two of them.
    evaluated: set[str] = set()
    for name in evaluation:
        for prompt, row in _rows(name, sources[name], template, counts[name]):
            evaluated.add(prompt)
            files[name].append(row)
            counts[name].written += 1

    forbidden, seen = EvaluationPrompts(evaluated), set()
    for name in training:
        for prompt, row in _rows(name, sources[name], template, counts[name]):
            if prompt in seen:
                counts[name].duplicates += 1
            elif prompt in forbidden:
                counts[name].in_evaluation += 1
            else:
                files[TRAIN].append(row)
                counts[name].written += 1
            seen.add(prompt)

    for name, rows in files.items():
        if not rows:
            raise DataError(f"{name}.jsonl would be empty, since no problem with an answer is left: check the sources")
    return files, counts


def _rows(name: str, file: Path | None, template: str, count: Counts) -> Iterator[tuple[str, dict]]:
    """The normalised prompt and the row of every problem that has an answer."""
    for problem, label in read(name, file):
        count.read += 1
        prompt = normalised(problem)
        if prompt and label:
            yield prompt, {"input": template.format(problem=problem), "label": label, "datasource": name}
        else:
            count.without_answer += 1


def _sources(words: list[str]) -> dict[str, Path | None]:
    sources: dict[str, Path | None] = {}
    for word in words:
        name, local, file = word.partition("=")
        if name not in SOURCES:
            raise DataError(f"{name} is not a source: choose among {', '.join(SOURCES)}")
        if name in sources:
            raise DataError(f"{name} is given twice: give it once")
        sources[name] = Path(file) if local else None
    return sources


def _files(sources: dict[str, Path | None]) -> list[str]:
    """The files that come of these sources, without their ending."""
    evaluation = [name for name in sources if SOURCES[name].evaluation]
    return evaluation if len(evaluation) == len(sources) else [*evaluation, TRAIN]


def _check_that_none_is_overwritten(sources: dict[str, Path | None], out: Path) -> None:
    written = [out / f"{name}.jsonl" for name in _files(sources)]
    for name, file in sources.items():
        if file and any(path.exists() and file.exists() and path.samefile(file) for path in written):
            raise DataError(f"{name}={file} would be overwritten: give --out another folder")


def _report(counts: dict[str, Counts], out: Path) -> str:
    columns = [field.name for field in dataclasses.fields(Counts)]
    lines = ["".join([f"{'source':<12}", *(f"{column.replace('_', ' '):>16}" for column in columns)])]
    for name, count in counts.items():
        lines.append("".join([f"{name:<12}", *(f"{getattr(count, column):>16,}" for column in columns)]))
    training = [name for name in counts if not SOURCES[name].evaluation]
    evaluation = [name for name in counts if SOURCES[name].evaluation]
    if training and not evaluation:
        lines.append("No evaluation source was given, so the training prompts are not cleaned of any.")
    flags = ["--data.input_key input --data.label_key label"]
    if training:
        flags.insert(0, f"--data.prompt_dataset {out / TRAIN}.jsonl")
    if evaluation:
        flags.append(f"--eval.dataset {','.join(f'{out / name}.jsonl' for name in evaluation)}")
    return "\n".join([*lines, "OpenRLHF's flags: " + " ".join(flags)])


if __name__ == "__main__":
    main()
