"""Gate, W and M over rollouts, by hand."""

import json
import math

import pytest

from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.algorithms.controller import StareController


def trajectory(controller: StareController, entropies: list[float]) -> list[tuple[bool, float, float]]:
    steps = []
    for entropy in entropies:
        controller.update(entropy)
        steps.append((controller.gate_on, round(controller.reweight_w, 12), round(controller.reweight_m, 12)))
    return steps


def test_before_the_first_update_the_gate_is_on_with_the_configs_weights():
    for schedule in ("fixed", "adaptive"):
        controller = StareController(StareConfig(schedule=schedule, reweight_w=1.2, reweight_m=0.8))
        assert (controller.gate_on, controller.reweight_w, controller.reweight_m) == (True, 1.2, 0.8)
    controller = StareController(StareConfig(schedule="pi", reweight_w=1.2, reweight_m=0.8))
    assert (controller.gate_on, controller.reweight_w, controller.reweight_m) == (True, 1.0, 1.0)


def test_fixed_keeps_w_and_m_and_opens_below_the_target():
    controller = StareController(StareConfig(target_entropy=0.3))
    steps = trajectory(controller, [0.2, 0.3, 0.4, 0.29999])
    assert steps == [(True, 1.1, 0.9), (False, 1.1, 0.9), (False, 1.1, 0.9), (True, 1.1, 0.9)]


def test_adaptive_steps_by_alpha_and_stays_at_the_target():
    controller = StareController(StareConfig(schedule="adaptive", target_entropy=0.3))
    assert trajectory(controller, [0.2, 0.1, 0.3, 0.4, 5.0, 0.29]) == [
        (True, 1.11, 0.89),
        (True, 1.12, 0.88),
        (False, 1.12, 0.88),  # sgn(0) = 0
        (False, 1.11, 0.89),
        (False, 1.10, 0.90),
        (True, 1.11, 0.89),
    ]


def test_adaptive_is_clipped_at_both_ends():
    config = StareConfig(schedule="adaptive", target_entropy=0.3, alpha=0.3, w_max=1.5, m_min=0.5)
    controller = StareController(config)
    assert trajectory(controller, [0.1, 0.1, 0.1]) == [(True, 1.4, 0.6), (True, 1.5, 0.5), (True, 1.5, 0.5)]
    assert trajectory(controller, [0.9, 0.9, 0.9]) == [(False, 1.2, 0.8), (False, 1.0, 1.0), (False, 1.0, 1.0)]


def test_pi_by_hand():
    controller = StareController(StareConfig(schedule="pi", target_entropy=0.5, k_p=0.5, k_i=0.25, w_max=2))
    controller.update(0.25)  # e = 0.5, I = 0.125, log W = 0.25 + 0.125
    assert controller.integral == 0.125
    assert (controller.gate_on, controller.reweight_w) == (True, math.exp(0.375))
    assert controller.reweight_m == 1 / math.exp(0.375)
    controller.update(0.5)  # e = 0: the integral alone holds W
    assert (controller.gate_on, controller.integral, controller.reweight_w) == (True, 0.125, math.exp(0.125))
    controller.update(0.625)  # e = -0.25, I = 0.0625, log W = -0.125 + 0.0625 is clipped at 0
    assert (controller.integral, controller.gate_on) == (0.0625, False)
    assert (controller.reweight_w, controller.reweight_m) == (1.0, 1.0)
    controller.update(0.375)  # e = 0.25, I = 0.125, log W = 0.125 + 0.125
    assert (controller.integral, controller.reweight_w) == (0.125, math.exp(0.25))


