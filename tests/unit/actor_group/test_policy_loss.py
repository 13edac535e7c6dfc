"""StarePolicyLoss: OpenRLHF's own policy loss, unchanged, on the advantages ω·A."""

import inspect
import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch

from openrlhf_stare import (
    EntropyControl,
    EntropyController,
    StareOptions,
    StarePolicyLoss,
    policy_loss,
    token_weights,
)
from openrlhf_stare.methods.base import Method, Tokens

MethodLoss, PolicyLoss = StarePolicyLoss.__mro__[1:3]  # the latter is OpenRLHF's, which the first has made importable
MethodFailed = sys.modules[MethodLoss.__module__].MethodFailed

# Powers of two: multiplying by them rounds nothing, so gradients can be compared bit for bit.
EXACT = {"variant": "C2", "top_p_ratio": 0.3, "reweight_w": 2.0, "reweight_m": 0.5}
SURROGATES = {
    "clipped": {},
    "clipped higher": {"clip_eps_low": 0.1, "clip_eps_high": 0.3},
    "dual-clipped": {"dual_clip": 1.5},
    "corrected, tokens dropped": {"is_correction_level": "token", "is_correction_threshold": [0.8, 1.3]},
    "corrected, tokens clamped": {
        "is_correction_level": "token",
        "is_correction_mode": "clip",
        "is_correction_threshold": [0.8, 1.3],
    },
    "corrected, responses dropped": {"is_correction_level": "seq", "is_correction_threshold": [1.0, 1.1]},
    "corrected, tokens of high KL dropped": {
        "is_correction_level": "token",
        "is_correction_gating": "binary_kl",
        "is_correction_threshold": [0.0, 0.02],
    },
    "one ratio per response": {"policy_loss_type": "gspo"},
}
NORMALISERS = {"dp_size": 2, "batch_num_tokens": 37.0, "global_batch_size": 6.0}
ALL_SURROGATES = pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES.keys())
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def make_batch(dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Four responses: prompts, holes of tool output, padding; both signs and zeros; ratios far from 1."""
    generator = torch.Generator().manual_seed(7)

    def normal():
        return torch.randn(4, 9, generator=generator)

    log_probs = -(normal().abs() + 0.05) * 2
    old_log_probs = (log_probs + 0.5 * normal()).clamp(max=0)
    rollout_log_probs = (old_log_probs + 0.3 * normal()).clamp(max=0)
    advantages = normal()
    advantages[2, 4] = 0
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[:, 0] = mask[1, 4:6] = mask[2, 7:] = mask[3, :3] = 0
    values = {
        "log_probs": log_probs,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "rollout_log_probs": rollout_log_probs,
    }
    return {name: tensor.to(dtype) for name, tensor in values.items()} | {"action_mask": mask}


def call(loss, batch, **normalisers) -> tuple[tuple, torch.Tensor]:
    """The five returned values and the gradient with respect to the log-probs."""
    log_probs = batch["log_probs"].clone().requires_grad_()
    result = loss(**{**batch, "log_probs": log_probs}, **normalisers)
    result[0].backward()
    return result, log_probs.grad


def weights_seen(loss, log_probs, old_log_probs, advantages) -> list:
    """The weights that reached the tokens: the gradients of the loss over OpenRLHF's own."""
    names = ("log_probs", "old_log_probs", "advantages")
    batch = dict(zip(names, map(torch.tensor, (log_probs, old_log_probs, advantages)), strict=True))
    batch["action_mask"] = torch.ones_like(batch["log_probs"])
    _, ours = call(loss, batch)
    _, plain = call(PolicyLoss(), batch)
    return (ours / plain).tolist()


def shut(loss) -> None:
    """The gate of a high entropy."""
    controller = EntropyController(EntropyControl(), loss.method.strengths)
    loss.strengths = controller.update(9.0)
    assert controller.gate_on is False


def pool(log_probs, advantages) -> Tokens:
    log_probs, advantages = torch.as_tensor(log_probs).flatten(), torch.as_tensor(advantages).flatten()
    return Tokens(log_probs, advantages, torch.ones_like(log_probs, dtype=torch.bool))


def assert_same_bits(ours: tuple, theirs: tuple) -> None:
    assert len(ours) == len(theirs) == 5
    for own, other in zip(ours, theirs, strict=True):
        assert own is None and other is None or torch.equal(own, other)


# As a class


def test_a_notebook_needs_one_import():
    code = """
from openrlhf_stare import StarePolicyLoss, StareOptions
import torch
loss = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.5, reweight_w=1.5))
log_probs = torch.tensor([[-0.1, -0.2, -3.0, -4.0]])
print(round(loss(log_probs, log_probs, torch.ones(1, 4), torch.ones(1, 4))[0].item(), 6))
"""
    ours = ("OPENRLHF_STARE_CPU", "DS_ACCELERATOR")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "-1.25"  # the mean of 1, 1, 1.5, 1.5


def test_it_is_openrlhfs_loss_with_openrlhfs_options():
    assert PolicyLoss.__module__ == "openrlhf.models.loss"
    loss = StarePolicyLoss(stare=StareOptions(), dual_clip=3.0, token_level_loss=False)
    assert (loss.dual_clip, loss.token_level_loss) == (3.0, False)
    with pytest.raises(AssertionError, match="dual_clip"):
        StarePolicyLoss(stare=StareOptions(), dual_clip=0.5)


def test_arguments_may_be_given_by_position_and_by_name_as_openrlhf_takes_them():
    batch = make_batch()
    names = ("log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs")
    by_position = [*(batch[name] for name in names), *NORMALISERS.values()]
    loss = StarePolicyLoss(stare=StareOptions(reweight_w=1.0), **SURROGATES["corrected, tokens dropped"])
    plain = PolicyLoss(**SURROGATES["corrected, tokens dropped"])
    assert_same_bits(loss(*by_position), plain(*by_position))
    assert_same_bits(loss(**batch, **NORMALISERS), plain(*by_position))


def test_no_mask_means_every_token():
    log_probs, advantages = torch.tensor([[-0.1, -0.2, -3.0, -4.0]]), torch.ones(1, 4)
    loss = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.5, reweight_w=1.5))
    assert loss(log_probs, log_probs, advantages)[0].item() == pytest.approx(-1.25)


