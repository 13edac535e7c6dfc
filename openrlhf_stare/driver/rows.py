"""The rows of a local data file, all of them: one without a label is met after hours of training otherwise.

What a prompt has to be is asked of the first row of other data sets, too.
"""

from __future__ import annotations

import codecs
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import BinaryIO

from openrlhf_stare import tools
from openrlhf_stare.options import UsageError

JSON = ("json", "jsonl")
NOT_BLANK = re.compile(r"\S")
KINDS = {
    str: "a text",
    **dict.fromkeys((bool, int, float), "a number"),  # of which a later row may be another
    list: "a list",
    dict: "an object",
}


class Malformed(ValueError):
    """A row cannot be read. The message has file and row."""


@dataclass(frozen=True)
class Rows:
    """What was seen of a data set."""

    flag: str
    name: str
    first: dict
    count: int | None = None  # None where only the first was looked at
    longest: dict | None = None  # the row with the longest prompt, in characters
    place: str = ""  # of that row


def check(flag: str, name: str, split: str, keys: list[str], first: dict, args: SimpleNamespace) -> Rows:
    """Look for the columns `keys`, and for a prompt, in every row that is used of the file, or the files of a pattern.

    Raises:
        UsageError: a row has none of one, or cannot be read.
    """
    ending = os.path.splitext(name)[1].removeprefix(".")
    rows = _json_rows(name) if ending in JSON else _table_rows(ending, name, split, keys)
    count, most, longest, place = 0, -1, None, ""
    try:
        for file, number, row in rows:
            count += 1
            if count > args.data.max_samples:  # OpenRLHF takes that many of each data set
                continue
            for key in keys:
                if row.get(key) is None:
                    raise UsageError(
                        f"{flag} {file}: row {number} has no {key}: give every row one, or leave the row out"
                    )
            if problem := no_prompt(row, args):
                raise UsageError(f"{flag} {file}: row {number} has {problem}")
            if (length := len(str(row[args.data.input_key]))) > most:
                most, longest, place = length, row, f"{file}: row {number}"
    except Malformed as error:
        raise UsageError(f"{flag} {error}: fix that row") from None
    return Rows(flag, name, first, count, longest, place)


def unlike(sets: list[Rows]) -> str | None:
    """Why the sets cannot be put together, as "WHAT: REMEDY": a column is a text in one and a number in another, say;
    None if they can."""
    kinds: dict[str, tuple[str, str]] = {}
    for rows in sets:
        for key, value in rows.first.items():
            if value is None:
                continue
            kind = KINDS.get(type(value), type(value).__name__)
            first_kind, name = kinds.setdefault(key, (kind, rows.name))
            if kind != first_kind:
                return (
                    f"{key} is {first_kind} in {name} and {kind} in {rows.name}, and data sets are put together by "
                    "their columns: write it alike in all"
                )
    return None


def no_prompt(row: dict, args: SimpleNamespace) -> str | None:
    """Why OpenRLHF makes no prompt of a row that has one, as "WHAT: REMEDY"; None if it does."""
    key, template, agent = args.data.input_key, args.data.input_template, args.train.agent_func_path
    prompt, is_chat = row[key], args.data.apply_chat_template
    if agent and not tools.is_ours(agent):  # which may take anything
        return None
    if isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt) and not is_chat:
        return f"a list of chat messages as its {key}: add --data.apply_chat_template, or make one text of it"
    if is_chat and isinstance(prompt, list) and not (prompt and all(map(_is_message, prompt))):
        return f"a list as its {key} that is none of chat messages: give each a role and a content"
    # A template of the flags makes a text of a number.
    taken = (str, list) if is_chat else (str, int, float) if template else str
    if not isinstance(prompt, taken):
        return f"no text as its {key} but a value of the type {type(prompt).__name__}: write it as a text"
    if prompt == "" and not is_chat and template in (None, "{}"):  # else there is something around it
        return f"an empty {key}, and vLLM takes no empty prompt: give it a text, or leave the row out"
    return None


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") is not None


def malformed(name: str) -> str | None:
    """The first row of a JSON file that cannot be read, and why; None if all can."""
    try:
        for _ in _json_rows(name):
            pass
    except Malformed as error:
        return str(error)
    return None


def _json_rows(name: str) -> Iterator[tuple[str, int, dict]]:
    """File, number from 1 and content of each row of JSON lines, or of one JSON array, as `datasets` reads them."""
    for file in sorted(glob.glob(name)):
        with open(file, "rb") as stream:
            if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                stream.seek(0)
            start = stream.tell()
            while (first := stream.read(1)).isspace():
                pass
            stream.seek(start)
            rows: Iterable[tuple[int, object]]
            if first == b"[":
                rows = enumerate(_array(stream.read(), file), start=1)
            else:
                rows = _objects(stream, file)
            for number, row in rows:
                if not isinstance(row, dict):
                    raise Malformed(f"{file}: row {number} is not a JSON object with columns")
                yield file, number, row


def _objects(stream: BinaryIO, file: str) -> Iterator[tuple[int, object]]:
    """The rows below one another: a line each, or from the first line that is none on as they come."""
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            found: list[object] = []
            try:
                for value in _one_after_the_other((line + stream.read()).decode()):
                    found.append(value)
            except ValueError as of_a_later:
                why = of_a_later if found else error
                raise Malformed(f"{file}: row {number + len(found)} is not valid JSON ({why})") from None
            yield from enumerate(found, start=number)
            return


def _one_after_the_other(text: str) -> Iterator[object]:
    place, decoder = 0, json.JSONDecoder()
    while start := NOT_BLANK.search(text, place):
        value, place = decoder.raw_decode(text, start.start())
        yield value


def _array(text: bytes, file: str) -> list[object]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"{file}: it is not valid JSON ({error})") from None


def _table_rows(ending: str, name: str, split: str, keys: list[str]) -> Iterator[tuple[str, int, dict]]:
    import datasets

    table = datasets.load_dataset(ending, data_files=name, streaming=True)[split].select_columns(keys)
    for number, row in enumerate(table, start=1):
        yield name, number, row
