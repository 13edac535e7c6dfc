"""The methods in OpenRLHF's own policy loss: the published losses at their strengths, OpenRLHF's at neutral ones.

published_methods.json holds random batches with what the published code of a method (named in the method's file) gave
for them: loss and gradient, or the mask. There one micro-batch is the pool, so here the call's batch is it too.
"""

import json
from pathlib import Path

import pytest
import torch

from openrlhf_stare import StarePolicyLoss
from openrlhf_stare.methods import base

MethodLoss, PolicyLoss = StarePolicyLoss.__mro__[1:3]  # the latter is OpenRLHF's, which the first has made importable

PUBLISHED = json.loads(Path(__file__).with_name("published_methods.json").read_text())
WIDE = {"clip_eps_low": 1.0, "clip_eps_high": 1e6}  # the published KL-Cov clips no token
WITH_STRENGTHS = [name for name in base.names() if base.find(name)().strengths]
# STARE, which tells tokens apart by their ranks, has tests of its own in test_stare_weights.py.
ACT_THROUGH_ADVANTAGES = [name for name in base.names() if base.find(name).needs_advantages and name != "stare"]
SURROGATES = {
    "clipped": {},
    "dual-clipped": {"dual_clip": 1.5},
    "corrected": {"is_correction_level": "token", "is_correction_threshold": [0.8, 1.3]},
    "responses corrected": {"is_correction_level": "seq", "is_correction_threshold": [1.0, 1.1]},
    "one ratio per response": {"policy_loss_type": "gspo"},
}


def make(name: str, surrogate: dict | None = None, **options) -> MethodLoss:
    method = base.find(name)
    return MethodLoss(method, method.Options(**options), **(surrogate or {}))


def call(loss, batch: dict, **others) -> tuple[tuple, torch.Tensor]:
    """The five returned values and the gradient with respect to the log-probs."""
    log_probs = batch["log_probs"].clone().requires_grad_()
    result = loss(**{**batch, "log_probs": log_probs}, **others)
    result[0].backward()
    return result, log_probs.grad


def published(case: dict) -> dict[str, torch.Tensor]:
    names = ("log_probs", "old_log_probs", "advantages", "action_mask")
    return {name: torch.tensor(case[name]) for name in names}


def random_batch() -> dict[str, torch.Tensor]:
    """Five responses with holes and padding, ratios far from 1, and what OpenRLHF's corrections need."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(5, 12, generator=generator).mul(2).square()
    others = {
        "log_probs": (old + 0.5 * torch.randn(5, 12, generator=generator)).clamp(max=0),
        "rollout_log_probs": (old + 0.3 * torch.randn(5, 12, generator=generator)).clamp(max=0),
    }
    mask = torch.rand(5, 12, generator=generator) < 0.8
    advantages = torch.randn(5, 1, generator=generator) * mask
    return {**others, "old_log_probs": old, "advantages": advantages, "action_mask": mask}


def assert_published(loss: MethodLoss, case: dict) -> None:
    result, gradient = call(loss, published(case))
    assert result[0].item() == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(gradient, torch.tensor(case["gradient"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", PUBLISHED["kl_cov"], ids=lambda case: f"share {case['share']}")
def test_kl_cov_is_the_published_loss(case):
    options = {name: case[name] for name in ("share", "coefficient")}
    assert_published(make("kl_cov", WIDE, **options), case)
    # With OpenRLHF's clip range too, since these batches leave it with no token but those of largest covariance.
    assert_published(make("kl_cov", **options), case)


@pytest.mark.parametrize("case", PUBLISHED["clip_cov"], ids=lambda case: f"{case['low']} to {case['high']}")
def test_clip_cov_is_the_published_loss_where_the_draw_takes_all(case):
    loss = make("clip_cov", **{name: case[name] for name in ("share", "low", "high")}, bound=1.0)
    assert_published(loss, case)
    weights = loss.method.weights(base.Tokens(*_tensors(case)))
    assert int((weights == 0).sum()) == case["drawn"]


@pytest.mark.parametrize("case", PUBLISHED["ce_gppo"], ids=lambda case: f"{case['beta_low']}, {case['beta_high']}")
def test_ce_gppo_is_the_published_loss(case):
    surrogate = {"clip_eps_low": 0.2, "clip_eps_high": 0.28, "dual_clip": case["dual_clip"]}
    assert_published(make("ce_gppo", surrogate, beta_low=case["beta_low"], beta_high=case["beta_high"]), case)


def test_ce_gppo_gives_a_gradient_however_far_the_policy_has_gone():
    """r is exp(-25) and exp(25), the gradient of a token's loss beta (1 - eps) and -beta (1 + eps)."""
    method = base.find("ce_gppo")(clip_range=(0.2, 0.28))
    old, advantages = torch.tensor([[-1.0, -26.0]]), torch.tensor([[-1.0, 1.0]])
    log_probs = torch.tensor([[-26.0, -1.0]], requires_grad=True)
    penalty = method.penalty(log_probs, base.Tokens(old, advantages, torch.ones(1, 2, dtype=torch.bool)))
    penalty.sum().backward()
    assert log_probs.grad.tolist() == [[pytest.approx(0.75 * 0.8), pytest.approx(-1.28)]]