# Without weights: OpenRLHF, bit for bit


@ALL_SURROGATES
@BOTH_DTYPES
@pytest.mark.parametrize("token_mean", [True, False], ids=["token mean", "mean of responses"])
def test_with_the_gate_off_it_is_openrlhfs_bit_for_bit(surrogate, dtype, token_mean):
    options = {**surrogate, "token_level_loss": token_mean}
    loss = StarePolicyLoss(stare=StareOptions(**EXACT), **options)
    shut(loss)
    for normalisers in ({}, NORMALISERS):
        ours, own_gradient = call(loss, make_batch(dtype), **normalisers)
        theirs, gradient = call(PolicyLoss(**options), make_batch(dtype), **normalisers)
        assert_same_bits(ours, theirs)
        assert torch.equal(own_gradient, gradient)


@ALL_SURROGATES
@BOTH_DTYPES
def test_with_a_w_of_1_under_o1_it_is_openrlhfs_bit_for_bit(surrogate, dtype):
    loss = StarePolicyLoss(stare=StareOptions(reweight_w=1.0), **surrogate)
    ours, own_gradient = call(loss, make_batch(dtype), **NORMALISERS)
    theirs, gradient = call(PolicyLoss(**surrogate), make_batch(dtype), **NORMALISERS)
    assert_same_bits(ours, theirs)
    assert torch.equal(own_gradient, gradient)


# Weighting the advantage is weighting the loss of each token


def weights_of(batch, **options) -> torch.Tensor:
    config = StareOptions(**EXACT, **options)
    return token_weights(batch["old_log_probs"], batch["advantages"], batch["action_mask"], config=config)