def test_pi_is_clipped_at_both_ends():
    controller = StareController(StareConfig(schedule="pi", target_entropy=0.3, k_i=1.0, w_max=1.5, m_min=0.8))
    for _ in range(3):
        controller.update(0.0)  # e = 1
        assert controller.integral == math.log(1.5)
        assert controller.reweight_w == pytest.approx(1.5) and controller.reweight_w <= 1.5
        assert controller.reweight_m == 0.8  # 1/W is below the floor
    controller.update(30.0)
    assert (controller.integral, controller.reweight_w, controller.reweight_m) == (0.0, 1.0, 1.0)
    assert not controller.gate_on


def test_pi_does_not_use_reweight_w_and_reweight_m():
    one = StareController(StareConfig(schedule="pi"))
    other = StareController(StareConfig(schedule="pi", reweight_w=1.4, reweight_m=0.6))
    assert trajectory(one, [0.1, 0.2, 0.3]) == trajectory(other, [0.1, 0.2, 0.3])


def test_pi_gate_is_on_where_w_is_above_one_even_above_the_target():
    controller = StareController(StareConfig(schedule="pi", target_entropy=0.3, k_p=0.0, k_i=0.1))
    controller.update(0.0)
    controller.update(0.31)
    assert controller.gate_on and controller.reweight_w > 1


@pytest.mark.parametrize("schedule", ["fixed", "adaptive", "pi"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_batch_entropy_that_is_not_finite_changes_nothing_and_is_counted(schedule, bad):
    controller = StareController(StareConfig(schedule=schedule))
    assert controller.update(0.29) is True
    before = controller.state_dict()
    assert controller.update(bad) is False
    assert controller.rejected == 1 and controller.updates == 1
    assert controller.state_dict() == before | {"rejected": 1}


@pytest.mark.parametrize("schedule", ["fixed", "adaptive", "pi"])
def test_the_state_goes_through_a_checkpoint_bit_for_bit(schedule):
    config = StareConfig(schedule=schedule, alpha=0.0123)
    one = StareController(config)
    trajectory(one, [0.21, 0.17, math.nan, 0.33, 0.1])
    state = one.state_dict()
    assert all(type(value) in (bool, int, float) for value in state.values())
    other = StareController(config)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state
    for entropy in (0.2, 0.4, 0.1):
        one.update(entropy), other.update(entropy)
        assert one.state_dict() == other.state_dict()


def test_the_state_handed_out_does_not_follow_the_controller():
    controller = StareController(StareConfig(schedule="adaptive"))
    state = controller.state_dict()
    controller.update(0.1)
    assert state["reweight_w"] == 1.1 and state["updates"] == 0


def test_a_state_with_missing_or_unknown_keys_is_refused_and_changes_nothing():
    controller = StareController(StareConfig())
    state = controller.state_dict() | {"gate_on": False}
    del state["integral"]
    with pytest.raises(ValueError, match="lacks integral and has the unknown nothing"):
        controller.load_state_dict(state)
    with pytest.raises(ValueError, match="lacks nothing and has the unknown momentum"):
        controller.load_state_dict(state | {"integral": 0.0, "momentum": 1.0})
    assert controller.gate_on


def test_the_trajectories_stay_what_they_are():
    entropies = [0.25, 0.2, 0.35, 0.3, 0.1, 0.05, 0.6, 0.29]
    recorded = {
        "fixed": (True, 1.1, 0.9),
        "adaptive": (True, 1.13, 0.87),
    }
    for schedule in ("fixed", "adaptive"):
        assert trajectory(StareController(StareConfig(schedule=schedule)), entropies)[-1] == recorded[schedule]
    # e = 1/6, 1/3, -1/6, 0, 2/3, 5/6, -1, 1/30; I = 0.1 · the running sum, never below 0
    controller = StareController(StareConfig(schedule="pi"))
    w = [step[1] for step in trajectory(controller, entropies)]
    log_w = [1 / 3 + 1 / 60, math.log(1.5), 0, 1 / 30, math.log(1.5), math.log(1.5), 0, 2 / 30 + 1 / 12 + 1 / 300]
    assert w == pytest.approx([math.exp(x) for x in log_w], abs=1e-11)
