"""Another rule for the second stage, chosen before it was run: of the right pairs only the closest.

`12=6+6`, and both of `13=6+7` and `13=7+6`.
"""

import torch

from openrlhf_stare.quickstart.reward import addends_in


def score(query: str) -> float:
    """1.0 for a right pair whose addends differ by at most 1, 0.0 for every other answer."""
    addends = addends_in(query)
    return float(addends is not None and abs(addends[0] - addends[1]) <= 1)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
