"""Log-probs and entropies from hidden states: what logits give, and closer to the truth in bfloat16."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from openrlhf_stare.algorithms import fused_head
from openrlhf_stare.algorithms.fused_head import Logits, fused_log_probs

TOKENS, HIDDEN, VOCABULARY = 70, 48, 1000
SHAPES = [Logits(), Logits(0.7), Logits(1.0, scale=0.25), Logits(0.8, softcap=3.0), Logits(1.3, 2.0, 5.0)]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(fused_head, "_BLOCK_LOGITS", TOKENS * 300)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Hidden states, weight and bias, with the same values in every type, and a gradient wanted."""
    random = torch.Generator().manual_seed(0)
    shapes = (TOKENS, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,)
    values = [torch.randn(shape, generator=random) * scale for shape, scale in zip(shapes, (1, 0.3, 0.3), strict=True)]
    return [value.bfloat16().to(dtype).requires_grad_() for value in values]


LABELS = torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(1))


def from_logits(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor, logits: Logits) -> tuple:
    """As a model and OpenRLHF do: in the model's type up to the logits, then in float32 (in float64: the truth)."""
    x = torch.nn.functional.linear(hidden, weight, bias)
    if logits.scale != 1:
        x = x * logits.scale
    if logits.softcap:
        x = torch.tanh(x / logits.softcap) * logits.softcap
    x = (x.float() if x.dtype != torch.float64 else x) / logits.temperature
    log_probs = x.gather(1, labels.unsqueeze(-1)).squeeze(-1) - x.logsumexp(-1)
    return log_probs, x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1)


def everything(way, dtype: torch.dtype, logits: Logits, bonus: float) -> list[Tensor]:
    """Log-probs, entropies, and the gradients of a loss by hidden states, weight and bias."""
    hidden, weight, bias = leaves = inputs(dtype)
    log_probs, entropies = way(hidden, weight, LABELS, bias, logits)
    advantages = torch.randn(TOKENS, generator=torch.Generator().manual_seed(2))
    loss = -(advantages * log_probs).mean()
    (loss - bonus * entropies.mean() if bonus else loss).backward()
    return [log_probs.detach(), entropies.detach(), *(leaf.grad for leaf in leaves)]


def errors(results: list[Tensor], truth: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(results, truth, strict=True)]


@pytest.mark.parametrize("bonus", [0, 0.5])
@pytest.mark.parametrize("logits", SHAPES, ids=str)
class TestAgainstLogits:
    def test_in_float32(self, logits, bonus):
        truth = everything(from_logits, torch.float64, logits, bonus)
        assert max(errors(everything(fused_log_probs, torch.float32, logits, bonus), truth)) < 1e-6

    def test_in_bfloat16_as_close_to_the_truth_or_closer(self, logits, bonus):
        truth = everything(from_logits, torch.float64, logits, bonus)
        ours = errors(everything(fused_log_probs, torch.bfloat16, logits, bonus), truth)
        theirs = errors(everything(from_logits, torch.bfloat16, logits, bonus), truth)
        assert all(own <= 1.02 * other for own, other in zip(ours, theirs, strict=True)), (ours, theirs)


def test_results_are_float32_in_any_type_and_entropies_are_left_out_where_not_wanted():
    hidden, weight, bias = inputs(torch.bfloat16)
    log_probs, entropies = fused_log_probs(hidden, weight, LABELS, bias, entropy=False)
    assert log_probs.dtype == entropies.dtype == torch.float32
    assert not entropies.any() and log_probs.isfinite().all()


def test_a_token_without_a_label_is_not_computed():
    hidden, weight, bias = inputs(torch.float32)
    labels = LABELS.clone()
    labels[::3] = -1
    with torch.no_grad():
        hidden[::3] = torch.nan
    log_probs, entropies = fused_log_probs(hidden, weight, labels, bias)
    (log_probs.sum() + entropies.sum()).backward()
    some = labels >= 0
    alone = fused_log_probs(hidden[some], weight, labels[some], bias)
    assert torch.equal(log_probs[some], alone[0]) and torch.equal(entropies[some], alone[1])
    assert not log_probs[~some].any() and not entropies[~some].any()
    assert not hidden.grad[~some].any() and all(leaf.grad.isfinite().all() for leaf in (hidden, weight, bias))


