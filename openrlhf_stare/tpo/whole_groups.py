"""Where TPO keeps the K responses of a prompt together: the softmax of its loss is over all of them.

OpenRLHF drops a response's place in the rollout when it splits batches. Here a prompt's responses are next to each
other from the rollout to the rank, its buffer and its micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import openrlhf.trainer.ppo_utils.experience as experience
import torch

from openrlhf_stare.dealing import data_parallel_ranks


def balance_experiences(experiences: list, args: SimpleNamespace) -> list:
    """OpenRLHF's dealing of dynamic batches, which under TPO is group by group: a prompt's responses are all on one
    rank, next to each other. Without dynamic batches the chunks are contiguous and begin with a group anyway."""
    if args.policy_loss != "tpo":
        return experience.balance_experiences(experiences, args)
    ranks, size = data_parallel_ranks(args), args.rollout.n_samples_per_prompt
    places = [place for batch in experiences for place in batch.index]  # in the rollout; the split drops them
    responses = [response for batch in experiences for response in experience.split_experience_batch(batch)]
    responses = [responses[place] for place in torch.tensor(places).argsort().tolist()]
    groups = [range(start, start + size) for start in range(0, len(responses), size)]
    groups.sort(key=lambda group: sum(float(responses[place].total_length) for place in group))
    # There and back over the ranks, so that none gets the longest group of every turn.
    turns = [groups[start : start + ranks] for start in range(0, len(groups), ranks)]
    shares = zip(*(turn[:: (-1) ** number] for number, turn in enumerate(turns)), strict=True)
    return [
        experience.make_experience_batch([responses[place] for place in sorted(itertools.chain(*share))])
        for share in shares
    ]


def check_whole_groups(responses: list, size: int) -> None:
    """Look whether a rank's responses are `size` to each prompt, next to each other.

    Raises:
        RuntimeError: they are not.
    """
    groups = [responses[start : start + size] for start in range(0, len(responses), size)]
    if any(len(group) < size or any(each.prompts != group[0].prompts for each in group) for group in groups):
        raise RuntimeError(f"The {len(responses)} responses of this rank are not whole groups of {size} for a prompt")


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
