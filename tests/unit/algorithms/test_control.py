"""The controller over rollouts, by hand and against what other programs give."""

import json
import math

import pytest

from openrlhf_stare.algorithms.control import EntropyControl, EntropyController, EntropyOutOfRange, Strength
from openrlhf_stare.methods import base

W = Strength("reweight_w", neutral=1.0, start=1.1, bound=1.5, scale="log")
M = Strength("reweight_m", neutral=1.0, start=0.9, bound=0.5, scale="log")
COEFFICIENT = Strength("coefficient", neutral=0.0, start=0.0, bound=0.2)
ENTROPIES = [0.25, 0.2, 0.35, 0.3, 0.1, 0.05, 0.6, 0.29]


def controller(*strengths: Strength, **options) -> EntropyController:
    return EntropyController(EntropyControl(**options), strengths)


def test_before_the_first_update():
    neutral, start = {"reweight_w": 1.0, "reweight_m": 1.0}, {"reweight_w": 1.1, "reweight_m": 0.9}
    for schedule in ("open", "gate", "adaptive"):
        assert controller(W, M, schedule=schedule).strengths == start
    pi = controller(W, M, schedule="pi")
    assert pi.strengths == neutral and not pi.gate_on and pi.effort == 0


def test_open_acts_whatever_the_entropy():
    of_start = controller(W, schedule="open")
    assert [of_start.update(entropy) for entropy in (0.01, 0.3, 5.0)] == [{"reweight_w": 1.1}] * 3
    assert of_start.gate_on and of_start.effort == math.log(1.1) / math.log(1.5)


def test_gate_acts_below_the_target_alone():
    gate = controller(W, M)
    acting, neutral = {"reweight_w": 1.1, "reweight_m": 0.9}, {"reweight_w": 1.0, "reweight_m": 1.0}
    assert [gate.update(e) for e in (0.2, 0.3, 0.4, 0.29999)] == [acting, neutral, neutral, acting]
    gate.update(0.4)
    assert (gate.gate_on, gate.effort) == (False, 0.0)


def test_stare_has_the_trajectories_that_it_had_before_there_were_other_methods():
    # Recorded from StareController of the first version, C2, alpha 0.0123; gate_on, W and M after each update.
    recorded = {
        "gate": [(on, 1.1, 0.9) for on in (True, True, False, False, True, True, False, True)],
        "adaptive": [
            (True, 1.1123, 0.8877),
            (True, 1.1246, 0.8754000000000001),
            (False, 1.1123, 0.8877),
            (False, 1.1123, 0.8877),
            (True, 1.1246, 0.8754000000000001),
            (True, 1.1369, 0.8631000000000001),
            (False, 1.1246, 0.8754000000000001),
            (True, 1.1369, 0.8631000000000001),
        ],
    }
    for schedule, expected in recorded.items():
        stare = controller(W, M, schedule=schedule, step=0.0123)
        for entropy, (gate_on, w, m) in zip(ENTROPIES, expected, strict=True):
            strengths = stare.update(entropy)
            assert (stare.gate_on, stare.values) == (gate_on, {"reweight_w": w, "reweight_m": m})
            assert strengths == (stare.values if gate_on else {"reweight_w": 1.0, "reweight_m": 1.0})


def test_adaptive_is_clipped_at_neutral_and_at_the_bound():
    stare = controller(W, M, schedule="adaptive", step=0.3)
    for expected in (1.4, 0.6), (1.5, 0.5), (1.5, 0.5):
        assert tuple(stare.update(0.1).values()) == pytest.approx(expected)
    assert stare.effort == 1
    for expected in (1.2, 0.8), (1.0, 1.0), (1.0, 1.0):
        stare.update(0.9)
        assert tuple(stare.values.values()) == pytest.approx(expected)


def test_adaptive_is_the_adaptive_coefficient_of_skywork_and_of_trl():
    # What their own code gave: the coefficient and whether it is applied, after the entropy of each step.
    entropies = [0.5, 0.31, 0.19, 0.12, 0.08, 0.15, 0.25, 0.21, 0.18, 0.05, 0.04, 0.03, 0.4, 0.1]
    skywork = [0, 0, 0.005, 0.01, 0.015, 0.02, 0.015, 0.01, 0.015, 0.02, 0.025, 0.03, 0.025, 0.03]
    applied = [entropy < 0.2 for entropy in entropies]
    bonus = controller(COEFFICIENT, schedule="adaptive", step=0.005, target=0.2)
    for entropy, coefficient, is_applied in zip(entropies, skywork, applied, strict=True):
        acting = bonus.update(entropy)["coefficient"]
        assert bonus.values["coefficient"] == pytest.approx(coefficient, abs=1e-12)
        assert acting == (bonus.values["coefficient"] if is_applied else 0.0)


