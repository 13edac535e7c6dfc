"""Where TPO keeps the K responses of a prompt together: the softmax of its loss is over all of them.

OpenRLHF drops a response's place in the rollout when it splits batches. Here each response carries its number, and a
prompt's responses are K numbers in a row, from the rollout to the rank, its buffer and its micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openrlhf.trainer.ppo_utils.experience as experience
import torch

from openrlhf_stare.dealing import data_parallel_ranks


def number_of(response: Any) -> int:
    """The response's number in the rollout, which `rollout/experience_maker.py` put there under TPO.

    It is in the field `scores`, which has served its purpose (dynamic filtering) by then. OpenRLHF's batches and
    buffers keep that field and its trainer does not log it; every other field is dropped, logged or needed.
    """
    return int(response.scores)


def balance_experiences(experiences: list, args: SimpleNamespace) -> list:
    """OpenRLHF's dealing of dynamic batches, which under TPO is group by group: a prompt's responses are all on one
    rank. Without dynamic batches the chunks are contiguous and begin with a group anyway."""
    if args.policy_loss != "tpo":
        return experience.balance_experiences(experiences, args)
    ranks, size = data_parallel_ranks(args), args.rollout.n_samples_per_prompt
    responses = [response for batch in experiences for response in experience.split_experience_batch(batch)]
    responses.sort(key=number_of)
    groups = [responses[start : start + size] for start in range(0, len(responses), size)]
    groups.sort(key=lambda group: sum(float(response.total_length) for response in group))
    # There and back over the ranks, so that none gets the longest group of every turn.
    turns = [groups[start : start + ranks] for start in range(0, len(groups), ranks)]
    shares = zip(*(turn[:: (-1) ** place] for place, turn in enumerate(turns)), strict=True)
    return [experience.make_experience_batch(list(itertools.chain(*share))) for share in shares]


class WholeGroups:
    """A sampler of micro-batches from a buffer that has its groups one after the other.

    It goes through the groups in an order of its own each time, so that an optimizer step of so many responses has
    whole groups.
    """

    def __init__(self, groups: int, samples_per_prompt: int, micro_batch: int, shuffle: bool) -> None:
        self.rows = torch.arange(groups * samples_per_prompt).view(groups, samples_per_prompt)
        self.micro_batch, self.shuffle = micro_batch, shuffle
        self.micro_batches: list[list[int]] = []  # of the epoch that is under way

    def __len__(self) -> int:
        return self.rows.numel() // self.micro_batch

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows[torch.randperm(len(self.rows))] if self.shuffle else self.rows
        self.micro_batches = [batch.tolist() for batch in rows.flatten().split(self.micro_batch)]
        return iter(self.micro_batches)