def loss_of_each_token(plain, batch, **normalisers) -> torch.Tensor:
    """(B, A) what each token adds to OpenRLHF's loss: that loss with the advantages of all other tokens 0."""
    losses = []
    for token in range(batch["advantages"].numel()):
        advantages = torch.zeros_like(batch["advantages"])
        advantages.view(-1)[token] = batch["advantages"].view(-1)[token]
        losses.append(plain(**{**batch, "advantages": advantages}, **normalisers)[0])
    return torch.stack(losses).view_as(batch["advantages"])


def test_the_batch_reaches_every_branch_of_every_surrogate():
    batch = make_batch()
    losses = {PolicyLoss(**surrogate)(**batch)[0].item() for surrogate in SURROGATES.values()}
    assert len(losses) == len(SURROGATES)
    _, clip_ratio, *_ = PolicyLoss()(**batch)
    assert 0.1 < clip_ratio < 0.9
    for name, surrogate in SURROGATES.items():
        if name.startswith("corrected"):
            assert 0.05 < PolicyLoss(**surrogate)(**batch)[4] < 0.95, name
    assert {1.0, 2.0, 0.5} == set(weights_of(batch).flatten().tolist())


@ALL_SURROGATES
@BOTH_DTYPES
@pytest.mark.parametrize("token_mean", [True, False], ids=["token mean", "mean of responses"])
@pytest.mark.parametrize("normalisers", [{}, NORMALISERS], ids=["of the call", "of the step"])
def test_weighting_advantages_is_weighting_the_loss_of_each_token(surrogate, dtype, token_mean, normalisers):
    options = {**surrogate, "token_level_loss": token_mean}
    batch, tolerance = make_batch(dtype), 1e-5 if dtype == torch.float32 else 0.02
    (loss, *metrics), gradient = call(StarePolicyLoss(stare=StareOptions(**EXACT), **options), batch, **normalisers)

    log_probs = batch["log_probs"].clone().requires_grad_()
    per_token = loss_of_each_token(PolicyLoss(**options), {**batch, "log_probs": log_probs}, **normalisers)
    weighted = (weights_of(batch) * per_token.float()).sum()
    weighted.backward()
    torch.testing.assert_close(loss.float(), weighted, rtol=tolerance, atol=tolerance / 10)
    torch.testing.assert_close(gradient, log_probs.grad, rtol=tolerance, atol=tolerance / 10)

    # The metrics say how far the policies are apart, which no weight changes.
    _, clip_ratio, *distances = PolicyLoss(**options)(**batch, **normalisers)
    assert metrics[0] == clip_ratio
    assert_same_bits((None, None, *metrics[1:]), (None, None, *distances))


@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "one ratio per response"])
@BOTH_DTYPES
@pytest.mark.parametrize("token_mean", [True, False], ids=["token mean", "mean of responses"])
def test_the_gradient_of_each_token_is_multiplied_by_its_weight(name, dtype, token_mean):
    options, batch = {**SURROGATES[name], "token_level_loss": token_mean}, make_batch(dtype)
    _, gradient = call(StarePolicyLoss(stare=StareOptions(**EXACT), **options), batch)
    _, plain = call(PolicyLoss(**options), batch)
    assert torch.equal(gradient, weights_of(batch).to(dtype) * plain)


def test_one_ratio_per_response_leaves_the_mean_of_the_weights():
    log_probs = torch.tensor([[-1.0, -1.1, -1.2, -1.3, -1.4, -3.0]])
    batch = {"log_probs": log_probs, "old_log_probs": log_probs, "advantages": torch.ones(1, 6)}
    batch["action_mask"] = torch.ones(1, 6)
    loss = StarePolicyLoss(stare=StareOptions(reweight_w=3.0), policy_loss_type="gspo")
    _, gradient = call(loss, batch)
    _, plain = call(PolicyLoss(policy_loss_type="gspo"), batch)
    # Weights 1, 1, 1, 1, 1, 3 become 1.33 everywhere.
    torch.testing.assert_close(gradient / plain, torch.full((1, 6), 8 / 6))


# Which log-probs are ranked, against which pool

RISING, FALLING = [[-1.00, -1.01, -1.02, -1.03]], [[-1.03, -1.02, -1.01, -1.00]]
ONES = [[1.0, 1.0, 1.0, 1.0]]


