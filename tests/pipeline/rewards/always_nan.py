"""A reward function that never gives a number."""

import torch


def reward_func(queries, prompts, labels):
    rewards = torch.full((len(queries),), float("nan"))
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
