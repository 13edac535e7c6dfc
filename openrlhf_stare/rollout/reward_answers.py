"""What a `reward_func` or a reward server answers for one response, and what is raised over it.

OpenRLHF 0.11.2 calls it with lists of one query, one prompt and one label, and wants a dict with tensors of one
number. It logs an exception on a line among thousands, and takes a list for the rewards of a batch or fails with it.
A function that calls `sys.exit` ends the event loop of its engine, which never answers again.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from openrlhf_stare.notices import notice, without_secrets

WANTED = (
    'OpenRLHF wants {"rewards": torch.tensor([0.5]), "scores": torch.tensor([0.5])} for one response, "scores" being '
    "optional"
)
SHOWN = 100  # characters
# What the log has of OpenRLHF's own, which a figure of the same name would replace, or be replaced by.
OPENRLHFS = frozenset(
    """reward score return kl logprobs_diff response_length total_length truncated response_clip_ratio
    group_reward_std policy_loss entropy_loss critic_loss values actor_lr critic_lr actor_grad_norm critic_grad_norm
    ppo_clip_ratio ppo_kl vllm_kl is_filter_ratio generated_samples dynamic_filtering_pass_rate""".split()
)
TAKEN = ("entropy/", "rollout/", "timing/")  # beginnings of others: the meter's and OpenRLHF's, which adds up the last
_told: set[str] = set()


def telling_fetch(fetch: Callable[..., Awaitable[list]]) -> Callable[..., Awaitable[list]]:
    """OpenRLHF's fetch of rewards, which takes numbers in any form, and tells the user the first exception."""

    async def fetch_and_tell(self, queries, prompts, labels):
        if self.reward_func and not isinstance(self.reward_func, WithoutExit):
            self.reward_func = WithoutExit(self.reward_func)
        try:
            return [as_wanted(answer) for answer in await fetch(self, queries, prompts, labels)]
        except Exception as error:  # the file or the server is the user's
            who = (
                "function" if self.reward_func else f"server {', '.join(map(without_secrets, self.reward_endpoints))}"
            )
            _tell_once(who, error, prompts[0])
            raise

    return fetch_and_tell


class WithoutExit:
    """A reward function whose `sys.exit` is an error like any other."""

    def __init__(self, function: Callable) -> None:
        self.function = function

    def __call__(self, *batch: list) -> object:
        with exit_is_an_error():
            return self.function(*batch)


@contextmanager
def exit_is_an_error() -> Iterator[None]:
    """A user's function runs in this context."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({error.code!r})").with_traceback(error.__traceback__) from None


def as_wanted(answer: object) -> object:
    """An answer in the form that OpenRLHF wants, as far as it has one number; None, for no reward, as it is.

    Raises:
        TypeError, ValueError: it has none, or several.
    """
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        answer = {"rewards": answer}
    if "rewards" not in answer:
        raise ValueError(f"the reward of one response is {problem(answer)}: {WANTED}")
    taken: dict[str, Any] = {
        name: _one_number(answer[name]) for name in ("rewards", "scores") if answer.get(name) is not None
    }
    return {**answer, **taken, "extra_logs": figures(answer.get("extra_logs"))}


def figures(extra_logs: object) -> dict[str, float]:
    """What a reward function or an agent wants logged, as numbers. The first that is none is told; none is logged.

    Told is also the first with the name of another figure in the log: `reward` becomes `extra_logs/reward`.
    """
    if extra_logs is None:
        return {}
    if (said := _no_figures(extra_logs)) and "extra_logs" not in _told:
        _told.add("extra_logs")
        notice(f"A response has {said}, which is not logged")
    named = extra_logs.items() if isinstance(extra_logs, Mapping) else ()
    return {_not_taken(name): figure for name, value in named if (figure := _figure(value)) is not None}


def _not_taken(name: str) -> str:
    if name not in OPENRLHFS and not str(name).startswith(TAKEN):
        return name
    own = f"extra_logs/{name}"
    if "names" not in _told:
        _told.add("names")
        notice(f'A response has "extra_logs" with {name!r}, a name that is in the log already: it is logged as {own}')
    return own


def _no_figures(extra_logs: object) -> str | None:
    """What of `extra_logs` OpenRLHF cannot log; None if it can log all."""
    if not isinstance(extra_logs, Mapping):
        return f'"extra_logs" as a {type(extra_logs).__name__} and no dict'
    for name, value in extra_logs.items():
        if _figure(value) is None:
            return f'"extra_logs" with {name!r} as a {type(value).__name__} and no number'
    return None


def _figure(value: object) -> float | None:
    """The number, of a tensor the first, as OpenRLHF logs it; None: there is none."""
    if isinstance(value, torch.Tensor) and value.numel() > 0:
        value = value.flatten()[0]
    number = only_number(value)
    return None if number is None else float(number)


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
    extra_logs = answer.get("extra_logs")
    return None if extra_logs is None else _no_figures(extra_logs)


def has_finite_reward(answer: Mapping | None) -> bool:
    """Whether an answer without a problem has a reward to train on."""
    reward = None if answer is None else only_number(answer["rewards"])
    return reward is not None and math.isfinite(reward)


def only_number(value: Any) -> Any:
    """The value if it is a number or a tensor with one, the only element of a list or array with one; else None."""
    while isinstance(value, np.ndarray) or (isinstance(value, (list, tuple)) and len(value) == 1):
        value = value.tolist() if isinstance(value, np.ndarray) else value[0]
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        return None
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, of a complex number
        return None
    return None if isinstance(value, (str, bytes)) else value


def _one_number(value: object) -> torch.Tensor:
    """(1,); a tensor that is one already stays what it is."""
    if isinstance(value, torch.Tensor) and value.shape == (1,):
        return value
    numbers = torch.as_tensor(value)
    if numbers.numel() != 1:
        raise ValueError(f"the reward of one response has the shape {tuple(numbers.shape)}: {WANTED}")
    return numbers.reshape(1)


def place_of(error: BaseException) -> str:
    """Where an exception was raised: "FILE, line N"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "an unknown line"


def _tell_once(who: str, error: Exception, prompt: str) -> None:
    if who in _told:
        return
    _told.add(who)
    said = " ".join(str(error).split())[:SHOWN]
    notice(
        f"The reward {who} raised {type(error).__name__}: {said} ({place_of(error)}) for the prompt "
        f"{prompt[:SHOWN]!r}; its response is left out of training, and so is every other for which it fails"
    )
