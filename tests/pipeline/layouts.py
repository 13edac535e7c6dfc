"""What holds where two ranks in a row have the same responses: shared by the tests with and without GPUs."""

from __future__ import annotations

import pytest
from harness import ActorGroup, fixed_experiences, tokens

from openrlhf_stare import surprisal_thresholds

BATCH = """--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2 --entropy.target 9
--policy_loss stare""".split()
# Packing is what OpenRLHF's ring attention slices.
LAYOUTS = {
    "ring attention": ["--ds.ring_attn_size", "2", "--ds.packing_samples"],
    "tensor parallel": ["--ds.tensor_parallel_size", "2", "--ds.zero_stage", "1"],
}


def assert_duplicated_ranks_count_once(group: ActorGroup) -> None:
    """The ranks of a pair get the same responses, and every token has its share in thresholds and figures once."""
    experiences = fixed_experiences()
    group.forward(experiences)
    group.append(experiences)
    held, everything = group.run("held"), [row.tolist() for e in experiences for row in e.sequences]
    assert held[::2] == held[1::2]
    assert [row for share in held[::2] for row in share] == everything

    statuses = group.run("fit")
    assert statuses == [statuses[0]] * group.ranks
    log_probs, advantages = tokens(experiences)
    taus = surprisal_thresholds(-log_probs, advantages, top_p_ratio=0.1)
    assert group.run("thresholds") == [tuple(float(tau) for tau in taus)] * group.ranks
    critical = (-log_probs >= taus[0]) & (advantages > 0)
    assert statuses[0]["stare/positive_reweight_ratio"] == pytest.approx(critical.double().mean().item())