def test_worked_example_through_the_loss():
    log_probs = [[-0.1, -0.2, -3.0, -4.0]]
    o1 = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.5, reweight_w=1.5))
    c2 = StarePolicyLoss(stare=StareOptions(variant="C2", top_p_ratio=0.5, reweight_w=1.5, reweight_m=0.5))
    signs = [[1.0, 1.0, -1.0, -1.0]]
    assert weights_seen(o1, log_probs, log_probs, ONES) == [[1, 1, 1.5, 1.5]]
    assert weights_seen(o1, log_probs, log_probs, signs) == [[1, 1.5, 1, 1]]
    assert weights_seen(c2, log_probs, log_probs, signs) == [[1, 1.5, 1, 0.5]]


def test_the_old_policy_is_ranked():
    loss = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.25, reweight_w=2.0))
    assert weights_seen(loss, FALLING, RISING, ONES) == [[1, 1, 1, 2]]


def test_an_opened_rollout_holds_for_all_calls():
    loss = StarePolicyLoss(stare=StareOptions(variant="C2", top_p_ratio=0.25, reweight_w=2.0, reweight_m=0.5))
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 1, 2]]  # until one is opened, the call is the pool
    loss.open_rollout(pool([-1.015, -1.025], [1.0, -1.0]))  # which are then the thresholds
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 2, 2]]
    assert weights_seen(loss, RISING, FALLING, ONES) == [[2, 2, 1, 1]]
    assert weights_seen(loss, RISING, RISING, [[-1.0, -1.0, -1.0, -1.0]]) == [[1, 1, 1, 0.5]]
    loss.open_rollout(pool([], []))
    assert weights_seen(loss, RISING, RISING, ONES) == ONES


def test_a_token_on_the_threshold_is_critical_however_the_batch_is_cut():
    loss = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.5, reweight_w=2.0))
    loss.open_rollout(pool(RISING, ONES))
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 2, 2]]
    for token, weight in enumerate([1, 1, 2, 2]):
        alone = [[RISING[0][token]]]
        assert weights_seen(loss, alone, alone, [[1.0]]) == [[weight]]


def test_the_controllers_w_and_m_are_the_ones_used():
    loss = StarePolicyLoss(stare=StareOptions(top_p_ratio=0.25, reweight_w=1.25))
    control = EntropyControl(schedule="adaptive", step=0.25, target=1.0)
    controller = EntropyController(control, loss.method.strengths)
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 1, 1.25]]
    loss.strengths = controller.update(0.5)
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 1, 1.5]]
    loss.open_rollout(pool(RISING, ONES), controller.update(0.5))
    assert weights_seen(loss, RISING, RISING, ONES) == [[1, 1, 1, 1.5]]  # w_max


# What another method may do


class Replaces(Method):
    """The loss of the second token becomes 3 · log π."""

    def weights(self, tokens):
        weights = torch.ones_like(tokens.log_probs)
        weights[:, 1] = 0
        return weights

    def penalty(self, log_probs, tokens):
        penalty = torch.zeros_like(log_probs)
        penalty[:, 1] = 3 * log_probs[:, 1]
        return penalty


@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "one ratio per response"])
@pytest.mark.parametrize("token_mean", [True, False], ids=["token mean", "mean of responses"])
def test_a_penalty_is_corrected_and_averaged_like_the_loss_of_a_token(name, token_mean):
    """3 · log π is what a token has as its loss whose advantage is -3 · log π at a ratio of 1."""
    options, batch = {**SURROGATES[name], "token_level_loss": token_mean}, make_batch()
    (loss, *metrics), gradient = call(MethodLoss(Replaces, **options), batch, **NORMALISERS)
    dropped = {**batch, "advantages": batch["advantages"].clone()}
    dropped["advantages"][:, 1] = 0
    (others, *_), of_others = call(PolicyLoss(**options), dropped, **NORMALISERS)
    log_probs = batch["log_probs"].clone().requires_grad_()
    alone = {**batch, "log_probs": batch["old_log_probs"], "advantages": torch.zeros_like(log_probs)}
    alone["advantages"][:, 1] = -3 * log_probs[:, 1]
    own = PolicyLoss(**options)(**alone, **NORMALISERS)[0]
    own.backward()
    torch.testing.assert_close(loss, others + own)
    torch.testing.assert_close(gradient, of_others + log_probs.grad)


