"""Responses whose reward or advantage is not finite: left out, and nothing else changes."""

from dataclasses import fields

import pytest
import torch
from advantage_step import (
    EVERY_ESTIMATOR,
    EVERY_OPTION,
    GROUPED,
    INF,
    NAN,
    PROMPTS,
    UNEVEN,
    UNGROUPED,
    K,
    assert_lost,
    estimate,
    kept_of,
    make_rollout,
    only,
)

from openrlhf_stare.rollout import experience_maker
from openrlhf_stare.rollout.failing_rewards import RewardsFail

pytest_plugins = ["advantage_step"]  # its fixtures


@pytest.fixture
def warnings(monkeypatch):
    messages = []
    monkeypatch.setattr(experience_maker, "notice", messages.append)
    return messages


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize(
    "lost",
    [{1: NAN, 4: INF, 11: -INF}, {0: NAN, 3: NAN, 5: INF, 6: -INF, 8: NAN, 10: NAN}],
    ids=["one of each group", "two of each group"],
)
def test_the_others_get_what_openrlhf_gives_when_the_lost_are_absent(openrlhf, guarded, estimator, options, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, estimator, **options)
    smaller_groups = len(kept) // PROMPTS
    _, absent = estimate(openrlhf, only(rollout, kept), estimator, k=smaller_groups, **options)
    for name in ("advantages", "returns", "rewards", "info reward", "info return", "info group_reward_std"):
        torch.testing.assert_close(ours[name][kept], absent[name], rtol=1e-5, atol=1e-6)
    assert_lost(ours, rollout, lost)


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize("lost", [UNEVEN, {**UNEVEN, 0: NAN, 1: NAN, 2: NAN, 3: NAN}], ids=["some", "a whole group"])
def test_groups_may_lose_different_numbers(openrlhf, guarded, estimator, options, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, estimator, **options)
    if estimator in UNGROUPED:
        _, absent = estimate(openrlhf, only(rollout, kept), estimator, k=1, **options)
        expected = absent["advantages"]
    else:
        # Group by group, without the whitening over the batch, which `reinforce_baseline` adds to `dr_grpo`.
        groups = [[r for r in kept if r // K == prompt] for prompt in range(PROMPTS)]
        plain = "dr_grpo" if estimator == "reinforce_baseline" else estimator
        separate = [
            estimate(openrlhf, only(rollout, group), plain, k=len(group), **options)[1] for group in groups if group
        ]
        expected = torch.cat([results["advantages"] for results in separate])
        if estimator == "reinforce_baseline":
            tokens = expected[rollout["action_mask"][kept].bool()]
            deviation = 1 if options.get("no_std_norm") else tokens.std(correction=0)
            expected = (expected - tokens.mean()) / deviation
    torch.testing.assert_close(ours["advantages"][kept], expected, rtol=1e-5, atol=1e-5)
    assert_lost(ours, rollout, lost)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_the_only_response_left_of_its_group_has_no_advantage(guarded, estimator):
    rollout = make_rollout({0: NAN, 1: NAN, 2: NAN})
    rollout["kl"].zero_()
    _, ours = estimate(guarded, rollout, estimator)
    assert ours["advantages"][3].abs().max() == 0
    assert ours["advantages"][4:].abs().max() > 0


@EVERY_ESTIMATOR
def test_micro_batches_may_be_uneven_and_in_any_order(guarded, estimator):
    """As dynamic batches are."""
    rollout = make_rollout(UNEVEN)
    _, in_order = estimate(guarded, rollout, estimator)
    order = [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]
    _, shuffled = estimate(guarded, rollout, estimator, sizes=[1, 5, 2, 4], order=order)
    assert in_order.keys() == shuffled.keys()
    for name, values in in_order.items():
        torch.testing.assert_close(shuffled[name], values, rtol=1e-5, atol=1e-6, equal_nan=True)


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize("loss", ["openrlhf", "stare"])
def test_finite_rewards_are_openrlhfs_bit_for_bit(openrlhf, guarded, warnings, estimator, options, loss):
    where = {"sizes": [3, 5, 4], "order": [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]}
    ours, _ = estimate(guarded, make_rollout(), estimator, policy_loss=loss, **where, **options)
    theirs, _ = estimate(openrlhf, make_rollout(), estimator, **where, **options)
    for own, other in zip(ours, theirs, strict=True):
        assert own.info.keys() - {"entropy/zero_variance_groups", "entropy/nonfinite_tokens"} == other.info.keys()
        pairs = [(own.info[name], other.info[name]) for name in other.info]
        names = {field.name for field in fields(own)} - {"info"}
        pairs += [(getattr(own, name), getattr(other, name)) for name in names]
        for a, b in pairs:
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert not [message for message in warnings if "left out" in message]


@EVERY_OPTION
def test_the_logged_reward_and_score_are_means_over_the_others(openrlhf, guarded, options):
    rollout, kept = make_rollout(UNEVEN), kept_of(UNEVEN)
    _, absent = estimate(openrlhf, only(rollout, kept), "reinforce", k=1, **options)
    _, ours = estimate(guarded, rollout, "reinforce", **options)
    for name in ("info reward", "info score", "info return"):
        torch.testing.assert_close(ours[name].mean(), absent[name].mean())


@pytest.mark.parametrize("lost", [{}, UNEVEN], ids=["none", "some"])
def test_a_figure_that_a_response_lacks_does_not_count_whoever_lacks_it(guarded, lost):
    given = torch.arange(12.0)
    figures = {"all": given, "some": given.clone(), "one": torch.full((12,), NAN), "none": torch.full((12,), NAN)}
    figures["some"][[2, 5]], figures["one"][7] = NAN, 7.0  # the 5th is also lost
    _, ours = estimate(guarded, make_rollout(lost), "group_norm", figures=figures)
    assert torch.equal(ours["info all"], given) and ours["info one"].eq(7).all() and ours["info none"].isnan().all()
    there = figures["some"].isfinite()
    assert torch.equal(ours["info some"][there], given[there])
    torch.testing.assert_close(ours["info some"].mean(), given[there].mean())


def test_a_response_without_an_action_token_does_not_count_in_the_means(openrlhf, guarded, warnings):
    """OpenRLHF's mean of its KL is 0 / 0."""
    rollout, others = make_rollout(), kept_of([3])
    rollout["action_mask"][3] = rollout["kl"][3] = 0
    kl = torch.arange(12.0)
    kl[3] = NAN
    _, ours = estimate(guarded, rollout, "group_norm", figures={"kl": kl})
    _, theirs = estimate(openrlhf, rollout, "group_norm")
    assert torch.equal(ours["advantages"], theirs["advantages"]) and warnings == []
    for name in ("info reward", "info score", "info return", "info group_reward_std"):
        torch.testing.assert_close(ours[name].mean(), theirs[name][others].mean())
    torch.testing.assert_close(ours["info kl"].mean(), kl[others].mean())


def test_the_warning_counts(guarded, warnings):
    estimate(guarded, make_rollout(UNEVEN), "group_norm", sizes=[6, 6])
    assert warnings == [
        "3 of 12 responses are left out of training: reward, KL estimate, log-prob of the reference, value or "
        "advantage is not finite"
    ]


def test_whole_number_rewards_and_bool_masks_will_do(openrlhf, guarded):
    rollout = make_rollout()
    rollout["rewards"], rollout["action_mask"] = torch.arange(12), rollout["action_mask"].bool()
    _, ours = estimate(guarded, rollout, "group_norm")
    _, theirs = estimate(openrlhf, rollout, "group_norm")
    assert torch.equal(ours["advantages"], theirs["advantages"])
    rollout["rewards"] = torch.where(torch.arange(12) == 1, NAN, torch.arange(12))
    _, ours = estimate(guarded, rollout, "group_norm")
    assert_lost(ours, rollout, [1])


def test_a_non_finite_advantage_of_finite_rewards_is_left_out_too(guarded):
    rollout = make_rollout({4: 3e38, 5: 3e38, 6: -1.0, 7: 2.0})  # their sum is beyond float32
    _, ours = estimate(guarded, rollout, "group_norm")
    assert ours["action_mask"][4:8].sum() == 0
    assert ours["info entropy/nonfinite_tokens"].eq(rollout["action_mask"][4:8].sum()).all()
    for name in ours.keys() - {"rewards"}:
        assert ours[name].isfinite().all(), name
    _, without = estimate(guarded, make_rollout({4: NAN, 5: NAN, 6: NAN, 7: NAN}), "group_norm")
    for others in (slice(0, 4), slice(8, 12)):
        torch.testing.assert_close(ours["advantages"][others], without["advantages"][others])


@pytest.mark.parametrize(
    "estimator, name", [*((estimator, "kl") for estimator in GROUPED + UNGROUPED), ("gae", "values")]
)
def test_a_response_whose_kl_or_value_is_not_finite_is_left_out_as_one_without_a_reward(guarded, estimator, name):
    rollout = make_rollout()
    rollout[name][5, 1] = NAN  # an action token
    _, ours = estimate(guarded, rollout, estimator)
    _, without = estimate(guarded, make_rollout({5: NAN}), estimator)
    assert torch.equal(ours["advantages"], without["advantages"])
    assert_lost(ours, rollout, [5])


@EVERY_ESTIMATOR
@pytest.mark.parametrize("value", [NAN, -INF])
def test_a_response_whose_log_prob_of_the_reference_is_not_finite_is_left_out_too(guarded, estimator, value):
    """Under `--algo.kl.use_loss`, where the KL estimate is made from it in training."""
    rollout = make_rollout()
    rollout["base_action_log_probs"] = -torch.rand(12, rollout["kl"].shape[1])
    rollout["base_action_log_probs"][5, 1] = value  # an action token
    experiences, ours = estimate(guarded, rollout, estimator, sizes=[6, 6])
    _, without = estimate(guarded, make_rollout({5: NAN}), estimator, sizes=[6, 6])
    assert torch.equal(ours["advantages"], without["advantages"])
    assert_lost(ours, rollout, [5])
    assert all(experience.base_action_log_probs.isfinite().all() for experience in experiences)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", ["kl", "base_action_log_probs", "values"])
def test_what_is_not_finite_at_no_action_token_changes_nothing(guarded, name, place):
    """Times a mask of 0 it would still be NaN, in the advantages or in the loss."""
    rollout = make_rollout()
    rollout["base_action_log_probs"] = torch.zeros_like(rollout["kl"])
    response = int(rollout["action_mask"][:, place].argmin())
    _, expected = estimate(guarded, rollout, "gae")
    rollout[name][response, place] = NAN
    [experience], ours = estimate(guarded, rollout, "gae")
    for each in expected:
        assert torch.equal(ours[each], expected[each]), each
    assert experience.base_action_log_probs.isfinite().all() and experience.values.isfinite().all()


@EVERY_ESTIMATOR
def test_a_rollout_without_any_finite_reward_ends_the_job_with_a_sentence(guarded, estimator):
    with pytest.raises(RuntimeError, match="None of the 12 responses .* finite reward .*: check the reward function"):
        estimate(guarded, make_rollout(dict.fromkeys(range(12), NAN)), estimator)


def test_a_rollout_of_which_most_have_no_finite_reward_counts_towards_the_end_of_the_job(guarded):
    half, most = ({response: NAN for response in range(count)} for count in (6, 7))
    estimate(guarded, make_rollout(half), "group_norm", stop_after=1)
    with pytest.raises(RewardsFail, match="in the last one 7 of 12"):
        estimate(guarded, make_rollout(most), "group_norm", stop_after=1)


def test_openrlhfs_functions_are_back_afterwards(openrlhf, guarded):
    estimate(guarded, make_rollout(UNEVEN), "group_norm")
    assert guarded.apply_length_penalties is openrlhf.apply_length_penalties
    assert guarded.compute_reward is openrlhf.compute_reward
