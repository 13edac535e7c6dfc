"""A rule of launch/sequence_study.sh: of the right pairs only the one with the largest first addend, `12=9+3`."""

import torch

from openrlhf_stare.quickstart.reward import addends_in


def score(query: str) -> float:
    """1.0 for `12=9+3<eos>`, 0.0 for every other answer to `12=`."""
    addends = addends_in(query)
    return float(addends is not None and addends[0] == min(9, sum(addends)))


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
