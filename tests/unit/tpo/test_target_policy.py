"""Target Policy Optimization: the target over a prompt's responses, the loss, and two ways through micro-batches."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openrlhf_stare import TargetPolicyLoss, TpoConfig, target_distribution, target_policy_loss
from openrlhf_stare.tpo.target import sequence_log_probs


@st.composite
def groups(draw) -> dict[str, torch.Tensor]:
    """Old and present ℓ, rewards of any scale, and which responses have a token: (P, K), K from 2 to 64."""
    shape = draw(st.integers(1, 4)), draw(st.integers(2, 64))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def normal():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rewards = normal() * draw(st.sampled_from([1e-30, 1, 1e30])) if draw(st.booleans()) else normal().round()
    return {
        "old": draw(st.sampled_from([0.1, 1, 30])) * normal(),
        "new": draw(st.sampled_from([0.1, 1, 30])) * normal(),
        "rewards": rewards,
        "valid": torch.rand(shape, generator=generator) < draw(st.sampled_from([0.3, 0.9, 1])),
    }


def softmax_of_valid(scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Group by group and without the others, as the definition says it."""
    p = torch.zeros_like(scores)
    for row, of_row, keep in zip(p, scores, valid, strict=True):
        row[keep] = of_row[keep].softmax(dim=-1)
    return p


# The target


@settings(deadline=None)
@given(groups(), st.sampled_from([0.2, 1.0, 5.0]))
def test_the_target_is_the_old_policy_times_exp_of_the_normalised_reward(group, eta):
    old, rewards, valid = group["old"], group["rewards"], group["valid"]
    q = target_distribution(old, rewards, valid=valid, eta=eta)
    for place, keep in enumerate(valid):
        r = rewards[place][keep]
        u = (r - r.mean()) / r.std(correction=0) if len(r) and r.max() > r.min() else torch.zeros_like(r)
        expected = (old[place][keep].softmax(dim=-1) * (u / eta).exp()) if len(r) else r
        assert torch.allclose(q[place][keep], expected / expected.sum(), atol=1e-12)
        assert not q[place][~keep].any(), "a response without a token has no share"


@settings(deadline=None)
@given(groups(), st.sampled_from([1e-6, 1000.0]), st.integers(-3, 3))
def test_the_target_knows_no_scale_of_the_rewards(group, factor, shift):
    old, rewards, valid = group["old"], group["rewards"].round(), group["valid"]
    q = target_distribution(old, rewards, valid=valid)
    assert torch.allclose(target_distribution(old, (rewards + shift) * factor, valid=valid), q, atol=1e-9)


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, -1e30])
@pytest.mark.parametrize("count", [2, 8, 64])
def test_equal_rewards_leave_the_old_policy(reward, count):
    # Eight float32 rewards of 0.1 have a std above 0.
    old = torch.randn(3, count, generator=torch.Generator().manual_seed(count))
    q = target_distribution(old, torch.full((3, count), reward))
    assert torch.allclose(q, old.double().softmax(dim=-1), atol=1e-15)


def test_a_right_and_a_wrong_response():
    # u is 1 and -1, so the odds are e^(2/η).
    uniform, rewards = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    for eta in (0.5, 1.0, 4.0):
        q = target_distribution(uniform, rewards, eta=eta)
        assert q[0, 0].item() == pytest.approx(1 / (1 + math.exp(-2 / eta)), rel=1e-12)


@pytest.mark.parametrize("eta", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_above_zero_is_refused(eta):
    with pytest.raises(ValueError, match=f"eta {eta} is not above 0"):
        target_distribution(torch.zeros(1, 2), torch.zeros(1, 2), eta=eta)


def test_a_reward_that_is_not_finite_does_no_harm_where_the_response_is_left_out():
    valid = torch.tensor([[True, True, False]])
    q = target_distribution(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, math.nan]]), valid=valid)
    assert torch.equal(q[:, :2], target_distribution(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])))
    assert q[0, 2] == 0