def test_pi_by_hand():
    pi = controller(COEFFICIENT, schedule="pi", target=0.5, k_p=0.5, k_i=0.25)
    assert pi.update(0.25)["coefficient"] == 0.2 * 0.375  # e = 0.5, I = 0.125, u = 0.25 + 0.125
    assert (pi.gate_on, pi.effort, pi.integral) == (True, 0.375, 0.125)
    assert pi.update(0.5)["coefficient"] == 0.2 * 0.125  # e = 0: the integral alone holds u
    assert pi.update(0.625)["coefficient"] == 0.0  # e = -0.25, I = 0.0625, u = -0.125 + 0.0625 is clipped at 0
    assert (pi.gate_on, pi.effort, pi.integral) == (False, 0.0, 0.0625)
    assert pi.update(0.375)["coefficient"] == 0.2 * 0.25  # e = 0.25, I = 0.125


def test_pi_on_a_log_scale_and_at_both_ends():
    pi = controller(W, M, Strength("share", 1.0, 0.2, 0.05, "log"), schedule="pi", target=0.5, k_p=0.5, k_i=0.0)
    assert pi.update(0.25) == {"reweight_w": 1.5**0.25, "reweight_m": 0.5**0.25, "share": 0.05**0.25}
    pi = controller(W, M, schedule="pi", k_p=50.0, k_i=1.0)
    assert pi.update(0.1) == {"reweight_w": 1.5, "reweight_m": 0.5} and pi.effort == 1.0
    assert pi.update(30.0) == {"reweight_w": 1.0, "reweight_m": 1.0} and pi.integral == 0.0


def test_pi_acts_above_the_target_while_the_integral_says_so():
    pi = controller(COEFFICIENT, schedule="pi", target=0.3, k_p=0.0, k_i=0.1)
    pi.update(0.0)
    assert pi.update(0.31)["coefficient"] > 0 and pi.gate_on


def test_an_effort_and_its_value_belong_together():
    for strength in (W, M, COEFFICIENT, Strength("share", 1.0, 0.2, 0.05, "log")):
        assert (strength.at(0.0), strength.at(1.0)) == (strength.neutral, strength.bound)
        assert strength.effort(strength.at(0.3)) == pytest.approx(0.3)
        assert strength.effort(strength.neutral - (strength.bound - strength.neutral)) == 0
    assert Strength("reweight_w", 1.0, 1.0, 1.0, "log").effort(1.0) == 0  # it cannot move


@pytest.mark.parametrize("schedule", ["open", "gate", "adaptive", "pi"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_entropy_that_is_not_finite_changes_nothing_and_is_counted(schedule, bad):
    one = controller(W, M, schedule=schedule, target_end=0.1, anneal_rollouts=5, stop_below=0.3)
    strengths = one.update(0.29)
    before = one.state_dict()
    assert one.update(bad) == strengths
    assert one.state_dict() == before | {"rejected": 1}


def test_the_target_goes_to_its_end_in_a_line_and_goes_on_after_a_restart():
    options = dict(target=0.5, target_end=0.1, anneal_rollouts=4)
    one = controller(W, **options)
    targets = []
    for _ in range(6):
        one.update(0.2)
        targets.append(one.target)
        other = controller(W, **options)
        other.load_state_dict(one.state_dict())
        one = other
    assert targets == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])
    assert targets[-1] == 0.1  # exactly
    assert not one.gate_on  # 0.2 is above 0.1


def test_a_policy_that_has_collapsed_is_told():
    one = controller(W, stop_below=0.05, stop_after=3)
    for entropy in (0.01, 0.01, 0.05, 0.01, 0.01):
        one.update(entropy)
        assert one.stop is None
    one.update(math.nan)
    assert one.stop is None
    one.update(0.01)
    assert one.stop.startswith("The entropy was below --entropy.stop_below 0.05 for 3 rollouts in a row")
    never = controller(W)
    for _ in range(20):
        never.update(0.0)
        never.update(-1e-9)  # of rounding
    assert never.stop is None and never.low_rollouts == 0


@pytest.mark.parametrize("schedule", ["open", "gate", "adaptive", "pi"])
def test_the_state_goes_through_a_checkpoint_bit_for_bit(schedule):
    options = dict(schedule=schedule, step=0.0123, target_end=0.1, anneal_rollouts=7, stop_below=0.2)
    one, other = controller(W, M, **options), controller(W, M, **options)
    for entropy in (0.21, 0.17, math.nan, 0.33, 0.1):
        one.update(entropy)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.state_dict() == one.state_dict()
    for entropy in (0.2, 0.4, 0.1):
        assert one.update(entropy) == other.update(entropy)
        assert one.state_dict() == other.state_dict()


