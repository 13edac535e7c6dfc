"""A reward function that has no reward for one of a prompt's four responses: NaN and an error, in turns."""

import itertools

import torch

_calls: dict[str, itertools.count] = {}  # prompt -> its calls so far


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([_reward(query, prompt) for query, prompt in zip(queries, prompts, strict=True)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"odd": rewards}}


def _reward(query: str, prompt: str) -> float:
    call = next(_calls.setdefault(prompt, itertools.count()))
    if call % 8 == 0:
        return 1 / 0
    if call % 4 == 0:
        return float("nan")
    return float(sum(map(ord, query)) % 2)
