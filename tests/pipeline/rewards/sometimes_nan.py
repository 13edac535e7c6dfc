"""A reward function that fails now and then, as a division by zero in it would."""

import itertools

import torch

_calls = itertools.count(1)


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([float("nan") if next(_calls) % 20 == 0 else float(len(query) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
