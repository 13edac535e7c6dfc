"""Every option has a range; a value outside it stops at once with its name, its value and a remedy."""

import math

import pytest

from openrlhf_stare import EntropyControl, StareOptions


def test_the_defaults_are_the_papers_for_7b():
    config, control = StareOptions(), EntropyControl()
    assert (config.variant, config.top_p_ratio, config.reweight_w, config.reweight_m) == ("O1", 0.1, 1.1, 0.9)
    assert (config.w_max, config.m_min, config.selection) == (1.5, 0.5, "auto")
    assert (control.schedule, control.target, control.step, control.measure) == ("gate", 0.3, 0.01, "exact")
    assert (control.target_end, control.anneal_rollouts, control.stop_below, control.stop_above) == (0, 0, 0, 0)
    assert (control.sides, control.k_p, control.k_i, control.record_tokens) == ("below", 3.9, 0.05, 0)


@pytest.mark.parametrize(
    "options, name",
    [
        ({"variant": "X1"}, "variant"),
        ({"selection": "topk"}, "selection"),
        ({"top_p_ratio": 1.5}, "top_p_ratio"),
        ({"top_p_ratio": math.nan}, "top_p_ratio"),
        ({"top_p_ratio": -0.1}, "top_p_ratio"),
        ({"reweight_w": 0.9}, "reweight_w"),
        ({"reweight_w": math.inf}, "reweight_w"),
        ({"reweight_w": "1.1"}, "reweight_w"),
        ({"reweight_m": 1.2}, "reweight_m"),
        ({"reweight_m": 0}, "reweight_m"),
        ({"w_max": 0.99}, "w_max"),
        ({"m_min": 0}, "m_min"),
        ({"m_min": 1.1}, "m_min"),
    ],
)
def test_a_value_outside_its_range_is_named_with_a_remedy(options, name):
    with pytest.raises(ValueError, match=rf"^{name} {options[name]} .+: .+"):
        StareOptions(**options)


@pytest.mark.parametrize(
    "options, name",
    [
        ({"schedule": "fixed"}, "schedule"),
        ({"measure": "guessed"}, "measure"),
        ({"target": 0}, "target"),
        ({"target": -1}, "target"),
        ({"target": math.inf}, "target"),
        ({"step": -0.1}, "step"),
        ({"k_p": -1}, "k_p"),
        ({"k_p": math.nan}, "k_p"),
        ({"k_i": -0.1}, "k_i"),
        ({"k_i": math.inf}, "k_i"),
        ({"stop_below": -0.1}, "stop_below"),
        ({"stop_after": 0}, "stop_after"),
        ({"anneal_rollouts": -1}, "anneal_rollouts"),
        ({"target_end": 0.1}, "anneal_rollouts"),
        ({"anneal_rollouts": 10}, "target_end"),
        ({"target": "0%"}, "target"),
        ({"target": "-5%"}, "target"),
        ({"target": "nan%"}, "target"),
        ({"target": "inf%"}, "target"),
        ({"target": "half"}, "target"),
        ({"target": "50"}, "target"),
        ({"target": "%"}, "target"),
        ({"target_end": "0%", "anneal_rollouts": 3}, "target_end"),
        ({"stop_below": "0%"}, "stop_below"),
        ({"stop_above": -0.1}, "stop_above"),
        ({"sides": "above"}, "sides"),
        ({"sides": "both"}, "sides"),
        ({"record_tokens": -1}, "record_tokens"),
        ({"record_tokens": 2.5}, "record_tokens"),
        ({"record_tokens": True}, "record_tokens"),
    ],
)
def test_a_value_of_the_controller_outside_its_range_is_named_with_a_remedy(options, name):
    with pytest.raises(ValueError, match=rf"^{name} .+: .+"):
        EntropyControl(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"w_max": 1.05},  # the ceiling and the floor bind only the schedules that move W and M
        {"m_min": 0.95},
        {"w_max": 1, "m_min": 1},
        {"top_p_ratio": 0},
        {"top_p_ratio": 1},
        {"reweight_w": 1, "reweight_m": 1},
    ],
)
def test_the_ends_of_the_ranges_are_inside(options):
    StareOptions(**options)
