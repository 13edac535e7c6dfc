"""SR-GRPO's advantage, against its definition."""

import pytest
import torch
from advantage_step import (
    EVERY_OPTION,
    INF,
    NAN,
    PROMPTS,
    UNEVEN,
    K,
    assert_lost,
    eight_equal,
    estimate,
    kept_of,
    make_rollout,
    only,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_stare import SrGrpoConfig, soft_advantage

pytest_plugins = ["advantage_step"]  # its fixtures

GROUPS = st.integers(2, 64).flatmap(
    lambda k: st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=k, max_size=k), min_size=1, max_size=4)
)


def by_definition(rewards: list[float], tau: float) -> float:
    """A_soft of one group, in the letters of the definition."""
    r = torch.tensor(rewards, dtype=torch.float64)
    z = (r - r.mean()) / (r.std() + 1e-5)
    w = (z / tau).exp() / (z / tau).exp().sum()
    return (w * r).sum().item()


@settings(deadline=None)
@given(groups=GROUPS, tau=st.floats(0.1, 10))
def test_it_is_the_definition_group_by_group(groups, tau):
    soft = soft_advantage(torch.tensor(groups, dtype=torch.float64), tau=tau)
    for row, rewards in zip(soft, groups, strict=True):
        expected = torch.full((len(rewards),), by_definition(rewards, tau), dtype=torch.float64)
        torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-9 * max(map(abs, rewards)))


@settings(deadline=None)
@given(groups=GROUPS)
def test_it_lies_between_the_mean_and_the_best_reward(groups):
    rewards = torch.tensor(groups, dtype=torch.float64)
    slack = 1e-9 * rewards.abs().max()
    soft = soft_advantage(rewards)
    assert (soft <= rewards.max(dim=-1, keepdim=True).values + slack).all()
    assert (soft >= rewards.mean(dim=-1, keepdim=True) - slack).all()


def test_a_group_worked_by_hand():
    # mean 0.25, sample std 0.5, z = -0.5, -0.5, -0.5, 1.5; w of the best = e^3 / (e^3 + 3 e^-1)
    soft = soft_advantage(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    torch.testing.assert_close(soft, torch.full((1, 4), 0.9479), rtol=0, atol=1e-4)


def test_small_tau_gives_the_best_reward_and_large_tau_the_mean():
    rewards = torch.tensor([[0.0, 0.2, 0.4, 1.0], [-3.0, -2.0, -1.0, -2.0]])
    torch.testing.assert_close(soft_advantage(rewards, tau=1e-3)[:, 0], torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(soft_advantage(rewards, tau=1e6)[:, 0], rewards.mean(dim=-1))


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.3, 0.7, 1.0, -2.3])
def test_equal_rewards_give_exactly_that_reward(reward):
    rewards = torch.full((1, 8), reward)
    assert torch.equal(soft_advantage(rewards), rewards)


def test_a_response_left_out_is_as_if_it_were_not_there():
    rewards = torch.tensor([[0.5, torch.nan, 1.0, 0.0], [torch.inf, 2.0, torch.nan, torch.nan], [torch.nan] * 4])
    soft = soft_advantage(rewards, valid=rewards.isfinite())
    torch.testing.assert_close(soft[0], soft_advantage(torch.tensor([[0.5, 1.0, 0.0]]))[0, :1].expand(4))
    assert soft[1].eq(2.0).all()
    assert soft[2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_any_type_of_rewards_gives_at_least_float32(dtype):
    soft = soft_advantage(torch.tensor([[0, 1, 1, 0]]).to(dtype))
    assert soft.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(soft.double(), soft_advantage(torch.tensor([[0.0, 1.0, 1.0, 0.0]])).double())


@pytest.mark.parametrize("tau", [0, -1, float("nan"), float("inf")])
def test_a_temperature_that_cannot_be_is_refused(tau):
    for function in (SrGrpoConfig, lambda tau: soft_advantage(torch.zeros(1, 2), tau=tau)):
        with pytest.raises(ValueError, match=rf"^tau {tau} is (outside \(0, inf\)|not a finite number): give one"):
            function(tau=tau)


@pytest.mark.parametrize(
    "rewards, valid", [(torch.zeros(4), None), (torch.zeros(2, 4), torch.ones(2, 3, dtype=torch.bool))]
)
def test_shapes_that_are_not_prompts_by_responses_are_refused(rewards, valid):
    with pytest.raises(ValueError, match=r"give both as \(P, K\)"):
        soft_advantage(rewards, valid=valid)


# As one of OpenRLHF's estimators


@EVERY_OPTION
@pytest.mark.parametrize("loss", ["openrlhf", "stare"])
@pytest.mark.parametrize(
    "lost", [{}, UNEVEN, {**UNEVEN, 0: NAN, 1: NAN, 2: NAN, 3: NAN}], ids=["none", "some", "group"]
)
def test_sr_grpo_spreads_the_soft_reward_of_a_group_with_openrlhfs_penalties(openrlhf, guarded, options, loss, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, "sr_grpo", tau=0.3, policy_loss=loss, **options)
    # The rewards after OpenRLHF's length penalties; of one group at a time, without the lost.
    penalised = estimate(openrlhf, only(rollout, kept), "reinforce", k=1, **options)[1]["rewards"]
    soft = torch.empty(len(kept))
    for prompt in range(PROMPTS):
        rows = torch.tensor([response // K == prompt for response in kept])
        if rows.any():
            soft[rows] = soft_advantage(penalised[rows].unsqueeze(0), tau=0.3).squeeze(0)
    low, high = options.get("clip_range", (-INF, INF))
    mask, kl = rollout["action_mask"][kept], rollout["kl"][kept]
    after = mask.flip(-1).cumsum(-1).flip(-1).bool()  # positions up to the last token
    expected = soft.clamp(low, high).unsqueeze(-1) * after - 0.1 * kl.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(ours["advantages"][kept][mask.bool()], expected[mask.bool()])
    assert_lost(ours, rollout, lost)
    # One number for the whole rollout, so that OpenRLHF's mean over the responses is that number.
    for name, value in (("mean", soft.mean()), ("std", soft.std(correction=0))):
        torch.testing.assert_close(ours[f"info soft_advantage_{name}"], value.expand(PROMPTS * K))


def test_sr_grpo_pushes_up_every_response_of_a_solved_prompt(guarded):
    rollout = eight_equal(1.0)
    _, ours = estimate(guarded, rollout, "sr_grpo", k=8, policy_loss="stare")
    assert ours["advantages"][:8][rollout["action_mask"][:8].bool()].eq(1).all()
    assert ours["info entropy/zero_variance_groups"].eq(1).all()


def test_sr_grpo_takes_micro_batches_in_any_order_and_logs_openrlhfs_std(openrlhf, guarded):
    rollout = make_rollout()
    _, in_order = estimate(guarded, rollout, "sr_grpo")
    order = [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]
    _, shuffled = estimate(guarded, rollout, "sr_grpo", sizes=[1, 5, 2, 4], order=order)
    assert in_order.keys() == shuffled.keys()
    for name, values in in_order.items():
        assert torch.equal(shuffled[name], values)
    _, theirs = estimate(openrlhf, rollout, "dr_grpo")
    assert torch.equal(in_order["info group_reward_std"], theirs["info group_reward_std"])
    assert torch.equal(in_order["rewards"], rollout["rewards"])
