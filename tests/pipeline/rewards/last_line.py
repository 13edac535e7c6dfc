"""The reward of the addends task for what is boxed below the last block: 0.5 for two digits, 1 for the right ones."""

import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "launch/addends"))
from reward import is_well_formed, score  # noqa: E402


def reward_func(queries, prompts, labels):
    answers = [
        prompt + re.sub(r"\\boxed\{(.*)\}", r"\1", query.rpartition("```\n")[2].removeprefix(prompt))
        for prompt, query in zip(prompts, queries, strict=True)
    ]
    rewards = torch.tensor([(is_well_formed(answer) + score(answer)) / 2 for answer in answers])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
