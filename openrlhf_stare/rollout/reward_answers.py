"""What a `reward_func` answers for one response, and what it raises.

OpenRLHF 0.11.2 calls it with lists of one query, one prompt and one label, and wants a dict with tensors of one
number. It logs an exception on a line among thousands, and takes a list for the rewards of a batch or fails with it.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import torch

from openrlhf_stare.notices import notice

WANTED = (
    'OpenRLHF wants {"rewards": torch.tensor([0.5]), "scores": torch.tensor([0.5])} for one response, "scores" being '
    "optional"
)
SHOWN = 100  # characters
_told: set[str] = set()


def telling_fetch(fetch: Callable[..., Awaitable[list]]) -> Callable[..., Awaitable[list]]:
    """OpenRLHF's fetch of rewards, which takes numbers in any form, and tells the user the first exception."""

    async def fetch_and_tell(self, queries, prompts, labels):
        try:
            return [as_wanted(answer) for answer in await fetch(self, queries, prompts, labels)]
        except Exception as error:  # the file is the user's
            _tell_once(self.reward_endpoints[0], error, prompts[0])
            raise

    return fetch_and_tell


def as_wanted(answer: object) -> object:
    """An answer in the form that OpenRLHF wants, as far as it has one number; None, for no reward, as it is.

    Raises:
        TypeError, ValueError: it has none, or several.
    """
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        answer = {"rewards": answer}
    one = {name: _one_number(answer[name]) for name in ("rewards", "scores") if answer.get(name) is not None}
    return {**answer, **one}


def problem(answer: object) -> str | None:
    """What is wrong with an answer, as the user wrote it; None if nothing is."""
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        return f"a {type(answer).__name__} and no dict"
    if "rewards" not in answer:
        return f'a dict without "rewards" (it has {", ".join(map(repr, answer)) or "nothing"})'
    for name in ("rewards", "scores"):
        value = answer.get(name)
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            return f'"{name}" of the shape {tuple(value.shape)}'
        if value is not None and not isinstance(value, (torch.Tensor, int, float)):
            return f'"{name}" as a {type(value).__name__}'
    return None


def only_number(value: Any) -> Any:
    """The value if it is a number or a tensor with one, the only element of a list with one; None for all else."""
    while isinstance(value, (list, tuple)) and len(value) == 1:
        (value,) = value
    if isinstance(value, torch.Tensor):
        return value if value.numel() == 1 else None
    try:
        float(value)
    except (TypeError, ValueError):
        return None
    return None if isinstance(value, str) else value


def _one_number(value: object) -> torch.Tensor:
    """(1,); a tensor that is one already stays what it is."""
    if isinstance(value, torch.Tensor) and value.shape == (1,):
        return value
    numbers = torch.as_tensor(value)
    if numbers.numel() != 1:
        raise ValueError(f"the reward of one response has the shape {tuple(numbers.shape)}: {WANTED}")
    return numbers.reshape(1)


def place_of(error: Exception) -> str:
    """Where an exception was raised: "FILE, line N"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "an unknown line"


def _tell_once(path: str, error: Exception, prompt: str) -> None:
    if path in _told:
        return
    _told.add(path)
    said = " ".join(str(error).split())[:SHOWN]
    notice(
        f"The reward function raised {type(error).__name__}: {said} ({place_of(error)}) for the prompt "
        f"{prompt[:SHOWN]!r}; its response is left out of training, and so is every other for which it fails"
    )