def test_the_state_handed_out_does_not_follow_the_controller():
    one = controller(W, schedule="adaptive")
    state = one.state_dict()
    one.update(0.1)
    assert state["values"] == {"reweight_w": 1.1} and state["updates"] == 0


def test_a_state_of_another_version_or_method_is_refused_and_changes_nothing():
    one = controller(W)
    state = one.state_dict() | {"gate_on": False}
    with pytest.raises(ValueError, match="lacks nothing and has the unknown momentum"):
        one.load_state_dict(state | {"momentum": 1.0})
    with pytest.raises(ValueError, match="lacks values.reweight_w and has the unknown values.coefficient"):
        one.load_state_dict(state | {"values": {"coefficient": 0.0}})
    with pytest.raises(ValueError, match="lacks .*values.reweight_w.* and has the unknown reweight_m, reweight_w"):
        one.load_state_dict({"gate_on": True, "reweight_w": 1.1, "reweight_m": 0.9, "integral": 0.0})
    assert one.gate_on


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="^schedule gate sets strengths, and this method has none: give open"):
        controller()
    assert controller(schedule="open").update(0.1) == {}
    with pytest.raises(ValueError, match="^reweight_w 2.0 is outside the 1.0 to 1.5 .*adaptive"):
        controller(Strength("reweight_w", 1.0, 2.0, 1.5, "log"), schedule="adaptive")
    with pytest.raises(ValueError, match="^target_end 0.0 is not a target to anneal to: "):
        EntropyControl(anneal_rollouts=3)
    with pytest.raises(ValueError, match="^anneal_rollouts 0 leaves no rollouts in which to reach target_end: "):
        EntropyControl(target_end=0.1)
    with pytest.raises(ValueError, match="^schedule fixed is not one of open, gate, adaptive, pi"):
        EntropyControl(schedule="fixed")


def test_a_methods_defaults_are_the_published_ones_and_give_way_to_what_is_given():
    class Bonus(base.Method):
        control = {"schedule": "adaptive", "target": 0.2}

    assert base.entropy_control(Bonus, {}) == EntropyControl(schedule="adaptive", target=0.2)
    assert base.entropy_control(Bonus, {"target": 0.5}).target == 0.5
    assert base.entropy_control(base.Method, {}).schedule == "open"


# ── percentages of the first entropy ──


def test_a_target_can_be_a_percentage_of_the_first_finite_entropy():
    one = controller(W, target="50%", target_end="25%", anneal_rollouts=2, stop_below="10%")
    assert math.isnan(one.target) and one.first_entropy is None and one.percentages is None
    one.update(math.nan)
    assert one.first_entropy is None
    targets = []
    for entropy in (0.8, 0.3, 0.1, 5.0):
        one.update(entropy)
        targets.append(one.target)
    assert one.first_entropy == 0.8 and targets == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert one.percentages.startswith(
        "This run started at an entropy of 0.8 nats, so --entropy.target 50% is 0.4 nats, "
    )
    assert "--entropy.target_end 25% is 0.2 nats, --entropy.stop_below 10% is 0.08 nats: a resume" in one.percentages


def test_the_gate_and_pi_go_by_the_target_in_nats():
    gate = controller(W, target="50%")
    assert [gate.update(entropy)["reweight_w"] for entropy in (0.8, 0.39, 0.41)] == [1.0, 1.1, 1.0]
    percent, nats = controller(W, target="50%", schedule="pi"), controller(W, target=0.4, schedule="pi")
    for entropy in (0.8, 0.3, 0.35, 0.5):
        assert percent.update(entropy) == nats.update(entropy)


def test_the_first_entropy_goes_through_a_checkpoint_and_a_change_of_flags():
    one, other = (controller(W, target="50%") for _ in range(2))
    one.update(0.8)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    other.update(0.1)
    assert other.target == 0.4 and other.first_entropy == 0.8
    fresh = controller(COEFFICIENT, target="25%", target_end="50%", anneal_rollouts=2, schedule="pi")
    fresh.follow(one.state_dict())
    assert (fresh.updates, fresh.first_entropy, fresh.target) == (1, 0.8, pytest.approx(0.3))
    fresh.update(0.1)
    assert fresh.target == pytest.approx(0.3) and fresh.first_entropy == 0.8