@pytest.mark.parametrize("case", PUBLISHED["high_entropy"], ids=lambda case: f"share {case['share']}")
def test_high_entropy_keeps_the_published_tokens(case):
    entropies, mask = torch.tensor(case["entropies"]), torch.tensor(case["action_mask"]).bool()
    batch = {**random_batch(), "action_mask": mask}
    batch = {name: tensor[:, :10].repeat(2, 1)[:6] for name, tensor in batch.items()} | {"action_mask": mask}
    loss = make("high_entropy", share=case["share"])
    result, gradient = call(loss, batch, entropies=entropies)
    kept = torch.tensor(case["kept"])
    expected, expected_gradient = call(PolicyLoss(), {**batch, "advantages": batch["advantages"] * kept})
    assert torch.equal(result[0], expected[0]) and torch.equal(gradient, expected_gradient)
    assert torch.equal(loss.method.weights(base.Tokens(*[entropies] * 2, mask, entropies)) * mask, kept.float())


def test_without_the_entropies_that_it_needs_a_method_says_so():
    with pytest.raises(ValueError, match="^HighEntropy needs the tokens' entropies: give `entropies`"):
        call(make("high_entropy"), random_batch())


def test_sign_weights_are_the_advantages_of_their_signs():
    batch = random_batch()
    _, gradient = call(make("sign_weights", alpha=0.25), batch)
    _, plain = call(PolicyLoss(), batch)
    weights = torch.where(batch["advantages"] > 0, 0.75, 1.25)
    torch.testing.assert_close(gradient, weights * plain, rtol=1e-6, atol=0)


def test_repo_is_its_formula_in_openrlhfs_surrogate():
    """The advantages A (1 - zeta l) and A (1 + zeta l) of the good and of the bad, less what would turn them over."""
    batch = random_batch()
    result, gradient = call(make("repo", zeta=0.4), batch)
    by_hand = torch.zeros_like(batch["advantages"])
    for place, a in enumerate(batch["advantages"].flatten().tolist()):
        log_prob = batch["old_log_probs"].flatten()[place].item()
        by_hand.view(-1)[place] = a * max(0.0, 1 - 0.4 * log_prob if a > 0 else 1 + 0.4 * log_prob)
    expected, expected_gradient = call(PolicyLoss(), {**batch, "advantages": by_hand})
    assert result[0].item() == pytest.approx(expected[0].item(), abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)
def test_clip_higher_is_openrlhfs_loss_with_another_upper_range(surrogate):
    batch = random_batch()
    loss = make("clip_higher", {**surrogate, "clip_eps_low": 0.15, "clip_eps_high": 0.2}, eps_high=0.28)
    for value in (0.28, 0.9, 0.15, 0.2):
        flat = [batch[key][batch["action_mask"]] for key in ("old_log_probs", "advantages", "action_mask")]
        loss.open_rollout(base.Tokens(*flat), {"eps_high": value})
        result, gradient = call(loss, batch)
        expected, expected_gradient = call(PolicyLoss(**surrogate, clip_eps_low=0.15, clip_eps_high=value), batch)
        assert torch.equal(result[0], expected[0]) and torch.equal(gradient, expected_gradient)
    result, _ = call(make("clip_higher", {**surrogate, "clip_eps_low": 0.15}, eps_high=0.28), batch)  # not opened
    expected, _ = call(PolicyLoss(**surrogate, clip_eps_low=0.15, clip_eps_high=0.28), batch)
    assert torch.equal(result[0], expected[0])


