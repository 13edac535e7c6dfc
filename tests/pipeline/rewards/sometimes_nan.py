"""A reward function that fails for one of a prompt's four responses, as a division by zero in it would."""

import itertools

import torch

_calls: dict[str, itertools.count] = {}  # prompt -> its calls so far


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([_reward(query, prompt) for query, prompt in zip(queries, prompts, strict=True)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


def _reward(query: str, prompt: str) -> float:
    if next(_calls.setdefault(prompt, itertools.count())) % 4 == 0:
        return float("nan")
    return float(sum(map(ord, query)) % 2)
