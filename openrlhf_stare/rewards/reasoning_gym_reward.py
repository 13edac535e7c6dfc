"""The reward for the tasks of reasoning-gym: a file for OpenRLHF's `--reward.remote_url`.

The label is an entry of a task as JSON, as `python -m openrlhf_stare.data.reasoning` writes it, and the reward is what
that task's own scorer says of the answer: 1 for a right one, 0 or a little more for others, by the task.

The answer is taken from the response, of which the special tokens at its end are no part, as the first of these that
is there: what the last `<answer>…</answer>` holds; the last number, where the entry's own answer is a number; the last
line that is not empty, or where the entry's own answer has several, the last so many.

The scorers run in processes of their own. An answer over which one hangs or that ends it gets 0. A scorer that raises
gives no reward (NaN), which leaves the response out of training; each task's first error is told.

OpenRLHF loads this file in each of its rollout actors and calls `reward_func` in threads, with one response a call.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import re
from pathlib import Path

import torch

from openrlhf_stare.notices import notice
from openrlhf_stare.rewards.responses import response_of, without_special_tokens
from openrlhf_stare.rewards.workers import WorkerFailed, Workers

SECONDS = 5.0  # wall-clock time for one answer; most take a few milliseconds
WORKERS = 2  # scorers of each rollout actor, started as they are needed
LONGEST = 1 << 15  # characters of an answer; a longer one is wrong
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# A minus is a sign where nothing stands before it that it could be taken from: 5-3 ends with 3, and = -2 with -2.
NUMBER = re.compile(r"(?:(?<![\w)])[-+])?\d+(?:,\d{3})*(?:\.\d+)?")

if importlib.util.find_spec("reasoning_gym") is None:
    raise ModuleNotFoundError(
        'reasoning-gym is not installed: pip install "openrlhf-stare[tasks]", which needs a C compiler',
        name="reasoning_gym",
    )

_log = logging.getLogger(__name__)
_scorers = Workers(Path(__file__).resolve().with_name("reasoning_gym_worker.py"), WORKERS)
_told: set[str] = set()


def answer_in(response: str, right: object) -> str | None:
    """The answer in a response to an entry whose own answer is `right`; None: there is none."""
    text = without_special_tokens(response).replace("−", "-")
    if tagged := [found.strip() for found in TAGGED.findall(text) if found.strip()]:
        return tagged[-1]
    if isinstance(right, str) and NUMBER.fullmatch(right.strip()):
        numbers = NUMBER.findall(text)
        return numbers[-1] if numbers else None
    # As many lines as the entry's own answer has, a board's for instance, with the empty ones between them.
    several = len(_filled(right)) if isinstance(right, str) else 1
    if places := _filled(text)[-max(several, 1) :]:
        return "\n".join(line.rstrip() for line in text.splitlines()[places[0] :]).strip()
    return None


def _filled(text: str) -> list[int]:
    return [place for place, line in enumerate(text.splitlines()) if line.strip()]


def entry_of(label: object) -> dict | None:
    """The entry that a label is; None if it is none."""
    try:
        entry = json.loads(label) if isinstance(label, str) else None
    except ValueError:
        return None
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    return entry if isinstance(metadata, dict) and "source_dataset" in metadata else None


def score(entry: dict, answer: str) -> tuple[float, bool]:
    """The reward of an answer, and whether the scorer failed: NaN where it raised, 0 where it hung or died."""
    task = entry["metadata"]["source_dataset"]
    try:
        reply = _scorers.ask(json.dumps([entry, answer]), SECONDS)
    except WorkerFailed as failed:
        _log.warning("The scorer of %s %s over %.200r, which gets no reward", task, failed, answer)
        return 0.0, True
    if "score" in reply:
        return reply["score"], False
    _tell_once(task, f"The scorer of {task} raised {reply['raised']} for the answer {answer[:100]!r}")
    return math.nan, True


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface.

    Args:
        queries: the decoded prompts with their responses, special tokens included.
        prompts: the prompts alone. If a prompt's end is not found in its query, there is no answer.
        labels: the entries, as JSON.

    Returns:
        `rewards`: the scorer's for each query, 0 without an answer, NaN where the label is no entry or the scorer
        raised. `scores`, which dynamic filtering reads: the same with 0 for NaN. `extra_logs` has two figures, which
        OpenRLHF logs as means over the responses: `answered`, whether there is an answer, and `scorer_failed`.
    """
    rewards, answered, failed = [], [], []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        entry, response = entry_of(label), response_of(query, prompt)
        answer = answer_in(response, entry.get("answer")) if entry and response is not None else None
        if entry is None:
            _tell_once("label", f"A label is not an entry of reasoning-gym as JSON, but {str(label)[:100]!r}")
            reward, scorer_failed = math.nan, False
        elif answer is None or len(answer) > LONGEST:
            reward, scorer_failed = 0.0, False
        else:
            reward, scorer_failed = score(entry, answer)
        rewards.append(reward)
        answered.append(float(answer is not None))
        failed.append(float(scorer_failed))
    found = torch.tensor(rewards)
    logs = {"answered": torch.tensor(answered), "scorer_failed": torch.tensor(failed)}
    return {"rewards": found, "scores": found.nan_to_num(0.0), "extra_logs": logs}


def _tell_once(subject: str, sentence: str) -> None:
    if subject not in _told:
        _told.add(subject)
        notice(f"{sentence}; its response is left out of training, and so is every other of this kind")
