"""Whether a run held its target entropy, and if not, why and what helps. It needs the logged figures alone.

From the second half of the steps; H is the entropy of a step and H_tgt its target, in nats:

    held           |H - H_tgt| <= 0.25 H_tgt in at least 90 % of the steps; else the first that applies:
    idle           the method acts from the second optimizer step on, and a rollout has one
    overshot       the gate was on in less than 5 % of the steps and H above the target, after steps in the first half
                   in which the gate was on
    shut           the same, and the gate was never on: nothing was needed
    no authority   in most steps less than 20 % of the tokens had an advantage
    at its bound   in most steps the effort was 0.99 or more, to either side
    unsteady       out of the band on one side, then on the other, and back: the method does too much at a time
    slow           none of these
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

ENTROPY, TARGET, GATE = "entropy/mean", "entropy/target", "entropy/gate_on"
EFFORT, AUTHORITY, REWARD = "entropy/effort", "entropy/authority", "rollout/reward_mean"
BAND = 0.25  # of the target, to either side
AT_BOUND = 0.99  # the effort from which a strength counts as at its bound
LITTLE_AUTHORITY = 0.2
HELD, SHUT = 0.9, 0.05  # shares of the steps
HIGH_REWARD = 0.5  # of rewards between 0 and 1: above it equal rewards mean a solved task, else one that is too hard

CAUSES = {
    "held": "held",
    "idle": "not held, idle: the method acts only from the second optimizer step on a rollout on, and there was one. "
    "Lower --train.batch_size, raise --train.max_epochs, or choose another --policy_loss",
    "overshot": "not held, overshot: the method acted in the first half, and then the entropy stayed above the "
    "target, where it does not act. Lower the method's bound or, under pi, --entropy.k_p, or let it act there too "
    "with --entropy.schedule pi --entropy.sides both",
    "shut": "not held, shut: the entropy stayed above the target by itself, so nothing was needed. "
    "Raise --entropy.target if it is to be higher, or lower it with --entropy.schedule pi --entropy.sides both",
    "at its bound": "not held, at its bound: the method acted at full strength, and it was not enough. "
    "Lower --entropy.target, raise the method's bound, or choose --entropy.schedule pi if another is set. A policy "
    "that learns the one right answer of a prompt becomes certain of it under any method",
    "unsteady": "not held, unsteady: the entropy left the band on one side, then on the other, and came back. Lower "
    "the method's bound or, under pi, --entropy.k_p, or raise --rollout.batch_size, which makes steps more alike",
    "slow": "not held, slow: the method was not at full strength. "
    "Train longer, raise --entropy.k_p, or choose --entropy.schedule pi if another is set",
}
SOLVED = (
    "and rewards are high: the task is solved. Give harder prompts or --algo.dynamic_filtering_enable, or accept it"
)
TOO_HARD = (
    "and rewards are low: the task is too hard. Give easier prompts, more --rollout.n_samples_per_prompt or "
    "--algo.dynamic_filtering_enable"
)


@dataclass(frozen=True)
class Verdict:
    """What became of the target: its kind, one of those above, and a sentence with the figures and the remedy."""

    kind: str
    sentence: str


def verdict(
    steps: Sequence[Mapping[str, float]],
    is_idle: bool = False,
    needs_advantages: bool = True,
    pursues_target: bool = True,
) -> Verdict | None:
    """The verdict on a run; None where no step has an entropy and a target, or where the target is not pursued.

    Args:
        steps: the figures logged in each step, by their names, in the order of the steps.
        is_idle: the method acts from the second optimizer step on a rollout on, and each has one.
        needs_advantages: the method does nothing to a token without an advantage.
        pursues_target: the schedule acts by the target; of one that does not, only that it is idle is said.
    """
    steps = [step for step in steps if math.isfinite(step.get(ENTROPY, math.nan)) and step.get(TARGET, 0) > 0]
    if not steps or not (pursues_target or is_idle):
        return None
    half = steps[len(steps) // 2 :]
    entropy, target = (fmean(step[name] for step in half) for name in (ENTROPY, TARGET))
    figures = (
        f"entropy {entropy:.3f} nats, target {target:.3f}, over the second half of the steps, "
        f"{100 * _in_band(half):.0f} % of them within ±{100 * BAND:.0f} %"
    )
    acted_before = any(step.get(GATE, 0) > 0 for step in steps[: len(steps) // 2])
    kind = _kind(half, is_idle, acted_before, needs_advantages) if pursues_target else "idle"
    cause = _without_authority(half) if kind == "no authority" else CAUSES[kind]
    return Verdict(kind, f"{figures}: {cause}")


def _kind(half: list[Mapping[str, float]], is_idle: bool, acted_before: bool, needs_advantages: bool) -> str:
    if _in_band(half) >= HELD:
        return "held"
    if is_idle:
        return "idle"
    is_above = fmean(step[ENTROPY] for step in half) > fmean(step[TARGET] for step in half)
    if is_above and _share(half, lambda step: step.get(GATE, 0) > 0) < SHUT:
        return "overshot" if acted_before else "shut"
    if needs_advantages and _share(half, lambda step: step.get(AUTHORITY, 1) < LITTLE_AUTHORITY) > 0.5:
        return "no authority"
    if _share(half, lambda step: abs(step.get(EFFORT, 0)) >= AT_BOUND) > 0.5:
        return "at its bound"
    sides = [step[ENTROPY] > step[TARGET] for step in half if not _is_in_band(step)]
    return "unsteady" if sum(side != last for last, side in pairwise(sides)) > 1 else "slow"


def _is_in_band(step: Mapping[str, float]) -> bool:
    return abs(step[ENTROPY] - step[TARGET]) <= BAND * step[TARGET]


def _in_band(steps: list[Mapping[str, float]]) -> float:
    return _share(steps, _is_in_band)


def _without_authority(half: list[Mapping[str, float]]) -> str:
    """Why so few tokens have an advantage: by the mean reward, where it was logged."""
    authority = fmean(step[AUTHORITY] for step in half if AUTHORITY in step)
    cause = f"not held, no authority: only {100 * authority:.0f} % of the tokens have an advantage"
    rewards = [step[REWARD] for step in half if math.isfinite(step.get(REWARD, math.nan))]
    if not rewards:
        return f"{cause}, as where a prompt's responses have equal rewards. Give prompts of another difficulty"
    why = SOLVED if fmean(rewards) > HIGH_REWARD else TOO_HARD
    return f"{cause}: the rewards of a prompt's responses are equal (mean {fmean(rewards):.3f}), {why}"


def _share(steps: list[Mapping[str, float]], holds: Callable[[Mapping[str, float]], bool]) -> float:
    return sum(map(holds, steps)) / len(steps)
