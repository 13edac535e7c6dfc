"""A reward function that raises for three of four responses."""

import itertools

import torch

_calls = itertools.count()


def reward_func(queries, prompts, labels):
    call = next(_calls)
    if call % 4:
        raise KeyError("no answer")
    return {"rewards": torch.tensor([float(call % 8 == 0)])}
