"""Every option has a range; a value outside it stops at once with its name, its value and a remedy."""

import dataclasses
import math

import pytest

from openrlhf_stare.algorithms.config import StareConfig


def test_the_defaults_are_the_papers_for_7b():
    config = StareConfig()
    assert (config.variant, config.schedule, config.entropy) == ("O1", "fixed", "exact")
    assert (config.top_p_ratio, config.reweight_w, config.reweight_m, config.target_entropy) == (0.1, 1.1, 0.9, 0.3)
    assert (config.alpha, config.w_max, config.m_min) == (0.01, 1.5, 0.5)
    assert (config.k_p, config.k_i, config.selection, config.record_tokens) == (2.0, 0.1, "auto", 0)


def test_the_newest_options_come_last():
    assert [field.name for field in dataclasses.fields(StareConfig)][-3:] == ["k_i", "selection", "record_tokens"]


@pytest.mark.parametrize(
    "options, name",
    [
        ({"variant": "X1"}, "variant"),
        ({"schedule": "pid"}, "schedule"),
        ({"entropy": "guessed"}, "entropy"),
        ({"selection": "topk"}, "selection"),
        ({"top_p_ratio": 1.5}, "top_p_ratio"),
        ({"top_p_ratio": math.nan}, "top_p_ratio"),
        ({"top_p_ratio": -0.1}, "top_p_ratio"),
        ({"reweight_w": 0.9}, "reweight_w"),
        ({"reweight_w": math.inf}, "reweight_w"),
        ({"reweight_w": "1.1"}, "reweight_w"),
        ({"reweight_m": 1.2}, "reweight_m"),
        ({"reweight_m": 0}, "reweight_m"),
        ({"target_entropy": 0}, "target_entropy"),
        ({"target_entropy": -1}, "target_entropy"),
        ({"target_entropy": math.inf}, "target_entropy"),
        ({"alpha": -0.1}, "alpha"),
        ({"k_p": -1}, "k_p"),
        ({"k_p": math.nan}, "k_p"),
        ({"k_i": -0.1}, "k_i"),
        ({"k_i": math.inf}, "k_i"),
        ({"record_tokens": -1}, "record_tokens"),
        ({"record_tokens": 2.5}, "record_tokens"),
        ({"record_tokens": True}, "record_tokens"),
        ({"schedule": "adaptive", "w_max": 1.05}, "w_max"),
        ({"schedule": "adaptive", "m_min": 0.95}, "m_min"),
        ({"schedule": "adaptive", "m_min": 0}, "m_min"),
        ({"schedule": "pi", "w_max": 0.99}, "w_max"),
        ({"schedule": "pi", "m_min": 0}, "m_min"),
        ({"schedule": "pi", "m_min": 1.1}, "m_min"),
    ],
)
def test_a_value_outside_its_range_is_named_with_a_remedy(options, name):
    with pytest.raises(ValueError, match=rf"^{name} {options[name]} .+: .+"):
        StareConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"w_max": 1.05},  # the ceiling and the floor bind only the schedules that move W and M
        {"m_min": 0.95},
        {"schedule": "pi", "w_max": 1.05},  # which does not use reweight_w
        {"schedule": "pi", "m_min": 0.95},
        {"schedule": "pi", "w_max": 1, "m_min": 1, "k_p": 0, "k_i": 0},
        {"top_p_ratio": 0},
        {"top_p_ratio": 1},
        {"reweight_w": 1, "reweight_m": 1, "alpha": 0},
        {"schedule": "adaptive", "w_max": 1.1, "m_min": 0.9},
    ],
)
def test_the_ends_of_the_ranges_are_inside(options):
    StareConfig(**options)