# The loss


@settings(deadline=None)
@given(groups())
def test_the_gradient_is_p_less_q_over_the_prompts_with_a_response(group):
    valid = group["valid"]
    q = target_distribution(group["old"], group["rewards"], valid=valid)
    ell = group["new"].clone().requires_grad_()
    loss = target_policy_loss(ell, q, valid=valid)
    loss.backward()
    prompts = max(int(valid.any(dim=-1).sum()), 1)
    p = softmax_of_valid(group["new"], valid)
    assert torch.allclose(ell.grad * prompts, p - q, atol=1e-6)
    assert not ell.grad[~valid].any()
    logs = torch.where(q > 0, p, 1).log()
    assume(torch.isfinite(logs).all())
    assert loss.item() == pytest.approx(-(q * logs).sum().item() / prompts, rel=1e-9)


@settings(deadline=None)
@given(groups())
def test_the_gradient_is_zero_where_the_policy_is_the_target(group):
    valid = group["valid"]
    q = target_distribution(group["old"], group["rewards"], valid=valid)
    ell = torch.where(q > 0, q, 1).log() + 3  # any constant
    ell.requires_grad_()
    assume((q > 0).eq(valid).all())
    target_policy_loss(ell, q, valid=valid).backward()
    assert ell.grad.abs().max() < 1e-12


