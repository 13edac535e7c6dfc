"""What a few answers say about learning: a rule for each thing that stops it, with its remedy."""

import dataclasses

import pytest

from openrlhf_stare.algorithms.prospects import Figures, judge

GOOD = Figures(
    answers=64,
    groups=8,
    right=20,
    without_reward=0,
    mixed=7,
    identical=0,
    truncated=2,
    cut=0,
    entropy=0.9,
    target=0.45,
    temperature=1.0,
    limit="--rollout.max_new_tokens 8",
)
ALL_TRUNCATED = {"truncated": 64, "right": 0, "mixed": 0}


def said(**changed) -> list[str]:
    return judge(dataclasses.replace(GOOD, **changed))


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({}, ["Good"]),
        ({"mixed": 2}, ["Good"]),  # a quarter
        ({"mixed": 1}, ["Slow"]),
        ({"right": 0, "mixed": 0}, ["Too hard"]),
        ({"right": 0, "mixed": 4}, ["Hard"]),  # some wrong answers are better than others
        ({"right": 64, "mixed": 0}, ["Too easy"]),
        ({"right": 64, "mixed": 4}, ["Good"]),  # and some right ones
        ({"right": 24, "mixed": 0}, ["Nothing to compare"]),
        ({"truncated": 6}, ["Good"]),
        ({"truncated": 7}, ["Truncated", "Good"]),
        ({"truncated": 40, "right": 0, "mixed": 0}, ["Truncated", "Too hard"]),  # those that end are wrong as well
        (ALL_TRUNCATED, ["Truncated", "Fix that first"]),
        ({"without_reward": 3}, ["No reward", "Good"]),
        ({"without_reward": 64, "right": 0, "mixed": 0}, ["No reward", "Fix that first"]),
        ({"cut": 1}, ["Prompts cut", "Good"]),
        ({"identical": 4}, ["Good"]),  # half
        ({"identical": 8, "mixed": 0, "right": 16, "temperature": 0.01}, ["Identical", "Nothing to compare"]),
        ({"identical": 8, "mixed": 0, "right": 64}, ["Identical", "Too easy"]),
        ({"target": 1.0}, ["Good", "Target"]),
        ({"target": None}, ["Good"]),
        ({"entropy": None, "target": 1.0}, ["Good"]),
    ],
)
def test_each_kind_of_start_is_told(changed, kinds):
    assert [
        sentence.partition(":")[0][: len(kind)] for sentence, kind in zip(said(**changed), kinds, strict=True)
    ] == kinds


def test_the_remedy_names_the_flag_and_its_value():
    [truncated, _] = said(**ALL_TRUNCATED)
    assert "64 of 64 answers reached --rollout.max_new_tokens 8" in truncated
    [some, _] = said(truncated=20)
    assert "end token" in truncated and "end token" not in some
    [cold, _] = said(identical=8, temperature=0.01)
    [certain, _] = said(identical=8)
    assert "Raise --rollout.temperature 0.01" in cold and "temperature" not in certain
    [_, target] = said(target=1.0)
    assert "--entropy.target 1 is above the 0.90 nats" in target and "50%, is 0.45 nats" in target


def test_a_slow_start_asks_for_prompts_of_the_other_difficulty():
    [hard], [easy] = said(mixed=1, right=2), said(mixed=1, right=60)
    assert "only 1 of 8 groups are mixed" in hard and "Give easier prompts" in hard
    assert "Give harder prompts" in easy
