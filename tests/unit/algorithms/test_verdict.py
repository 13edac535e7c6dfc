"""Each verdict from made-up figures: what it is, in which order the causes come, and that it names the remedy."""

import math

import pytest

from openrlhf_stare.algorithms.verdict import verdict


def steps(count: int = 40, **figures) -> list[dict[str, float]]:
    """Steps with these figures, or a function of the step's number, beside a gate that is open and much authority."""
    of_all = {"mean": 0.1, "target": 0.4, "gate_on": 1.0, "effort": 0.5, "authority": 0.8, "reward": 0.6} | figures
    return [
        {
            "rollout/reward_mean" if name == "reward" else f"entropy/{name}": value(step) if callable(value) else value
            for name, value in of_all.items()
            if value is not None
        }
        for step in range(count)
    ]


def test_held_is_nine_tenths_of_the_second_half_within_a_quarter():
    falling = steps(mean=lambda step: 5.0 if step < 20 else 0.31 if step < 38 else 0.29)  # 18 of 20 in band
    found = verdict(falling, is_idle=True)
    assert found.kind == "held"
    assert found.sentence == (
        "entropy 0.308 nats, target 0.400, over the second half of the steps, 90 % of them within ±25 %: held"
    )
    assert verdict(steps(mean=lambda step: 0.5 if step < 37 else 0.51)).kind != "held"  # 17 of 20
    moving = steps(mean=lambda step: 1 - step / 80, target=lambda step: 1 - step / 80)
    assert verdict(moving).kind == "held"


def test_of_a_target_that_is_not_pursued_only_that_the_method_is_idle_is_said():
    in_band = steps(mean=0.4)
    assert verdict(in_band, is_idle=True).kind == "held"
    assert verdict(in_band, is_idle=True, pursues_target=False).kind == "idle"
    assert verdict(in_band, pursues_target=False) is None


def test_idle_comes_before_all_other_causes():
    found = verdict(steps(gate_on=0.0, authority=0.0), is_idle=True)
    assert found.kind == "idle" and "Lower --train.batch_size, raise --train.max_epochs" in found.sentence


def test_shut_where_nothing_was_needed():
    found = verdict(steps(mean=0.9, gate_on=0.0, authority=0.0))
    assert found.kind == "shut" and "Raise --entropy.target" in found.sentence
    assert verdict(steps(mean=0.9, gate_on=lambda step: float(step == 20))).kind == "slow"  # in 5 % of the steps
    assert verdict(steps(mean=0.1, gate_on=0.0)).kind != "shut"


def test_overshot_where_the_method_acted_before_and_the_entropy_stays_above():
    """As SmolLM2 on chain_sum: five steps near the ceiling, and then twice the target with the gate shut."""
    found = verdict(steps(mean=lambda step: 0.3 if 15 <= step < 20 else 0.8, gate_on=lambda step: 15 <= step < 20))
    assert found.kind == "overshot" and "Lower the method's bound or, under pi, --entropy.k_p" in found.sentence
    assert "--entropy.schedule pi --entropy.sides both" in found.sentence
    # Of a run that goes on below the target it is not said.
    assert verdict(steps(mean=0.1, gate_on=lambda step: step < 20)).kind == "slow"


@pytest.mark.parametrize(
    "reward, said",
    [
        (
            0.97,
            "the rewards of a prompt's responses are equal (mean 0.970), and rewards are high: the task is solved.",
        ),
        (
            0.02,
            "the rewards of a prompt's responses are equal (mean 0.020), and rewards are low: the task is too hard.",
        ),
        (None, "as where a prompt's responses have equal rewards. Give prompts of another difficulty"),
        (math.nan, "as where a prompt's responses have equal rewards. Give prompts of another difficulty"),
    ],
)
def test_no_authority_says_whether_the_task_is_solved_or_too_hard(reward, said):
    found = verdict(steps(authority=lambda step: 0.19 if step % 2 or step == 38 else 0.2, effort=1.0, reward=reward))
    assert found.kind == "no authority" and said in found.sentence
    assert "not held, no authority: only 2" in found.sentence or "only 19 %" in found.sentence
    assert verdict(steps(authority=lambda step: 0.19 if step % 2 else 0.2, reward=reward)).kind == "slow"  # in half


def test_a_method_that_needs_no_advantages_does_not_lack_authority():
    assert verdict(steps(authority=0.0, effort=1.0), needs_advantages=False).kind == "at its bound"


@pytest.mark.parametrize("end", [0.99, 1.0, -0.99, -1.0])
def test_at_its_bound_to_either_side(end):
    mean = 0.1 if end > 0 else 0.9
    found = verdict(steps(mean=mean, effort=lambda step: end if step % 2 or step == 38 else 0.0))
    assert found.kind == "at its bound" and "Lower --entropy.target, raise the method's bound" in found.sentence
    assert verdict(steps(mean=mean, effort=lambda step: end if step % 2 else 0.98)).kind == "slow"


def test_unsteady_where_the_entropy_leaves_the_band_on_both_sides_and_comes_back():
    """As SmolLM2 on chain_sum at half of its first entropy: W between 1 and its ceiling from one step to the next."""
    above, below, above_again = 0.51, 0.29, 0.6
    found = verdict(steps(mean=lambda step: {21: above, 29: below, 33: above_again}.get(step, 0.4)))
    assert found.kind == "unsteady" and "Lower the method's bound or, under pi, --entropy.k_p" in found.sentence
    assert "raise --rollout.batch_size" in found.sentence
    # One that goes through the band once is late, not unsteady; what was in the first half does not count.
    assert verdict(steps(mean=lambda step: above if step < 30 else below)).kind == "slow"
    assert verdict(steps(mean=lambda step: above if step % 2 and step < 20 else below)).kind == "slow"


def test_slow_is_what_is_left():
    found = verdict(steps())
    assert found.kind == "slow" and "raise --entropy.k_p" in found.sentence


def test_without_a_target_or_an_entropy_there_is_no_verdict():
    assert verdict([]) is None
    assert verdict(steps(target=None)) is None
    assert verdict(steps(mean=math.nan)) is None
    assert verdict(steps(target=math.nan)) is None
    assert (
        verdict([*steps(mean=math.nan), *steps(3, mean=0.4)]).kind == "held"
    )  # steps without an entropy do not count
    bare = [{"entropy/mean": 0.1, "entropy/target": 0.4}] * 4  # an old log
    assert verdict(bare).kind == "slow"
