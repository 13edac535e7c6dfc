"""TPO's groups: the K responses of a prompt stay together on their way to a rank's buffer and micro-batches."""

import importlib

import pytest
import torch
from advantage_step import dealing_args
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    balance_experiences,
    make_experience_batch,
    split_experience_batch,
)

from openrlhf_stare.tpo.whole_groups import check_whole_groups

K, PROMPTS = 3, 12
LENGTHS = torch.randint(1, 100, (PROMPTS * K,), generator=torch.Generator().manual_seed(1)).float()


def rollout() -> list[Experience]:
    """Micro-batches of two responses each, in an order of their own, as OpenRLHF makes them of dynamic batches."""
    order = torch.randperm(PROMPTS * K, generator=torch.Generator().manual_seed(2))
    return [
        Experience(
            sequences=torch.ones(2, 2),
            attention_mask=torch.ones(2, 2),
            total_length=LENGTHS[rows],
            scores=rows,  # to tell them apart
            index=rows.tolist(),
            prompts=[f"prompt {row // K}" for row in rows.tolist()],
        )
        for rows in order.split(2)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_under_tpo_dynamic_batches_are_dealt_by_whole_groups_of_even_length(ranks):
    module = importlib.import_module("openrlhf.trainer.ppo_trainer")
    args = dealing_args(ranks=ranks, k=K, dynamic=True)
    dealt = {}
    for args.policy_loss in ("tpo", "stare"):
        dealt[args.policy_loss] = [batch.scores.tolist() for batch in module.balance_experiences(rollout(), args)]
    theirs = [batch.scores.tolist() for batch in balance_experiences(rollout(), args)]
    assert dealt["stare"] == theirs, "every other loss keeps OpenRLHF's way"
    assert sorted(number for share in dealt["tpo"] for number in share) == list(range(PROMPTS * K))
    for share in dealt["tpo"]:
        assert len(share) == PROMPTS * K // ranks
        assert share == sorted(share) and all(share[i] // K == share[i - i % K] // K for i in range(len(share)))
    totals = [float(LENGTHS[share].sum()) for share in dealt["tpo"]]
    assert max(totals) < 1.2 * min(totals)


def test_a_rank_s_buffer_has_the_responses_of_a_prompt_next_to_each_other_or_says_that_it_has_not():
    """By OpenRLHF's own way into the buffer and out of it."""
    module = importlib.import_module("openrlhf.trainer.ppo_trainer")
    args = dealing_args(ranks=2, k=K, dynamic=True)
    args.policy_loss = "tpo"
    for batch in module.balance_experiences(rollout(), args):
        items = split_experience_batch(batch)
        check_whole_groups(items, K)
        assert make_experience_batch(items[K : 2 * K]).prompts == items[K].prompts * K
        for wrong in (items[1:], items[:-1], [items[K], *items[1:K], items[0], *items[K + 1 :]]):
            with pytest.raises(RuntimeError, match=f"The {len(wrong)} responses of this rank are not whole groups of"):
                check_whole_groups(wrong, K)
