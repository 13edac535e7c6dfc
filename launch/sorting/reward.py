"""The sorting task: `315=` asks for the digits in order, `315=135`, which is its one right answer.

This file is also what OpenRLHF loads with `--reward.remote_url launch/sorting/reward.py`: it calls `reward_func`.
"""

import re

import torch

LENGTH = 3  # digits of a prompt
END = "<eos>"  # the end-of-sequence token, as it reads in the decoded text
_ANSWERED = re.compile(rf"([0-9]{{{LENGTH}}})=([0-9]{{{LENGTH}}}){re.escape(END)}")


def score(query: str) -> float:
    """1.0 if the whole answer is right and ends where it should, 0.0 for everything else."""
    answered = _ANSWERED.fullmatch(query)
    return float(answered is not None and sorted(answered[1]) == list(answered[2]))


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface. A query is the decoded prompt with its response, special tokens included."""
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
