"""A rule of launch/sequence_study.sh: of the right pairs those with an even first addend, `12=4+8`."""

import re

import torch

ANSWERED = re.compile(r"([0-9]{2})=([0-9])\+([0-9])<eos>")


def score(query: str) -> float:
    """1.0 for a right pair whose first addend is even, 0.0 for every other answer."""
    answered = ANSWERED.fullmatch(query)
    total, first, second = map(int, answered.groups()) if answered else (0, 0, 1)
    return float(first + second == total and first % 2 == 0)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
