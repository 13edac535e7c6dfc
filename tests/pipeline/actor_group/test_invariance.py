"""The same rollout on other clusters (see invariance.py), in a pairwise cover of all that a cluster can change."""

import pytest
import torch
from harness import tokens
from invariance import (
    METHODS,
    REFERENCE,
    STARE,
    Cell,
    cover,
    method_figures,
    pairs,
    relative_difference,
    rollout,
    run_cell,
    table,
)

from openrlhf_stare import surprisal_thresholds, token_weights

# Forward passes in other shapes, of a margin of 0.1 nats to the target.
ENTROPY_NOISE = 1e-5


@pytest.fixture(scope="module")
def reference(group_of):
    return run_cell(group_of(REFERENCE.ranks), REFERENCE)


def test_any_two_values_of_two_factors_meet_in_the_cover():
    assert pairs(cover()) == pairs(table())
    assert REFERENCE in cover()


def test_the_reference_is_what_one_process_finds_without_openrlhf(addends, reference):
    responses, entropy = rollout(addends / "model")
    log_probs, advantages = tokens(responses)
    taus = surprisal_thresholds(-log_probs, advantages, top_p_ratio=STARE.top_p_ratio)
    assert reference.thresholds == [tuple(float(tau) for tau in taus)]
    weights = token_weights(log_probs, advantages, torch.ones_like(log_probs), config=STARE)
    lengths = [int(response.action_mask.sum()) for response in responses]
    expected = {
        tuple(response.sequences[0].tolist()): of_response.tolist()
        for response, of_response in zip(responses, weights.split(lengths), strict=True)
    }
    assert reference.weights == expected
    assert set(weights.tolist()) == {1, STARE.reweight_w, STARE.reweight_m}
    assert reference.gates == [1]
    assert reference.batch_entropy == pytest.approx(entropy, abs=ENTROPY_NOISE)
    # Which tokens are critical matters: the two losses end far apart, measured by the way from the start.
    assert (reference.stare - reference.openrlhf).norm() > 0.3 * reference.step("openrlhf")


@pytest.mark.parametrize("cell", [cell for cell in cover() if cell != REFERENCE], ids=str)
def test_a_cell_trains_as_the_reference_does(reference, group_of, cell):
    outcome = run_cell(group_of(cell.ranks), cell)
    assert outcome.thresholds == reference.thresholds * cell.ranks, "the same bits on every rank"
    assert outcome.weights == reference.weights, "the same tokens of the same responses"
    assert outcome.gates == reference.gates * cell.ranks
    assert outcome.batch_entropy == pytest.approx(reference.batch_entropy, abs=ENTROPY_NOISE)

    assert torch.equal(outcome.start, reference.start)
    assert torch.equal(outcome.stare_again, outcome.stare), "both losses start from the same state"
    stare = relative_difference(outcome, reference, "stare")
    openrlhf = relative_difference(outcome, reference, "openrlhf")
    # Rounding, whatever the loss: in the 54 cells 1 to 3 % of the step with STARE, 2 to 4 % with OpenRLHF's own loss,
    # STARE's at most 1.02 times the other. Thresholds of each rank by itself give 30 % and more.
    # But with dynamic batches and ZeRO-2, OpenRLHF 0.11.2 on DeepSpeed 0.19.6 steps on the gradient of each rank's
    # last micro-batch alone, so that with either loss the weights end about a whole step from the reference's.
    assert stare < 2 * openrlhf
    if (cell.layout, cell.zero_stage) != ("dynamic", 2):
        assert openrlhf < 0.1


@pytest.mark.parametrize("name", METHODS)
def test_another_method_finds_the_same_padded_and_with_dynamic_batches_which_are_packed(group_of, name):
    """Ranks and micro-batches without OpenRLHF are in tests/distributed/test_methods_gloo.py."""
    group = group_of(2)
    padded, weights = method_figures(group, name, Cell(2, 1, "padded", 3))
    figures, in_training = method_figures(group, name, Cell(2, 4, "dynamic", 3))
    noise = (
        {"abs": ENTROPY_NOISE}
        if name in ("high_entropy", "entropy_bonus", "repo+entropy_bonus")
        else {"rel": 0, "abs": 0}
    )
    for figure, value in padded.items():
        assert figures[figure] == pytest.approx(value, **noise), figure
    if name == "repo+entropy_bonus":  # whose effort is of the measured entropy
        assert in_training.keys() == weights.keys()
        assert all(in_training[one] == pytest.approx(weights[one], abs=ENTROPY_NOISE) for one in weights)
    elif name != "high_entropy":  # whose weights are of the training pass's entropies
        assert in_training == weights
