"""How OpenRLHF shares a rollout out among the ranks: arithmetic on its nested arguments, without a framework."""

from __future__ import annotations

import math
from types import SimpleNamespace


def dealing_unit(args: SimpleNamespace, whole_steps: bool) -> int:
    """Of how many responses, or a multiple of it, a rollout must be for equal shares of whole prompt groups, and with
    `whole_steps` for whole optimizer steps too."""
    ranks = data_parallel_ranks(args)
    # One rank takes anything. With dynamic batches responses are dealt one by one, otherwise in whole micro-batches,
    # a contiguous chunk of them to each rank.
    dealt = ranks if args.train.dynamic_batch_enable else ranks * args.rollout.micro_batch_size
    unit = 1 if ranks == 1 else dealt
    if whole_steps:
        unit = math.lcm(unit, args.train.batch_size)
    return math.lcm(unit, args.rollout.n_samples_per_prompt)


def data_parallel_ranks(args: SimpleNamespace) -> int:
    """How many ranks of the actor hold responses of their own."""
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node // args.ds.ring_attn_size
    return ranks // args.ds.tensor_parallel_size
