"""Prompts from the generators of reasoning-gym: `python -m openrlhf_stare.data.reasoning TASK [TASK …] --out FOLDER`.

A TASK is a generator's name, with settings of it if it has other ones than its defaults:
`chain_sum:min_terms=2,max_terms=3`. Of ours is `size`, how many training prompts it gives. FOLDER/train.jsonl has them
all in a shuffled order, FOLDER/eval.jsonl the held-out ones, none of whose questions is in train.jsonl. A row has the
keys input, label (the entry as JSON, for `openrlhf_stare/rewards/reasoning_gym_reward.py`) and datasource.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_stare.data import DataError

TEMPLATES = {"none": "{question}", "tag": "{question}\n\nPut the final answer between <answer> and </answer>."}
SEEDS_APART = 10**6  # an entry is drawn from its task's seed plus its number


@dataclass(frozen=True)
class Task:
    """A generator with its settings, and how many training prompts it gives."""

    name: str
    settings: dict[str, Any]
    size: int


def parse(word: str, size: int) -> Task:
    """The task that a word of the command line names; `size` where it names none.

    Raises:
        DataError: the word cannot be read.
    """
    name, _, rest = word.partition(":")
    settings: dict[str, Any] = {}
    for setting in re.split(r",(?=\w+=)", rest) if rest else ():
        key, given, value = setting.partition("=")
        if not given or not key.isidentifier():
            raise DataError(f"{setting!r} of {word} is not a setting: write {name}:KEY=VALUE,KEY=VALUE")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = {"true": True, "false": False}.get(value.lower(), value)
    size = settings.pop("size", size)
    if not isinstance(size, int) or size < 1:
        raise DataError(f"{word} asks for {size} prompts: give a positive number")
    return Task(name, settings, size)


def entries(task: Task, count: int, seed: int) -> Iterator[tuple[dict, str]]:
    """`count` entries of a task, each with itself as JSON.

    Raises:
        DataError: there is no such task, it does not take these settings, or its scorer cannot do with an entry that
            was written as JSON and read again.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of what it imports, where that is compiled at its first use
        from reasoning_gym import create_dataset, get_score_answer_fn
        from reasoning_gym.factory import DATASETS

    if task.name not in DATASETS:
        close = difflib.get_close_matches(task.name, DATASETS, n=3) or sorted(DATASETS)
        raise DataError(f"{task.name} is not a task of reasoning-gym: choose among {', '.join(close)}")
    try:
        drawn = create_dataset(task.name, size=count, seed=seed, **task.settings)
        for number in range(count):
            entry = drawn[number]
            label = json.dumps(entry)
            if number == 0 and isinstance(entry["answer"], str):
                get_score_answer_fn(task.name)(answer=entry["answer"], entry=json.loads(label))
            yield entry, label
    except Exception as error:  # whatever a generator or its scorer raises
        said = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{task.name} cannot be used with the settings {task.settings} ({said:.200})") from None


def row(task: Task, entry: dict, label: str, template: str) -> dict[str, str]:
    """An entry as a line of a file."""
    return {"input": template.format(question=entry["question"]), "label": label, "datasource": task.name}


def prepare(tasks: list[Task], held_out: int, seed: int, template: str = "{question}") -> dict[str, list[dict]]:
    """The rows of train.jsonl and eval.jsonl by their names without ending; `held_out` of each task.

    Raises:
        DataError: as in `entries`, or a task has too few different questions.
    """
    # Twice as many as are needed, since a small task draws the same question again and again.
    drawn = [
        list(entries(task, 2 * (held_out + task.size), (seed * len(tasks) + place) * SEEDS_APART))
        for place, task in enumerate(tasks)
    ]
    files: dict[str, list[dict]] = {"train": [], "eval": []}
    kept: set[str] = set()  # the questions that are held out, of all tasks
    for task, found in zip(tasks, drawn, strict=True):
        # The first to come. Those that come only once would be of the kinds with the most questions, often harder.
        different = {entry["question"]: row(task, entry, label, template) for entry, label in found}
        chosen = [question for question in different if question not in kept][:held_out]
        files["eval"] += [different[question] for question in chosen]
        kept.update(chosen)
    for task, found in zip(tasks, drawn, strict=True):
        rows = [row(task, entry, label, template) for entry, label in found if entry["question"] not in kept]
        held = sum(of["datasource"] == task.name for of in files["eval"])
        if len(rows) < task.size or held < held_out:
            raise DataError(
                f"{task.name} has too few different questions for {task.size} training prompts and {held_out} "
                f"held-out ones: of {len(found)} that were drawn, {len(rows)} and {held} are left; ask for fewer"
            )
        files["train"] += rows[: task.size]
    random.Random(seed).shuffle(files["train"])
    return files


def main(words: list[str] | None = None) -> None:
    """Write the files. Exit status 2, with one sentence: it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_stare.data.reasoning",
        description="Writes FOLDER/train.jsonl and FOLDER/eval.jsonl with prompts of reasoning-gym's tasks, mixed.",
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="NAME or NAME:KEY=VALUE,…, with size=N for its share")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files are written")
    parser.add_argument("--size", type=int, default=240, help="training prompts of each task (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=32, help="held-out prompts of each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the generators (default: %(default)s)")
    parser.add_argument(
        "--template",
        choices=TEMPLATES,
        default="none",
        help="what is added to the question: nothing, or to put the answer in <answer> tags (default: %(default)s)",
    )
    args = parser.parse_args(words)
    try:
        tasks = [parse(word, args.size) for word in args.tasks]
        files = prepare(tasks, args.held_out, args.seed, TEMPLATES[args.template])
        args.out.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            (args.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    except ModuleNotFoundError:
        print(
            'reasoning: reasoning-gym is not installed: pip install "openrlhf-stare[tasks]", which needs a C compiler',
            file=sys.stderr,
        )
        sys.exit(2)
    except (DataError, OSError) as error:
        print(f"reasoning: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    questions = len({row["input"] for row in files["train"]})
    print(
        f"{args.out}: {len(files['train'])} training prompts, {questions} of them different, and {len(files['eval'])} "
        "held out"
    )


if __name__ == "__main__":
    main()
