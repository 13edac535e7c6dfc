"""TPO's groups: the K responses of a prompt stay together on their way to a rank's buffer and micro-batches."""

import importlib

import pytest
import torch
from advantage_step import PROMPTS, WIDTH, K, dealing_args, estimate, make_rollout
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    balance_experiences,
    make_experience_batch,
    split_experience_batch,
)


def test_under_tpo_the_responses_are_numbered_in_a_field_that_the_buffer_keeps_and_the_trainer_does_not_log():
    module = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")
    for policy_loss in ("tpo", "stare"):
        order = torch.randperm(PROMPTS * K, generator=torch.Generator().manual_seed(0)).tolist()
        experiences, _ = estimate(
            module, make_rollout(), "group_norm", sizes=[5, 7], order=order, policy_loss=policy_loss
        )
        numbers = [experience.scores for experience in experiences]
        if policy_loss == "stare":
            assert numbers == [None, None]
            continue
        assert torch.cat(numbers).tolist() == order
        # By OpenRLHF's own way into the buffer and out of it.
        for experience in experiences:
            experience.sequences = experience.attention_mask = torch.ones(len(experience.index), WIDTH + 1)
        items = [item for experience in experiences for item in split_experience_batch(experience)]
        assert make_experience_batch(items).scores.tolist() == order


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_under_tpo_dynamic_batches_are_dealt_by_whole_groups_of_even_length(ranks):
    k, prompts = 3, 12
    module = importlib.import_module("openrlhf.trainer.ppo_trainer")
    args = dealing_args(ranks=ranks, k=k, dynamic=True)
    lengths = torch.randint(1, 100, (prompts * k,), generator=torch.Generator().manual_seed(1)).float()
    responses = [
        Experience(sequences=torch.zeros(1, 2), total_length=lengths[i : i + 1], scores=torch.tensor([i]))
        for i in torch.randperm(prompts * k, generator=torch.Generator().manual_seed(2)).tolist()
    ]
    dealt = {}
    for args.policy_loss in ("tpo", "stare"):
        dealt[args.policy_loss] = [batch.scores.tolist() for batch in module.balance_experiences(responses, args)]
    theirs = [batch.scores.tolist() for batch in balance_experiences(responses, args)]
    assert dealt["stare"] == theirs, "every other loss keeps OpenRLHF's way"
    assert sorted(number for share in dealt["tpo"] for number in share) == list(range(prompts * k))
    for share in dealt["tpo"]:
        assert len(share) == prompts * k // ranks
        assert all(sorted(share)[i] // k == sorted(share)[i - i % k] // k for i in range(len(share)))
    totals = [float(lengths[share].sum()) for share in dealt["tpo"]]
    assert max(totals) < 1.2 * min(totals)
