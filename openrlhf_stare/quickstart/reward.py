"""The addends task: `12=` asks for two digits that add up to 12, so `12=5+7` and `12=9+3` are both right.

This file is also what OpenRLHF loads with `--reward.remote_url`: it calls `reward_func`.
"""

import re

import torch

SMALLEST, LARGEST = 2, 16  # the totals that are asked for; each has at least three right answers
END = "<eos>"  # the end-of-sequence token, as it reads in the decoded text
_ANSWERED = re.compile(rf"([0-9]{{2}})=([0-9])\+([0-9]){re.escape(END)}")


def right_pairs(total: int) -> list[tuple[int, int]]:
    """All pairs of digits that add up to `total`."""
    return [(first, total - first) for first in range(10) if 0 <= total - first <= 9]


def is_well_formed(query: str) -> bool:
    """Whether prompt and response together read like `12=4+4<eos>`, right or wrong."""
    return _ANSWERED.fullmatch(query) is not None


def addends_in(query: str) -> tuple[int, int] | None:
    """The addends of a right answer that ends where it should; None for everything else."""
    answered = _ANSWERED.fullmatch(query)
    if answered is None:
        return None
    total, first, second = map(int, answered.groups())
    return (first, second) if first + second == total else None


def score(query: str) -> float:
    """1.0 for a right answer that ends where it should, 0.0 for everything else."""
    return float(addends_in(query) is not None)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface. A query is the decoded prompt with its response, special tokens included."""
    rewards = torch.tensor([score(query) for query in queries])
    well_formed = torch.tensor([float(is_well_formed(query)) for query in queries])
    # OpenRLHF logs every tensor in extra_logs, here as train/well_formed.
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"well_formed": well_formed}}
