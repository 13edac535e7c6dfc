"""The reward for mathematics, 1 for a right answer and 0 for a wrong one: a file for OpenRLHF's `--reward.remote_url`.

The answer is what the last `\\boxed{…}` of the response holds, outside of code and of what a tool printed. math-verify
compares it with the label, in a few processes that live as long as this one. An answer that hangs or crashes the
verifier costs itself only.

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

from openrlhf_stare.rewards.responses import response_of
from openrlhf_stare.rewards.workers import WorkerFailed, Workers

SECONDS = 5.0  # wall-clock time for one answer; most take a few milliseconds
LONGEST = 1 << 15  # bytes of a question for the verifier: fewer than a pipe takes while nobody reads it
WORKERS = 4  # verifiers of each rollout actor, started as they are needed

# A block with a language, or one of a tool's output, up to the fence that ends it, indented or not, or to the text's
# end. Another block's first fence does not end it.
BLOCK = re.compile(r"```\w[^\s`]*\n.*?(?:(?<=\n)[ \t]*```(?!\w[^\s`]*\n)|\Z)", re.DOTALL)

if importlib.util.find_spec("math_verify") is None:
    raise ModuleNotFoundError('math-verify is not installed: pip install "openrlhf-stare[math]"', name="math_verify")

_log = logging.getLogger(__name__)
_verifiers = Workers(Path(__file__).resolve().with_name("math_worker.py"), WORKERS)


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` of the text holds; None: there is none, it is empty or it does not close."""
    _, found, rest = text.rpartition("\\boxed{")
    depth = 1
    for place, character in enumerate(rest if found else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:place].strip() or None
    return None


def text_of(label: object) -> str | None:
    """The label as text; None: it is missing, or the NaN that stands for a missing one in a table."""
    text = "" if label is None else str(label).strip()
    return None if text.lower() in ("", "nan") else text


def is_right(label: str, answer: str) -> bool | None:
    """Whether the answer equals the label; None: the verifier hung or crashed over it, which is logged."""
    if answer == label:
        return True
    question = json.dumps([label, answer])
    if len(question) > LONGEST:
        return False
    try:
        return _verifiers.ask(question, SECONDS)
    except WorkerFailed as failed:
        _log.warning("The verifier %s over %.200r, which gets no reward", failed, answer)
        return None


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface.

    Args:
        queries: the decoded prompts with their responses, special tokens included.
        prompts: the prompts alone. A box in the prompt is no answer; if the prompt's end is not found in the query,
            there is none.
        labels: the right answers, as LaTeX or plain text.

    Returns:
        `rewards`: 1 or 0 for each query, NaN if its label is missing, which leaves the response out of training.
        `scores`, which dynamic filtering reads: the same with 0 for NaN. `extra_logs` has two more figures, which
        OpenRLHF logs as means over the responses: `boxed`, whether there is an answer, and `verifier_failed`, whether
        the verifier hung or crashed over it.
    """
    responses = [response_of(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
    answers = [None if response is None else last_boxed(BLOCK.sub("", response)) for response in responses]
    rights = [text_of(label) for label in labels]
    verdicts = [
        False if answer is None or right is None else is_right(right, answer)
        for answer, right in zip(answers, rights, strict=True)
    ]
    scores = torch.tensor([float(verdict is True) for verdict in verdicts])
    rewards = scores.masked_fill(torch.tensor([right is None for right in rights]), math.nan)
    boxed = torch.tensor([float(answer is not None) for answer in answers])
    failed = torch.tensor([float(verdict is None) for verdict in verdicts])
    return {"rewards": rewards, "scores": scores, "extra_logs": {"boxed": boxed, "verifier_failed": failed}}