def test_no_percentage_is_taken_of_an_entropy_that_is_not_above_zero():
    with pytest.raises(EntropyOutOfRange, match="rollout is 0, of which --entropy.stop_above 50% is no target or"):
        controller(W, stop_above="50%").update(0.0)
    with pytest.raises(EntropyOutOfRange, match="rollout is -0.001, of which --entropy.target 50% .* or give nats$"):
        controller(W, target="50%").update(-1e-3)
    begun = controller(W)
    assert begun.update(0.0) == {"reweight_w": 1.1}
    resumed = controller(W, target="50%", schedule="pi")
    resumed.follow(begun.state_dict())
    with pytest.raises(EntropyOutOfRange, match="rollout is 0, of which --entropy.target 50% is no target"):
        resumed.update(0.3)


# ── both sides ──

BOTH = Strength("zeta", 0.0, 0.01, 1.0, counter=-0.5)


def test_both_sides_by_hand():
    log = Strength("reweight_w", 1.0, 1.1, 4.0, "log", counter=0.25)
    pi = controller(BOTH, log, COEFFICIENT, schedule="pi", sides="both", target=0.5, k_p=0.5, k_i=0.25)
    assert pi.update(0.75) == {"zeta": -0.5 * 0.375, "reweight_w": 0.25**0.375, "coefficient": 0.0}
    assert (pi.gate_on, pi.effort, pi.integral) == (True, -0.375, -0.125)
    assert pi.update(0.5)["zeta"] == -0.5 * 0.125  # the integral alone
    assert pi.update(50.0) == {"zeta": -0.5, "reweight_w": 0.25, "coefficient": 0.0} and pi.integral == -1
    assert pi.update(0.5) == {"zeta": -0.5, "reweight_w": 0.25, "coefficient": 0.0}
    for _ in range(20):
        pi.update(0.01)
    assert (pi.effort, pi.integral, pi.strengths["zeta"]) == (1.0, 1.0, 1.0)


def test_below_the_target_both_sides_are_one():
    options = dict(schedule="pi", target=0.5, k_p=0.5, k_i=0.25)
    both, below = controller(BOTH, sides="both", **options), controller(BOTH, **options)
    for entropy in (0.4, 0.3, 0.45, 0.2):
        assert both.update(entropy) == below.update(entropy)
    assert controller(BOTH, **options).update(2.0) == {"zeta": 0.0}


def test_a_method_that_cannot_lower_the_entropy_has_one_side():
    with pytest.raises(
        ValueError, match="^sides both does not go with this method, none of whose strengths can lower"
    ):
        controller(COEFFICIENT, schedule="pi", sides="both")
    for name in base.names():
        for strength in base.find(name)(clip_range=(0.2, 0.25)).strengths:
            if strength.counter is not None:
                assert (strength.counter - strength.neutral) * (strength.bound - strength.neutral) < 0
                assert strength.at(-1.0) == pytest.approx(strength.counter)
                assert strength.at(0.0) == strength.neutral
    countered = {
        f"{name}.{strength.name}": strength.counter
        for name in base.names()
        for strength in base.find(name)(clip_range=(0.2, 0.25)).strengths
        if strength.counter is not None
    }
    assert countered == {
        "clip_higher.eps_high": 0.2,
        "entropy_bonus.coefficient": -0.2,
        "repo.zeta": -1.0,
        "sign_weights.alpha": -0.9,
        "stare.reweight_w": 1 / 1.5,
    }


# ── ends and warnings ──


def test_a_policy_that_has_dissolved_is_told():
    one = controller(W, target=0.2, stop_above="150%", stop_below=0.05, stop_after=2)
    for entropy in (0.4, 0.61, 0.6, 0.7):
        one.update(entropy)
        assert one.stop is None
    one.update(0.61)
    assert one.stop.startswith(
        "The entropy was above --entropy.stop_above 150% (0.6 nats) for 2 rollouts in a row: the"
    )
    assert "a lower --entropy.target" in one.stop


def test_rollouts_out_of_band_with_the_strength_at_its_bound_are_counted():
    pi = controller(W, schedule="pi", target=0.4, k_p=50.0)
    counts = []
    for entropy in (0.1, 0.29, 0.31, 0.2, math.nan, 0.2, 0.4):
        pi.update(entropy)
        counts.append(pi.stuck_rollouts)
    assert counts == [1, 2, 0, 1, 1, 2, 0]  # 0.31 is within a quarter of 0.4
    published = controller(Strength("alpha", 0.0, 0.9, 0.9), schedule="open", target=0.4)
    published.update(0.1)
    assert published.effort == 1 and published.stuck_rollouts == 0  # it pursues no target
