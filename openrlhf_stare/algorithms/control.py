"""The controller: once a rollout, from its entropy to the strengths with which a method acts. It knows neither how the
entropy is measured nor what a method does.

Its four schedules; H is the mean entropy of the rollout's tokens over all ranks and H_tgt its target, in nats:

    open       start, whatever the entropy
    gate       start while H < H_tgt, else neutral
    adaptive   moves by `step` towards bound where H < H_tgt, towards neutral where H > H_tgt, clipped at both;
               acts only while H < H_tgt, else neutral
    pi         e = (H_tgt - H) / H_tgt      I <- clip(I + k_i e, 0, 1)      u = clip(k_p e + I, 0, 1)
               neutral + u (bound - neutral), on a log scale neutral (bound / neutral)^u; acts while u > 0
               with `sides` both, I and u are clipped to -1 and 1, and for u < 0 |u| leads to the counter

H_tgt, and the entropies that end a job, are in nats or percentages of H_0, the first finite H of the run.

Sources: `gate` and `adaptive` are STARE's (arXiv 2606.19236, section 4.4); `adaptive` is also the adaptive entropy
coefficient of Skywork-OR1 (arXiv 2505.22312) and TRL. Controlling entropy by a PI rule is EntroPIC's idea (arXiv
2511.15248); there the error is in nats and the effort is not limited. Here u, the effort, is 0 to 1 (on both sides -1
to 1) for every method, so that gains mean the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_stare.algorithms.verdict import AT_BOUND, BAND
from openrlhf_stare.options import Options, option, share

SCHEDULES = ("open", "gate", "adaptive", "pi")
MEASURES = ("exact", "sampled")
SIDES = ("below", "both")
STUCK_ROLLOUTS = 20  # in a row, out of band with the strengths at their bounds, after which the user is warned


class EntropyOutOfRange(ArithmeticError):
    """The entropy stayed beyond `stop_below` or `stop_above` for `stop_after` rollouts in a row, or was not above 0
    where something is to be a percentage of it."""


@dataclass(frozen=True)
class Strength:
    """A number of a method that the controller sets once a rollout. Its name is that of the option with its start.

    At `neutral` the loss is OpenRLHF's, bit for bit; `start` is the published value; `bound`, on the other side of
    `start`, is as far as the controller may go. On the scale "log" it goes there in equal ratios, else in equal steps.
    `counter`, on the other side of `neutral`, is as far as it may go to lower the entropy; None: it stays neutral.
    """

    name: str
    neutral: float
    start: float
    bound: float
    scale: str = "linear"
    counter: float | None = None

    def at(self, effort: float) -> float:
        """The value at an effort from 0, where it is neutral, to 1, where it is the bound, or -1, its counter."""
        end = self.bound if effort >= 0 else self.neutral if self.counter is None else self.counter
        if self.scale == "log":
            value = self.neutral * (end / self.neutral) ** abs(effort)
        else:
            value = self.neutral + abs(effort) * (end - self.neutral)
        return _clip(value, *sorted((self.neutral, end)))

    def effort(self, value: float) -> float:
        """The effort at which the value is `value`: 0 up to neutral, 1 from the bound on."""
        if self.bound == self.neutral:
            return 0.0
        value = self.clip(value)
        if self.scale == "log":
            return math.log(value / self.neutral) / math.log(self.bound / self.neutral)
        return (value - self.neutral) / (self.bound - self.neutral)

    def clip(self, value: float) -> float:
        """The value between neutral and bound that is nearest to `value`."""
        low, high = sorted((self.neutral, self.bound))
        return _clip(value, low, high)


@dataclass(frozen=True)
class EntropyControl(Options):
    """The options of the controller and of the entropy that it gets. A method's own defaults are in its `control`.

    Raises:
        ValueError: an option is outside its range; see `Options`.
    """

    target: float | str = option(
        0.3,
        "the target in nats, or in percent of the run's first entropy; below it the method acts",
        within="(0, inf)",
        percent=True,
    )
    target_end: float | str = option(
        0.0,
        "the target after anneal_rollouts rollouts, in nats or percent; 0: constant target",
        within="[0, inf)",
        percent=True,
    )
    anneal_rollouts: int = option(
        0, "rollouts over which the target moves linearly to target_end, restarts included", within="[0, inf)"
    )
    schedule: str = option(
        "gate",
        "open: the method always acts; gate: only below the target; adaptive: its strength moves by step per rollout; "
        "pi: its strength comes from a proportional-integral controller",
        SCHEDULES,
    )
    sides: str = option(
        "below",
        "both: pi also lowers an entropy above the target, by the strengths that can",
        SIDES,
    )
    step: float = option(0.01, "how far adaptive moves each strength per rollout", within="[0, inf)")
    k_p: float = option(3.9, "pi's gain on the relative error (target - entropy) / target", within="[0, inf)")
    k_i: float = option(0.05, "pi's gain on the running sum of that error", within="[0, inf)")
    measure: str = option(
        "exact", "a token's entropy: exact, over the vocabulary, or sampled, -log pi of the token", MEASURES
    )
    stop_below: float | str = option(
        0.0,
        "end the job when the entropy stays below this, in nats or percent; 0: never",
        within="[0, inf)",
        percent=True,
    )
    stop_above: float | str = option(
        0.0,
        "end the job when the entropy stays above this, in nats or percent; 0: never",
        within="[0, inf)",
        percent=True,
    )
    stop_after: int = option(
        10, "rollouts in a row beyond stop_below or stop_above that end the job", within="[1, inf)"
    )
    record_tokens: int = option(0, "responses per rollout to record token by token", within="[0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        anneals, has_end = self.anneal_rollouts > 0, self.target_end != 0
        self.require(
            "target_end",
            has_end or not anneals,
            "is not a target to anneal to",
            "give one such as 0.1, or leave anneal_rollouts out",
        )
        self.require(
            "anneal_rollouts",
            anneals or not has_end,
            "leaves no rollouts in which to reach target_end",
            "give a number such as 200, or leave target_end out",
        )
        self.require(
            "sides",
            self.sides == "below" or self.schedule == "pi",
            f"does not go with the schedule {self.schedule}, which has one side",
            "give --entropy.schedule pi, or leave it out",
        )

    @property
    def percentages(self) -> dict[str, str]:
        """The options that are given as percentages of the first entropy."""
        entropies = ("target", "target_end", "stop_below", "stop_above")
        return {name: getattr(self, name) for name in entropies if isinstance(getattr(self, name), str)}

    def nats(self, name: str, first_entropy: float | None) -> float:
        """The option of this name in nats.

        Args:
            first_entropy: H_0 in nats; None as long as there is none, and then a percentage is NaN.
        """
        value = getattr(self, name)
        part = share(value)
        if part is None:
            return value
        return math.nan if first_entropy is None else part * first_entropy

    def target_at(self, rollout: int, first_entropy: float | None = None) -> float:
        """H_tgt in nats of the rollout of this number; the first of a run has 0."""
        target = self.nats("target", first_entropy)
        if not self.anneal_rollouts:
            return target
        gone = min(rollout / self.anneal_rollouts, 1.0)
        return (1 - gone) * target + gone * self.nats("target_end", first_entropy)


class EntropyController:
    """What sets a method's strengths, the same on all ranks if the entropy is.

    Attributes:
        target: H_tgt of the last update, in nats; before the first, of the first rollout, NaN for a percentage.
        first_entropy: H_0 in nats, the first finite entropy of the run; None before it.
        gate_on: whether the method acts in the coming `fit`.
        effort: how far the first strength is from neutral (0) to its bound (1), on its scale; under `pi` u.
        integral: I of `pi`.
        values: for each strength, by name, its value while the gate is on.
        updates: how many entropies were taken.
        rejected: how many were not, because they were not finite.
        low_rollouts, high_rollouts: how many of the last in a row were below `stop_below`, above `stop_above`.
        stuck_rollouts: how many of the last in a row were out of band with the effort at its end.
    """

    def __init__(self, control: EntropyControl, strengths: Sequence[Strength]) -> None:
        """
        Raises:
            ValueError: the schedule does not go with the strengths. The message starts with `schedule`, `sides`
                or the strength's name, then its value.
        """
        self.control, self._strengths = control, tuple(strengths)
        schedule, is_pi = control.schedule, control.schedule == "pi"
        self._lowest_effort = -1.0 if control.sides == "both" else 0.0
        if schedule != "open" and not self._strengths:
            raise ValueError(f"schedule {schedule} sets strengths, and this method has none: give open")
        if control.sides == "both" and all(s.counter is None for s in self._strengths):
            raise ValueError(
                "sides both does not go with this method, none of whose strengths can lower the entropy: "
                "give below, or another method"
            )
        for s in self._strengths:
            if schedule == "adaptive" and s.clip(s.start) != s.start:
                low, high = sorted((s.neutral, s.bound))
                raise ValueError(
                    f"{s.name} {s.start} is outside the {low} to {high} in which the schedule adaptive keeps it: "
                    "give a value inside or another bound"
                )
        self.first_entropy: float | None = None
        self.target = control.target_at(0)
        self.gate_on = not is_pi
        self.integral = 0.0
        self.values = {s.name: float(s.neutral if is_pi else s.start) for s in self._strengths}
        self.effort = self._first_effort()
        self.updates = self.rejected = self.low_rollouts = self.high_rollouts = self.stuck_rollouts = 0

    def update(self, entropy: float) -> dict[str, float]:
        """Take the entropy of a rollout.

        Args:
            entropy: H in nats. One that is not finite changes nothing but the counter `rejected`.

        Returns:
            The strengths of the coming `fit`, by name, as `strengths` has them.

        Raises:
            EntropyOutOfRange: the run's first one is not above 0, and an option is a percentage of it.
        """
        entropy = float(entropy)
        if not math.isfinite(entropy):
            self.rejected += 1
            return self.strengths
        if self.first_entropy is None:
            self.first_entropy = entropy
        if self.first_entropy <= 0 and self.control.percentages:  # rounding, and samples, can make it negative
            raise EntropyOutOfRange(self._nothing_to_take_a_share_of())
        self.target = self.control.target_at(self.updates, self.first_entropy)
        self.updates += 1
        self._count_towards_a_stop(entropy)
        shortfall = self.target - entropy
        if self.control.schedule == "pi":
            self._proportional_integral(shortfall / self.target)
        elif self.control.schedule != "open":
            self.gate_on = entropy < self.target
            if self.control.schedule == "adaptive":
                self._step(shortfall)
            self.effort = self._first_effort()
        pursues = self.control.schedule != "open"
        is_stuck = pursues and abs(self.effort) >= AT_BOUND and abs(shortfall) > BAND * self.target
        self.stuck_rollouts = self.stuck_rollouts + 1 if is_stuck else 0
        return self.strengths

    @property
    def strengths(self) -> dict[str, float]:
        """What the method acts with, by name: the values, or neutral while the gate is off."""
        return dict(self.values) if self.gate_on else {s.name: float(s.neutral) for s in self._strengths}

    @property
    def percentages(self) -> str | None:
        """What the options that are percentages are in nats; None if there are none, or no entropy yet."""
        given = self.control.percentages
        if not given or self.first_entropy is None:
            return None
        in_nats = (
            f"--entropy.{name} {value} is {self.control.nats(name, self.first_entropy):.4g} nats"
            for name, value in given.items()
        )
        return (
            f"This run started at an entropy of {self.first_entropy:.4g} nats, so {', '.join(in_nats)}: a resume "
            "keeps that, and a run that goes on from a saved model starts at its own"
        )

    @property
    def stop(self) -> str | None:
        """Why the job is to end: `stop_after` rollouts in a row were beyond a bound. None if it is not to."""
        for flag, rollouts, what, remedy in (
            ("stop_below", self.low_rollouts, "below", "collapsed. Go on from an earlier checkpoint with a higher"),
            ("stop_above", self.high_rollouts, "above", "dissolved. Go on from an earlier checkpoint with a lower"),
        ):
            if rollouts >= self.control.stop_after:
                value, nats = getattr(self.control, flag), self.control.nats(flag, self.first_entropy)
                in_nats = f" ({nats:.4g} nats)" if flag in self.control.percentages else ""
                return (
                    f"The entropy was {what} --entropy.{flag} {value}{in_nats} for {rollouts} rollouts in a row: the "
                    f"policy has {remedy} --entropy.target or another method, or give --entropy.{flag} 0"
                )
        return None

    def _nothing_to_take_a_share_of(self) -> str:
        name, value = next(iter(self.control.percentages.items()))
        return (
            f"The entropy of the run's first rollout is {self.first_entropy:.4g}, of which --entropy.{name} {value} "
            "is no target or bound: start from a model that is not certain of every token, or give nats"
        )

    def _count_towards_a_stop(self, entropy: float) -> None:
        least, most = (self.control.nats(name, self.first_entropy) for name in ("stop_below", "stop_above"))
        self.low_rollouts = self.low_rollouts + 1 if 0 < least and entropy < least else 0
        self.high_rollouts = self.high_rollouts + 1 if 0 < most < entropy else 0

    def _step(self, shortfall: float) -> None:
        step = 0.0 if shortfall == 0 else math.copysign(self.control.step, shortfall)
        for s in self._strengths:
            self.values[s.name] = s.clip(self.values[s.name] + math.copysign(1.0, s.bound - s.neutral) * step)

    def _proportional_integral(self, error: float) -> None:
        self.integral = _clip(self.integral + self.control.k_i * error, self._lowest_effort, 1.0)
        self.effort = _clip(self.control.k_p * error + self.integral, self._lowest_effort, 1.0)
        self.gate_on = self.effort != 0
        self.values = {s.name: s.at(self.effort) for s in self._strengths}

    def _first_effort(self) -> float:
        if not (self.gate_on and self._strengths):
            return 0.0
        first = self._strengths[0]
        return first.effort(self.values[first.name])

    # ── checkpoints ──

    def follow(self, state: dict) -> None:
        """Start fresh in a run that goes on: its target goes on in its line, and its first entropy is the run's."""
        self.updates, self.first_entropy = state["updates"], state["first_entropy"]
        self.target = self.control.target_at(self.updates, self.first_entropy)

    def state_dict(self) -> dict:
        """What a checkpoint keeps: plain numbers, and `values` with a number for each strength."""
        own = {name: value for name, value in vars(self).items() if name != "control" and name[0] != "_"}
        return own | {"values": dict(self.values)}

    def load_state_dict(self, state: dict) -> None:
        """Take back what `state_dict` gave, bit for bit.

        Raises:
            ValueError: it is of another version or another method.
        """
        own, given = (_names(s) for s in (self.state_dict(), state))
        if own != given:
            lacks, unknown = (", ".join(sorted(names)) or "nothing" for names in (own - given, given - own))
            raise ValueError(
                f"the controller's state lacks {lacks} and has the unknown {unknown}: "
                "give what state_dict() of this version wrote for this method"
            )
        for name, value in state.items():
            setattr(self, name, dict(value) if name == "values" else value)

    def count_anew(self) -> None:
        """Forget for how many rollouts the entropy has been out of range, so that a remedy has its time to act."""
        self.low_rollouts = self.high_rollouts = self.stuck_rollouts = 0


def _names(state: dict) -> set[str]:
    return {*state, *(f"values.{name}" for name in state.get("values", ()))}


def _clip(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))
