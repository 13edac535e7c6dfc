"""Groups of equal rewards: no advantage under STARE, where OpenRLHF's estimators leave rounding."""

import pytest
import torch
from advantage_step import (
    EVERY_ESTIMATOR,
    EVERY_OPTION,
    NAN,
    PROMPTS,
    UNGROUPED,
    K,
    eight_equal,
    estimate,
    make_rollout,
)

pytest_plugins = ["advantage_step"]  # its fixtures

# Rewards whose float32 mean over a group of four, or whose distance from it, is not exact.
EQUAL = {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1, 8: 0.7, 9: 0.7, 10: 0.7, 11: 0.7}


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7])
def test_eight_equal_rewards_are_noise_of_size_one_in_openrlhfs_group_norm_and_zero_under_stare(guarded, reward):
    rollout = eight_equal(reward)
    _, theirs = estimate(guarded, rollout, "group_norm", k=8)
    _, ours = estimate(guarded, rollout, "group_norm", k=8, policy_loss="stare")
    assert theirs["advantages"][:8].abs().max() > 0.5
    assert ours["advantages"][:8].eq(0).all()
    assert torch.equal(ours["advantages"][8:], theirs["advantages"][8:])


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_the_others_that_subtract_a_mean_leave_noise_with_a_sign_which_is_zero_under_stare(guarded, estimator):
    noise = 0.0
    for reward in (0.1, 0.3, 0.7):
        _, theirs = estimate(guarded, eight_equal(reward), estimator, k=8)
        _, ours = estimate(guarded, eight_equal(reward), estimator, k=8, policy_loss="stare")
        noise = max(noise, theirs["advantages"][:8].abs().max().item())
        assert ours["advantages"][:8].eq(0).all()
        assert torch.equal(ours["advantages"][8:], theirs["advantages"][8:])
    assert 0 < noise < 1e-6


def test_whitening_moves_all_groups_of_equal_rewards_alike(guarded):
    """`reinforce_baseline` also subtracts the mean over the rollout's tokens, which is no rounding."""
    _, ours = estimate(guarded, eight_equal(0.3), "reinforce_baseline", k=8, policy_loss="stare")
    moved = ours["advantages"][:8].unique()
    assert len(moved) == 1 and 0 < moved.abs() < 1
    nothing_to_learn = eight_equal(0.3)
    nothing_to_learn["rewards"][:] = 0.3
    _, ours = estimate(guarded, nothing_to_learn, "reinforce_baseline", k=8, policy_loss="stare")
    assert ours["advantages"].eq(0).all()


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_a_group_of_equal_rewards_keeps_its_kl_penalty(guarded, estimator):
    rollout = make_rollout(EQUAL)
    _, ours = estimate(guarded, rollout, estimator, policy_loss="stare")
    penalty = (-0.1 * rollout["kl"]).flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(ours["advantages"][:4], penalty[:4])


def test_length_penalties_come_before_the_question_whether_rewards_are_equal(guarded):
    rollout = make_rollout(EQUAL)
    rollout["truncated"] = torch.arange(PROMPTS * K) == 0
    _, ours = estimate(guarded, rollout, "group_norm", policy_loss="stare", stop_properly_penalty_coef=0.5)
    assert ours["info entropy/zero_variance_groups"].eq(1).all()


@EVERY_ESTIMATOR
def test_groups_of_equal_rewards_are_counted_and_single_responses_are_no_group(guarded, estimator):
    where = {"sizes": [3, 5, 4], "order": [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6], "policy_loss": "stare"}
    _, ours = estimate(guarded, make_rollout(EQUAL), estimator, **where)
    assert ours["info entropy/zero_variance_groups"].eq(2).all()
    # Of one group two equal rewards are left, of another one reward, of the third none.
    _, ours = estimate(
        guarded, make_rollout({**EQUAL, **dict.fromkeys([0, 1, 4, 5, 6, 7, 8, 9, 10], NAN)}), estimator, **where
    )
    assert ours["info entropy/zero_variance_groups"].eq(1).all()
    _, without = estimate(guarded, make_rollout(EQUAL), estimator)
    assert "info entropy/zero_variance_groups" not in without
    if estimator in UNGROUPED:
        _, single = estimate(guarded, make_rollout(EQUAL), estimator, k=1, policy_loss="stare")
        assert single["info entropy/zero_variance_groups"].eq(0).all()


@pytest.mark.parametrize("estimator", UNGROUPED)
@EVERY_OPTION
def test_estimators_without_groups_are_openrlhfs_there_too(openrlhf, guarded, estimator, options):
    _, ours = estimate(guarded, make_rollout(EQUAL), estimator, policy_loss="stare", **options)
    _, theirs = estimate(openrlhf, make_rollout(EQUAL), estimator, **options)
    assert torch.equal(ours["advantages"], theirs["advantages"])