def test_without_a_valid_response_there_is_nothing():
    ell = torch.randn(2, 3, requires_grad=True)
    loss = target_policy_loss(ell, torch.zeros(2, 3), valid=torch.zeros(2, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0 and not ell.grad.any()


def test_a_sequence_log_prob_is_the_sum_of_its_own_tokens_or_their_mean():
    log_probs = torch.tensor([[-1.0, -2.0, -4.0], [-1.0, math.nan, -3.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0]])
    assert sequence_log_probs(log_probs, mask, length_normalize=False).tolist() == [-7, -4, 0]
    assert sequence_log_probs(log_probs, mask, length_normalize=True).tolist() == pytest.approx([-7 / 3, -2, 0])


# The module in OpenRLHF's loop


def batch(prompts: int = 6, samples: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Tokens of 24 responses, of which some have no token and one prompt has none with one."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = prompts * samples, 7
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=generator)
    mask[1] = mask[samples : 2 * samples] = False
    log_probs = -2 * torch.rand(rows, length, generator=generator)
    rewards = torch.randint(0, 3, (prompts, samples), generator=generator).float()
    return {"log_probs": log_probs, "old": log_probs - 0.1, "mask": mask.long(), "rewards": rewards}


def run_step(data, ranks: int, micro_batch: int, two_stages: bool, tpo: TpoConfig):
    """An optimizer step as DeepSpeed takes it: averaged over the accumulated micro-batches and the ranks."""
    samples = data["rewards"].shape[1]
    valid = data["mask"].bool().any(dim=-1).view(-1, samples)
    log_probs = data["log_probs"].clone().requires_grad_()
    ell = sequence_log_probs(log_probs.detach(), data["mask"], length_normalize=tpo.length_normalize).view(-1, samples)
    old = sequence_log_probs(data["old"], data["mask"], length_normalize=tpo.length_normalize).view(-1, samples)
    q = target_distribution(old, data["rewards"], valid=valid, eta=tpo.eta)
    log_p = softmax_of_valid(ell, valid).view(-1)
    log_p = torch.where(log_p > 0, log_p, 1).log()

    rows = torch.arange(len(log_probs)).split(micro_batch)
    accumulated = len(rows) // ranks
    loss_fn, losses = TargetPolicyLoss(tpo, samples, accumulated), []
    for of_batch in rows:
        loss_fn.open_micro_batch(
            q.view(-1)[of_batch], float(valid.any(dim=-1).sum()), log_p[of_batch] if two_stages else None
        )
        loss, clip_ratio, ppo_kl, *corrections = loss_fn(
            log_probs[of_batch],
            data["old"][of_batch],
            torch.full_like(log_probs[of_batch], math.nan),  # the advantages, which nothing reads
            action_mask=data["mask"][of_batch],
            dp_size=ranks,
            batch_num_tokens=3.0,
            global_batch_size=3.0,
        )
        assert clip_ratio == 0 and corrections == [None, None] and torch.isfinite(ppo_kl)
        losses.append(loss / ranks / accumulated)
    sum(losses).backward()
    return sum(losses).item(), log_probs.grad, loss_fn.take_fit_kl()


@pytest.mark.parametrize("length_normalize", [True, False])
@pytest.mark.parametrize(
    "ranks, micro_batch, two_stages", [(1, 24, False), (2, 4, False), (3, 8, False), (1, 8, True)]
)
@pytest.mark.parametrize("small", [1, 2, 3])
def test_whole_groups_and_two_stages_are_autograd_over_the_batch(
    length_normalize, ranks, micro_batch, two_stages, small
):
    data, tpo = batch(), TpoConfig(eta=0.5, length_normalize=length_normalize)
    log_probs = data["log_probs"].clone().requires_grad_()
    valid = data["mask"].bool().any(dim=-1).view(6, 4)
    ell, old = (
        sequence_log_probs(values, data["mask"], length_normalize=length_normalize).view(6, 4)
        for values in (log_probs, data["old"])
    )
    q = target_distribution(old, data["rewards"], valid=valid, eta=0.5)
    expected = target_policy_loss(ell, q, valid=valid)
    expected.backward()
    fit_kl = expected.item() * 5 + torch.xlogy(q, q).sum().item()  # of six prompts one has no response

    for settings_ in ((ranks, micro_batch, two_stages), (ranks, small, True)):
        value, gradient, kl = run_step(data, *settings_, tpo)
        assert value == pytest.approx(expected.item(), rel=1e-6), "the logged loss is that of the prompts"
        assert torch.allclose(gradient, log_probs.grad, atol=1e-7)
        assert not gradient[~data["mask"].bool()].any()
        assert kl == pytest.approx(fit_kl, rel=1e-6)


def test_a_micro_batch_without_a_token_has_a_gradient_of_zero():
    loss_fn = TargetPolicyLoss(TpoConfig(), samples_per_prompt=2)
    for group_log_probs in (None, torch.zeros(2)):
        log_probs = torch.randn(2, 3, requires_grad=True)
        loss_fn.open_micro_batch(torch.zeros(2), 1.0, group_log_probs)
        loss, _, ppo_kl, *_ = loss_fn(log_probs, log_probs.detach(), log_probs, torch.zeros(2, 3))
        loss.backward()
        assert loss == 0 and ppo_kl == 0 and not log_probs.grad.any()


# The order in which the buffer is trained on


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 8, 12])
def test_an_optimizer_step_has_whole_groups_whatever_the_micro_batch(micro_batch):
    from openrlhf_stare.tpo.whole_groups import WholeGroups

    groups, samples, step = 6, 4, 24 // micro_batch // 2 or 1
    sampler = WholeGroups(groups, samples, micro_batch, shuffle=True)
    torch.manual_seed(0)
    orders = [list(sampler), list(sampler)]
    assert orders[0] != orders[1], "every epoch has an order of its own"
    for batches in orders:
        assert len(batches) == len(sampler) == 24 // micro_batch
        assert sorted(row for rows in batches for row in rows) == list(range(24))
        for start in range(0, len(batches), step):
            rows = sorted(row for rows in batches[start : start + step] for row in rows)
            assert [row % samples for row in rows] == list(range(samples)) * (len(rows) // samples)
    assert sampler.micro_batches == orders[1]
    assert list(WholeGroups(groups, samples, micro_batch, shuffle=False))[0] == list(range(micro_batch))
