"""Which tokens are ranked, which are entropy-critical, and what weight they get."""

import math

import numpy as np
import pytest
import torch

from openrlhf_stare.methods.stare import StareOptions, candidates, token_weights, weights_from_thresholds

WORKED_LOG_PROBS = torch.tensor([[-0.1, -0.2, -3.0, -4.0]])


def weights_of(log_probs, advantages, mask=None, gate_on=True, **options) -> list:
    log_probs, advantages = torch.as_tensor(log_probs), torch.as_tensor(advantages)
    mask = torch.ones_like(log_probs) if mask is None else torch.as_tensor(mask)
    weights = token_weights(log_probs, advantages, mask, config=StareOptions(**options), gate_on=gate_on)
    assert weights.dtype == torch.float32 and weights.shape == log_probs.shape
    return weights.tolist()


# The worked example of the specification


def test_worked_example_with_positive_advantages():
    weights = weights_of(WORKED_LOG_PROBS, torch.ones(1, 4), top_p_ratio=0.5, reweight_w=1.5)
    assert weights == [[1, 1, 1.5, 1.5]]


def test_worked_example_with_both_signs():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    weights = weights_of(WORKED_LOG_PROBS, advantages, top_p_ratio=0.5, reweight_w=1.5)
    assert weights == [[1, 1.5, 1, 1]]


def test_worked_example_under_c2():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    weights = weights_of(WORKED_LOG_PROBS, advantages, variant="C2", top_p_ratio=0.5, reweight_w=1.5, reweight_m=0.5)
    assert weights == [[1, 1.5, 1, 0.5]]


# Gate, W and M


def test_the_closed_gate_gives_ones_without_a_collective(monkeypatch):
    def no_collective(*args, **kwargs):
        raise AssertionError("a closed gate must not communicate")

    monkeypatch.setattr("openrlhf_stare.algorithms.selection.all_reduce_sums", no_collective)
    assert weights_of(WORKED_LOG_PROBS, torch.ones(1, 4), gate_on=False) == [[1, 1, 1, 1]]


def test_the_controllers_w_and_m_replace_the_configs():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    config = StareOptions(variant="C2", top_p_ratio=0.5)
    mask = torch.ones(1, 4, dtype=torch.bool)
    weights = token_weights(WORKED_LOG_PROBS, advantages, mask, config=config, reweight_w=2.0, reweight_m=0.25)
    assert weights.tolist() == [[1, 2, 1, 0.25]]
    weights = token_weights(WORKED_LOG_PROBS, advantages, mask, config=config, reweight_w=1.0)
    assert weights.tolist() == [[1, 1, 1, pytest.approx(0.9)]]


def test_weights_from_given_thresholds():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    found = candidates(WORKED_LOG_PROBS, advantages, torch.ones(1, 4))
    given = dict(config=StareOptions(variant="C2"), reweight_w=3.0, reweight_m=0.5)
    for taus in ((0.15, 3.5), (torch.tensor(0.15), torch.tensor(3.5))):
        weights = weights_from_thresholds(found, *taus, **given)
        assert weights.tolist() == [[1, 3, 1, 0.5]]
    empty = weights_from_thresholds(found, math.inf, math.inf, **given)
    assert empty.tolist() == [[1, 1, 1, 1]]


# The pool and the mask


