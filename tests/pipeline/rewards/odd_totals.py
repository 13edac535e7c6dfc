"""A reward function under which dynamic filtering drops exactly the even totals, whose responses all get 0."""

import torch

SPREAD = {True: 0.75, False: 0.25}


def reward_func(queries, prompts, labels):
    odd = [int(label) % 2 for label in labels]
    first_digits = [query.partition("=")[2][:1] for query in queries]
    rewards = [SPREAD[digit in "13579"] * is_odd for digit, is_odd in zip(first_digits, odd, strict=True)]
    rewards = torch.tensor(rewards)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"odd_total": torch.tensor(odd, dtype=torch.float)}}
