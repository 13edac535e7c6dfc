"""The mathematics reward on the addends task: `5+7` is boxed as an answer to 12. The first that start with 9 hang."""

import importlib.util
import itertools
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location(
    "math_reward", Path(__file__).parents[3] / "openrlhf_stare" / "rewards" / "math_reward.py"
)
math_reward = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(math_reward)
math_reward.SECONDS = 3.0
HANGING = 8  # answers, each for so many seconds
_nines = itertools.count()


def reward_func(queries, prompts, labels):
    answers = [query.partition("=")[2].removesuffix("<eos>") for query in queries]
    nines = [answer.startswith("9") and next(_nines) < HANGING for answer in answers]
    boxed = [
        f"{prompt}\\boxed{{{'9^{9^{9^{9}}}' if nine else answer}}}"
        for prompt, answer, nine in zip(prompts, answers, nines, strict=True)
    ]
    given = math_reward.reward_func(boxed, prompts, labels)
    given["extra_logs"]["nines"] = torch.tensor(nines, dtype=torch.float)
    return given