def test_a_token_is_critical_against_the_batch_not_against_its_response():
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    assert weights_of(log_probs, torch.ones(2, 2), top_p_ratio=0.5, reweight_w=2) == [[1, 1], [2, 2]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
def test_prompt_tool_output_and_padding_never_take_part(dtype):
    log_probs = torch.tensor([[-50.0, -1.0, -60.0, -2.0, -70.0]])
    mask = torch.tensor([[0, 1, 0, 1, 0]]).to(dtype)
    assert weights_of(log_probs, torch.ones(1, 5), mask, top_p_ratio=0.5, reweight_w=2) == [[1, 1, 1, 2, 1]]
    # Also with P = 1, which selects every candidate, and with NaN in the holes.
    log_probs[mask == 0] = math.nan
    assert weights_of(log_probs, torch.ones(1, 5), mask, top_p_ratio=1.0, reweight_w=2) == [[1, 2, 1, 2, 1]]


def test_an_advantage_of_zero_is_never_selected():
    log_probs = torch.tensor([[-9.0, -1.0, -8.0]])
    advantages = torch.tensor([[0.0, 1.0, -0.0]])
    assert weights_of(log_probs, advantages, variant="C2", top_p_ratio=1.0, reweight_w=2) == [[1, 2, 1]]


def test_an_empty_batch_and_an_empty_set():
    assert weights_of(torch.empty(0, 7), torch.empty(0, 7)) == []
    assert weights_of(torch.empty(0), torch.empty(0)) == []
    assert weights_of(WORKED_LOG_PROBS, torch.ones(1, 4), torch.zeros(1, 4), top_p_ratio=1.0) == [[1, 1, 1, 1]]
    assert weights_of(WORKED_LOG_PROBS, torch.ones(1, 4), top_p_ratio=0.0) == [[1, 1, 1, 1]]


def test_the_tokens_of_a_whole_buffer_may_come_in_one_dimension():
    assert weights_of(WORKED_LOG_PROBS[0], torch.ones(4), top_p_ratio=0.5, reweight_w=1.5) == [1, 1, 1.5, 1.5]


# Ties and zeros


def test_ties_at_the_threshold_are_all_in():
    log_probs = torch.tensor([[-1.0, -2.0, -2.0, -2.0, -0.5]])
    assert weights_of(log_probs, torch.ones(1, 5), top_p_ratio=0.2, reweight_w=2) == [[1, 2, 2, 2, 1]]


@pytest.mark.parametrize("certain", [0.0, -0.0, 1e-7])
def test_a_certain_token_is_in_only_for_a_share_of_one(certain):
    log_probs = torch.tensor([[certain, certain, certain, -1.0]])
    half = weights_of(log_probs, torch.ones(1, 4), top_p_ratio=0.5, reweight_w=2)  # k = 2, so the threshold is 0
    assert half == [[1, 1, 1, 2]]
    assert weights_of(log_probs, torch.ones(1, 4), top_p_ratio=1.0, reweight_w=2) == [[2, 2, 2, 2]]
    found = candidates(log_probs, torch.ones(1, 4), torch.ones(1, 4))
    weights = weights_from_thresholds(found, 0, 0, config=StareOptions(top_p_ratio=0.5), reweight_w=2, reweight_m=1)
    assert weights.tolist() == [[1, 1, 1, 2]]


def test_the_sets_do_not_depend_on_the_order_of_the_tokens():
    torch.manual_seed(0)
    log_probs = -torch.rand(300).mul(10).round().div(4)  # many ties
    advantages, order = torch.randn(300), torch.randperm(300)
    options = dict(variant="C2", top_p_ratio=0.3)
    here = torch.tensor(weights_of(log_probs, advantages, **options))
    there = torch.tensor(weights_of(log_probs[order], advantages[order], **options))
    assert torch.equal(here[order], there) and here.unique().numel() == 3


# Numbers that are not finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["log_probs", "advantages"])
def test_tokens_that_are_not_finite_are_never_selected(bad, where):
    log_probs = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    advantages = torch.ones(1, 4)
    mask = torch.tensor([[1, 1, 1, 0]])
    (log_probs if where == "log_probs" else advantages)[0, 2:] = bad
    positive, negative, _ = candidates(log_probs, advantages, mask)
    assert positive.tolist() == [[True, True, False, False]] and not negative.any()
    assert weights_of(log_probs, advantages, mask, top_p_ratio=1.0, reweight_w=2) == [[2, 2, 1, 1]]
    assert weights_of(log_probs, advantages, mask, top_p_ratio=0.5, reweight_w=2) == [[1, 2, 1, 1]]


# Types


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("selection", ["kthvalue", "radix"])
def test_membership_is_decided_with_the_bits_that_were_ranked(dtype, selection):
    torch.manual_seed(0)
    log_probs, advantages = (-3 * torch.rand(8, 50)).to(dtype), torch.randn(8, 50).to(dtype)
    here = weights_of(log_probs, advantages, variant="C2", selection=selection)
    assert here == weights_of(log_probs.float(), advantages.float(), variant="C2", selection="kthvalue")


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_views_are_not_written():
    arrays = [np.array(x, dtype=np.float32) for x in ([[-0.1, -0.2, -3, -4]], [[1, 1, -1, -1]], [[1, 1, 1, 1]])]
    for array in arrays:
        array.setflags(write=False)
    before = [array.copy() for array in arrays]
    tensors = [torch.from_numpy(array) for array in arrays]
    for selection in ("kthvalue", "radix"):
        token_weights(*tensors, config=StareOptions(variant="C2", selection=selection))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))


def test_the_weights_carry_no_gradient():
    log_probs = WORKED_LOG_PROBS.clone().requires_grad_()
    assert not token_weights(log_probs, torch.ones(1, 4), torch.ones(1, 4), config=StareOptions()).requires_grad


def test_different_shapes_are_refused():
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    for args in ((y, x, x), (x, y, x), (x, x, y), (x, x, torch.ones(1, 3))):
        with pytest.raises(ValueError, match="give three tensors of one shape"):
            token_weights(*args, config=StareOptions())
        with pytest.raises(ValueError, match="give three tensors of one shape"):
            token_weights(*args, config=StareOptions(), gate_on=False)
