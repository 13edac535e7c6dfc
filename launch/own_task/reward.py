"""The reward of your own task. Here: `bdf=` asks for five different letters in order, with b, d and f among them, so
that `bdf=abdef` and `bdf=bcdfg` are both right.

The contract. OpenRLHF loads this file (`--reward.remote_url`) and calls `reward_func` with lists of one length:
- `queries`: the prompt with its response, as one text, special tokens such as the end of the sequence included;
- `prompts`: the prompt alone, as the model got it; the response is `query[len(prompt):]`;
- `labels`: what the prompt's line has under `--data.label_key`; this task needs none.
It returns a tensor `rewards` with a number for each response, and `scores`, the same for the log; tensors in
`extra_logs` are logged as well. A reward that is not finite leaves the response out of training. Never raise for what
a model wrote: give it 0.
"""

import re

import torch

LETTERS = "abcdefghij"
GIVEN, WANTED = 3, 5
END = "<eos>"  # the end-of-sequence token, as it reads in the decoded text; your model's is tokenizer.eos_token


def score(query: str) -> float:
    """1.0 for a right answer that ends where it should, 0.0 for everything else."""
    answered = re.fullmatch(rf"([a-j]{{{GIVEN}}})=([a-j]{{{WANTED}}}){re.escape(END)}", query)
    if answered is None:
        return 0.0
    given, answer = answered.groups()
    return float(list(answer) == sorted(set(answer)) and set(given) <= set(answer))


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface, see above."""
    rewards = torch.tensor([score(query) for query in queries])
    in_order = torch.tensor([float(list(answer := answer_of(query)) == sorted(answer)) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"in_order": in_order}}


def answer_of(query: str) -> str:
    return query.partition("=")[2].removesuffix(END)
