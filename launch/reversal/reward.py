"""The reversal task: `3141592=` asks for the digits in the other order, `3141592=2951413`.

This file is also what OpenRLHF loads with `--reward.remote_url launch/reversal/reward.py`: it calls `reward_func`.
"""

import re

import torch

LENGTH = 7  # digits of a prompt
END = "<eos>"  # the end-of-sequence token, as it reads in the decoded text
_ANSWERED = re.compile(rf"([0-9]{{{LENGTH}}})=([0-9]{{{LENGTH}}}){re.escape(END)}")


def score(query: str) -> float:
    """1.0 if the whole answer is right and ends where it should, 0.0 for everything else: no part counts."""
    answered = _ANSWERED.fullmatch(query)
    return float(answered is not None and answered[1] == answered[2][::-1])


def digits_right(query: str) -> float:
    """Share of the digits that are right in their places, for the log alone."""
    prompt, _, answer = query.removesuffix(END).partition("=")
    return sum(map(str.__eq__, prompt[::-1], answer)) / LENGTH


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface. A query is the decoded prompt with its response, special tokens included."""
    rewards = torch.tensor([score(query) for query in queries])
    right = torch.tensor([digits_right(query) for query in queries])
    # OpenRLHF logs every tensor in extra_logs, here as train/digits_right.
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"digits_right": right}}
