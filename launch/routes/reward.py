"""The routes task: `a>k=` asks for a way from a to k in a graph of 40 nodes, every step along an edge.

The answer names the nodes after the first one: `a>k=fk` goes from a over f to k. Any way of at most five steps is
right, so most prompts have several right answers.

This file is also what OpenRLHF loads with `--reward.remote_url launch/routes/reward.py`: it calls `reward_func`.
"""

import random
import re

import torch

NODES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
DEGREE, MOST_STEPS = 5, 5
END = "<eos>"  # the end-of-sequence token, as it reads in the decoded text
_draw = random.Random(40)  # one graph for all seeds
EDGES = {node: _draw.sample([other for other in NODES if other != node], DEGREE) for node in NODES}
_ANSWERED = re.compile(rf"([a-zA-N])>([a-zA-N])=([a-zA-N]{{1,{MOST_STEPS}}}){re.escape(END)}")


def routes(start: str, end: str, steps: int) -> list[str]:
    """All ways from start to end in so many steps: the nodes after the first one."""
    if steps == 1:
        return [end] if end in EDGES[start] else []
    return [node + rest for node in EDGES[start] for rest in routes(node, end, steps - 1)]


def score(query: str) -> float:
    """1.0 for a way that ends where it should, 0.0 for everything else."""
    answered = _ANSWERED.fullmatch(query)
    if answered is None:
        return 0.0
    start, end, way = answered.groups()
    steps = zip(start + way, way, strict=False)
    return float(way[-1] == end and all(after in EDGES[before] for before, after in steps))


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface. A query is the decoded prompt with its response, special tokens included."""
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