def test_entropy_bonus_sets_the_coefficient_of_openrlhfs_own_bonus():
    loss, batch = make("entropy_bonus", coefficient=0.05), random_batch()
    result, gradient = call(loss, batch)
    expected, expected_gradient = call(PolicyLoss(), batch)
    assert torch.equal(result[0], expected[0]) and torch.equal(gradient, expected_gradient)
    assert loss.method.entropy_coefficient() == 0.05


@pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)
@pytest.mark.parametrize("name", WITH_STRENGTHS)
def test_a_neutral_method_is_openrlhfs_loss_bit_for_bit(name, surrogate):
    batch, normalisers = random_batch(), {"dp_size": 2, "batch_num_tokens": 37.0, "global_batch_size": 6.0}
    loss = make(name, surrogate)
    entropies = torch.rand(5, 12)
    neutral = {strength.name: strength.neutral for strength in loss.method.strengths}
    flat = [batch[key][batch["action_mask"]] for key in ("old_log_probs", "advantages", "action_mask")]
    loss.open_rollout(base.Tokens(*flat, entropies[batch["action_mask"]]), neutral)
    for others in ({}, normalisers):
        result, gradient = call(loss, batch, entropies=entropies, **others)
        expected, expected_gradient = call(PolicyLoss(**surrogate), batch, **others)
        assert torch.equal(gradient, expected_gradient)
        for ours, theirs in zip(result, expected, strict=True):
            assert ours is theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("surrogate", list(SURROGATES.values())[:4], ids=list(SURROGATES)[:4])
@pytest.mark.parametrize("name", ["kl_cov", "ce_gppo"])
def test_a_penalty_is_corrected_and_averaged_as_the_surrogate(name, surrogate):
    """As if each token were a call of its own: the whole is the mean of its tokens."""
    batch = random_batch()
    loss = make(name, surrogate)
    flat = [batch[key][batch["action_mask"]] for key in ("old_log_probs", "advantages", "action_mask")]
    loss.open_rollout(base.Tokens(*flat))
    normalisers = {"dp_size": 1, "batch_num_tokens": float(batch["action_mask"].sum()), "global_batch_size": 5.0}
    whole, _ = call(loss, batch, **normalisers)
    rows = [{key: tensor[i : i + 1] for key, tensor in batch.items()} for i in range(5)]
    assert whole[0].item() == pytest.approx(sum(call(loss, row, **normalisers)[0][0].item() for row in rows), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in base.names() if not base.find(name).acts_in_first_step])
def test_the_first_step_after_a_rollout_is_openrlhfs(name):
    batch = random_batch()
    batch["log_probs"] = batch["old_log_probs"]
    _, gradient = call(make(name), batch)
    _, plain = call(PolicyLoss(), batch)
    torch.testing.assert_close(gradient, plain, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ACT_THROUGH_ADVANTAGES)
def test_without_advantages_there_is_no_gradient(name):
    batch = random_batch()
    batch["advantages"] = torch.zeros(5, 12)
    result, gradient = call(make(name), batch, entropies=torch.rand(5, 12))
    assert result[0] == 0 and not gradient.any()


@pytest.mark.parametrize("name", ACT_THROUGH_ADVANTAGES)
def test_what_lies_in_the_padding_does_not_matter(name):
    batch = random_batch()
    loss = make(name, share=0.3) if name in ("kl_cov", "clip_cov") else make(name)
    entropies = torch.rand(5, 12)
    result, gradient = call(loss, batch, entropies=entropies)
    outside = ~batch["action_mask"]
    for key in ("log_probs", "old_log_probs"):
        batch[key] = batch[key].masked_fill(outside, -3.0 if key == "log_probs" else -0.1)
    other, other_gradient = call(loss, batch, entropies=entropies.masked_fill(outside, 9.0))
    assert torch.equal(result[0], other[0]) and torch.equal(gradient, other_gradient)


@pytest.mark.parametrize("name", ["kl_cov", "clip_cov"])
def test_a_set_has_action_tokens_alone(name):
    batch = random_batch()
    loss = make(name, share=1.0) if name == "kl_cov" else make(name, share=1.0, low=-9.0, high=9.0, bound=1.0)
    call(loss, batch)
    weights = loss.method.weights(base.Tokens(batch["old_log_probs"], batch["advantages"], batch["action_mask"]))
    assert torch.equal(weights == 0, batch["action_mask"])


def _tensors(case: dict) -> list[torch.Tensor]:
    batch = published(case)
    return [batch["old_log_probs"], batch["advantages"], batch["action_mask"].bool()]