@pytest.mark.parametrize("bonus", [0, 0.5])
def test_a_token_without_a_gradient_is_left_out_of_the_backward_pass(bonus):
    advantages = torch.randn(TOKENS, generator=torch.Generator().manual_seed(2))
    advantages[::3] = 0
    some = advantages != 0

    def gradients(rows: slice | Tensor) -> list[Tensor]:
        hidden, weight, bias = leaves = inputs(torch.float32)
        with torch.no_grad():
            hidden[~some] = math.nan  # or their gradients would be 0 in any case
        log_probs, entropies = fused_log_probs(hidden[rows], weight, LABELS[rows], bias)
        of_both = [(log_probs, advantages[rows]), (entropies, bonus * advantages[rows])][: 2 if bonus else 1]
        torch.autograd.backward(*zip(*of_both, strict=True))
        return [leaf.grad for leaf in leaves]

    found = gradients(slice(None))
    assert max(errors(found, gradients(some))) < 1e-6
    assert not found[0][~some].any()


def test_without_any_gradient_the_gradients_are_zero():
    leaves = hidden, weight, bias = inputs(torch.float32)
    fused_log_probs(hidden, weight, LABELS, bias)[0].backward(torch.zeros(TOKENS))
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


def test_without_any_token_the_gradients_are_zero():
    hidden, weight, bias = inputs(torch.float32)
    log_probs, entropies = fused_log_probs(hidden, weight, torch.full_like(LABELS, -1), bias)
    (log_probs.sum() + entropies.sum()).backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in (hidden, weight, bias))


def test_what_is_frozen_gets_no_gradient():
    hidden, weight, _ = inputs(torch.float32)
    fused_log_probs(hidden, weight.requires_grad_(False), LABELS)[0].sum().backward()
    assert weight.grad is None and hidden.grad.any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_is_not_hidden(value):
    hidden, weight, bias = inputs(torch.float32)
    with torch.no_grad():
        bias[VOCABULARY // 2] = value
    log_probs, entropies = fused_log_probs(hidden, weight, LABELS, bias)
    assert not log_probs.isfinite().any() and not entropies.isfinite().any()


def test_a_word_that_is_masked_adds_nothing_to_a_log_prob():
    hidden, weight, bias = inputs(torch.float32)
    with torch.no_grad():
        bias[:300] = -math.inf  # all of the first block
    labels = LABELS % 700 + 300
    expected, _ = from_logits(hidden, weight, labels, bias, Logits())
    assert torch.allclose(fused_log_probs(hidden, weight, labels, bias, entropy=False)[0], expected)


def test_shapes_that_do_not_fit_are_refused():
    hidden, weight, bias = inputs(torch.float32)
    for wrong in ((hidden[0], weight, LABELS), (hidden, weight[:, 1:], LABELS), (hidden, weight, LABELS[1:])):
        with pytest.raises(ValueError, match="do not fit"):
            fused_log_probs(*wrong, bias)


@pytest.mark.parametrize(
    "config, logits",
    [
        ({"model_type": "qwen2"}, Logits(0.5)),
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, Logits(0.5, softcap=30.0)),
        ({"model_type": "cohere", "logit_scale": 0.0625}, Logits(0.5, scale=0.0625)),
        ({"model_type": "granite", "logits_scaling": 8.0}, Logits(0.5, scale=0.125)),
        ({"model_type": "mpt", "logit_scale": None}, Logits(0.5)),
    ],
)
def test_scale_and_cap_are_the_models(config, logits):
    assert Logits.of_model(SimpleNamespace(**config), 0.5) == logits


@pytest.mark.parametrize("name", ["logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier"])
def test_a_factor_of_an_unknown_use_is_refused(name):
    with pytest.raises(ValueError, match=f"hyperclovax has {name} 0.5"):
        Logits.of_model(SimpleNamespace(model_type="hyperclovax", **{name: 0.5}))