def test_a_penalty_without_correction_is_the_mean_over_the_tokens():
    log_probs = torch.tensor([[-1.0, -2.0, -3.0, -4.0]], requires_grad=True)
    loss = MethodLoss(Replaces)(log_probs, log_probs.detach(), torch.ones(1, 4), torch.ones(1, 4))[0]
    assert loss.item() == pytest.approx((-1 - 6 - 1 - 1) / 4)
    loss.backward()
    assert log_probs.grad.tolist() == [[-0.25, 0.75, -0.25, -0.25]]


@ALL_SURROGATES
@BOTH_DTYPES
def test_a_method_that_does_nothing_is_openrlhfs_loss_bit_for_bit(surrogate, dtype):
    ours, own_gradient = call(MethodLoss(Method, **surrogate), make_batch(dtype), **NORMALISERS)
    theirs, gradient = call(PolicyLoss(**surrogate), make_batch(dtype), **NORMALISERS)
    assert_same_bits(ours, theirs)
    assert torch.equal(own_gradient, gradient)


def test_a_method_knows_the_clip_range_and_the_entropies_of_the_pass():
    class Sees(Method):
        def weights(self, tokens):
            self.seen = tokens.entropies

    loss, batch = MethodLoss(Sees, clip_eps_low=0.1, clip_eps_high=0.3), make_batch()
    entropies = torch.rand(4, 9)
    call(loss, batch, entropies=entropies)
    assert loss.method.clip_range == (0.1, 0.3)
    assert loss.method.seen is entropies


def test_openrlhfs_loss_keeps_each_argument_under_its_name():
    """The trainer makes a method's loss of the one that OpenRLHF made with the user's flags."""
    options = {
        "clip_eps_low": 0.1,
        "clip_eps_high": 0.3,
        "dual_clip": 3.0,
        "token_level_loss": False,
        "policy_loss_type": "gspo",
        "is_correction_level": "seq",
        "is_correction_mode": "mask",
        "is_correction_gating": "tv",
        "is_correction_threshold": [0.0, 1.4],
    }
    assert options.keys() == inspect.signature(PolicyLoss).parameters.keys()
    made = PolicyLoss(**options)
    assert {name: getattr(made, name) for name in options} == options


OWN_METHOD = """
import torch
from openrlhf_stare.methods.base import Method

class Mine(Method):
    def open_rollout(self, tokens, strengths, group):
        return {"mine/share": 1 / int(tokens.advantages.sum())}

    def weights(self, tokens):
        return torch.ones(3) * tokens.advantages
"""


def test_a_method_of_ones_own_that_raises_is_told_with_its_file_and_line(tmp_path):
    file = tmp_path / "mine_that_raises.py"
    file.write_text(OWN_METHOD)
    loss, batch = policy_loss(str(file)), make_batch()
    told = re.escape(
        f"--policy_loss {file} failed in line 7, in open_rollout (ZeroDivisionError: division by zero): fix"
    )
    with pytest.raises(MethodFailed, match=told):
        loss.open_rollout(pool([-1.0, -1.0], [1.0, -1.0]))
    loss.open_rollout(pool([-1.0], [1.0]))
    told = re.escape(f"--policy_loss {file} failed in line 10, in weights (RuntimeError: The size of tensor a (3)")
    with pytest.raises(MethodFailed, match=told):
        call(loss, batch)


def test_an_error_of_openrlhfs_loss_or_of_our_methods_keeps_its_words(tmp_path):
    loss = MethodLoss(Replaces)  # which is in no file of the user's own
    with pytest.raises(IndexError):
        loss(*[torch.zeros(1, 1)] * 4)


# What must not happen


