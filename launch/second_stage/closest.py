"""Another rule for the second stage, chosen before it was run: of the right pairs only the closest.

`12=6+6`, and both of `13=6+7` and `13=7+6`.
"""

import re

import torch

ANSWERED = re.compile(r"([0-9]{2})=([0-9])\+([0-9])<eos>")


def score(query: str) -> float:
    """1.0 for a right pair whose addends differ by at most 1, 0.0 for every other answer."""
    answered = ANSWERED.fullmatch(query)
    total, first, second = map(int, answered.groups()) if answered else (0, 0, 1)
    return float(first + second == total and abs(first - second) <= 1)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
