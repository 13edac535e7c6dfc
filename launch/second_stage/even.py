"""A rule of launch/sequence_study.sh: of the right pairs those with an even first addend, `12=4+8`."""

import torch

from openrlhf_stare.quickstart.reward import addends_in


def score(query: str) -> float:
    """1.0 for a right pair whose first addend is even, 0.0 for every other answer."""
    addends = addends_in(query)
    return float(addends is not None and addends[0] % 2 == 0)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