@ALL_SURROGATES
@pytest.mark.parametrize("tokens_of_the_step", [37.0, 1.0], ids=["some elsewhere", "none, which the trainer makes 1"])
def test_a_micro_batch_without_a_token_adds_nothing(surrogate, tokens_of_the_step):
    batch = make_batch()
    batch["action_mask"] = torch.zeros_like(batch["action_mask"])
    normalisers = {"batch_num_tokens": tokens_of_the_step, "global_batch_size": tokens_of_the_step}
    for token_mean in (True, False):
        loss = StarePolicyLoss(stare=StareOptions(), token_level_loss=token_mean, **surrogate)
        (value, *_), gradient = call(loss, batch, **normalisers)
        assert value == 0 and torch.count_nonzero(gradient) == 0


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_tensors_are_left_as_they_are():
    batch = {}
    for name, tensor in make_batch().items():
        array = tensor.numpy()
        array.flags.writeable = False
        batch[name] = torch.from_numpy(array)
    loss = StarePolicyLoss(stare=StareOptions(**EXACT))
    call(loss, batch)
    loss.open_rollout(pool(batch["old_log_probs"], batch["advantages"]))
    call(loss, batch)
    for name, tensor in make_batch().items():
        assert torch.equal(batch[name], tensor), name


def test_nothing_is_drawn_from_torchs_global_generator():
    before = torch.get_rng_state()
    loss = StarePolicyLoss(stare=StareOptions(**EXACT))
    batch = make_batch()
    loss.open_rollout(pool(batch["old_log_probs"], batch["advantages"]))
    call(loss, batch)
    assert torch.equal(torch.get_rng_state(), before)


# The figures of a rollout

ROLLOUT = torch.tensor([-0.1, -0.2, -3.0, -4.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
C2 = {"variant": "C2", "top_p_ratio": 0.5, "reweight_w": 1.5, "reweight_m": 0.5}


def test_figures_of_a_rollout():
    loss = StarePolicyLoss(stare=StareOptions(**C2))
    by_hand = {
        "stare/tau_positive": 3.0,
        "stare/tau_negative": 1.0,
        "stare/positive_candidate_ratio": 4 / 6,
        "stare/negative_candidate_ratio": 1 / 6,
        "stare/positive_reweight_ratio": 2 / 6,
        "stare/negative_reweight_ratio": 1 / 6,
        "stare/mean_weight": (1 + 1 + 1.5 + 1.5 + 0.5 + 1) / 6,
    }
    assert loss.open_rollout(pool(*ROLLOUT)) == pytest.approx(by_hand)


def test_each_rollout_has_figures_of_its_own():
    used, fresh = (StarePolicyLoss(stare=StareOptions(**C2)) for _ in range(2))
    log_probs, advantages = ROLLOUT
    used.open_rollout(pool(3 * log_probs, -advantages))
    call(used, make_batch())
    assert used.open_rollout(pool(*ROLLOUT)) == fresh.open_rollout(pool(*ROLLOUT))


def test_figures_with_the_gate_off_say_that_nothing_is_reweighted():
    loss = StarePolicyLoss(stare=StareOptions(**C2))
    shut(loss)
    figures = loss.open_rollout(pool(*ROLLOUT))
    assert figures["stare/positive_reweight_ratio"] == figures["stare/negative_reweight_ratio"] == 0
    assert figures["stare/mean_weight"] == 1
    assert figures["stare/positive_candidate_ratio"] == pytest.approx(4 / 6)
    assert figures["stare/tau_positive"] == 3


def test_figures_without_a_token():
    figures = StarePolicyLoss(stare=StareOptions(**C2)).open_rollout(pool([], []))
    assert figures.pop("stare/tau_positive") == figures.pop("stare/tau_negative") == math.inf
    assert set(figures.values()) == {0}


def test_figures_are_plain_numbers():
    figures = StarePolicyLoss(stare=StareOptions(**C2)).open_rollout(pool(*ROLLOUT))
    assert json.loads(json.dumps(figures)) == figures


def test_the_methods_own_time_is_measured():
    loss = StarePolicyLoss(stare=StareOptions())
    call(loss, make_batch())
    assert 0 < loss.take_seconds() < 10
    assert loss.take_seconds() == 0
