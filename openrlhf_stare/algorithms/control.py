"""The controller: once a rollout, from its entropy to the strengths with which a method acts. It knows neither how the
entropy is measured nor what a method does.

Its four schedules; H is the mean entropy of the rollout's tokens over all ranks and H_tgt its target, in nats:

    open       start, whatever the entropy
    gate       start while H < H_tgt, else neutral
    adaptive   moves by `step` towards bound where H < H_tgt, towards neutral where H > H_tgt, clipped at both;
               acts only while H < H_tgt, else neutral
    pi         e = (H_tgt - H) / H_tgt      I <- clip(I + k_i e, 0, 1)      u = clip(k_p e + I, 0, 1)
               neutral + u (bound - neutral), on a log scale neutral (bound / neutral)^u; acts while u > 0

Sources: `gate` and `adaptive` are STARE's (arXiv 2606.19236, section 4.4); `adaptive` is also the adaptive entropy
coefficient of Skywork-OR1 (arXiv 2505.22312) and TRL. Controlling entropy by a PI rule is EntroPIC's idea (arXiv
2511.15248); there the error is in nats and the effort is not limited. Here u, the effort, is 0 to 1 for every method,
so that gains mean the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_stare.options import Options, option

SCHEDULES = ("open", "gate", "adaptive", "pi")
MEASURES = ("exact", "sampled")


class PolicyCollapsed(ArithmeticError):
    """The entropy stayed below `stop_below` for `stop_after` rollouts in a row."""


@dataclass(frozen=True)
class Strength:
    """A number of a method that the controller sets once a rollout. Its name is that of the option with its start.

    At `neutral` the loss is OpenRLHF's, bit for bit; `start` is the published value; `bound`, on the other side of
    `start`, is as far as the controller may go. On the scale "log" it goes there in equal ratios, else in equal steps.
    """

    name: str
    neutral: float
    start: float
    bound: float
    scale: str = "linear"

    def at(self, effort: float) -> float:
        """The value at an effort from 0, where it is neutral, to 1, where it is the bound."""
        if self.scale == "log":
            return self.clip(self.neutral * (self.bound / self.neutral) ** effort)
        return self.clip(self.neutral + effort * (self.bound - self.neutral))

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

    target: float = option(0.3, "H_tgt in nats: below it the method acts", within="(0, inf)")
    target_end: float = option(0.0, "H_tgt after anneal_rollouts rollouts; 0 for a constant target", within="[0, inf)")
    anneal_rollouts: int = option(
        0, "rollouts in which H_tgt goes in a line from target to target_end, restarts included", within="[0, inf)"
    )
    schedule: str = option(
        "gate",
        "open: the method acts whatever the entropy; gate: while it is below the target; adaptive: with a strength "
        "that moves by step a rollout; pi: with a strength from a proportional-integral controller",
        SCHEDULES,
    )
    step: float = option(0.01, "by how much adaptive moves each strength a rollout", within="[0, inf)")
    k_p: float = option(4.0, "gain of pi on the relative error (H_tgt - H) / H_tgt", within="[0, inf)")
    k_i: float = option(0.05, "gain of pi on the running sum of the relative error", within="[0, inf)")
    measure: str = option(
        "exact", "entropy of a token: exact, over the vocabulary, or sampled, -log pi of the token", MEASURES
    )
    stop_below: float = option(0.0, "end the job when the entropy stays below it, in nats; 0 never", within="[0, inf)")
    stop_after: int = option(10, "rollouts in a row below stop_below that end the job", within="[1, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        anneals = self.anneal_rollouts > 0
        self.require(
            "target_end",
            self.target_end > 0 or not anneals,
            "is no target to anneal to",
            "give one such as 0.1, or leave anneal_rollouts out",
        )
        self.require(
            "anneal_rollouts",
            anneals or self.target_end == 0,
            "leaves no rollouts in which to reach target_end",
            "give a number such as 200, or leave target_end out",
        )

    def target_at(self, rollout: int) -> float:
        """H_tgt in nats of the rollout of this number; the first of a run has 0."""
        if not self.anneal_rollouts:
            return self.target
        gone = min(rollout / self.anneal_rollouts, 1.0)
        return (1 - gone) * self.target + gone * self.target_end


class EntropyController:
    """What sets a method's strengths, the same on all ranks if the entropy is.

    Attributes:
        target: H_tgt of the last update, in nats; before the first, of the first rollout.
        gate_on: whether the method acts in the coming `fit`.
        effort: how far the first strength is from neutral (0) to its bound (1), on its scale; under `pi` u.
        integral: I of `pi`.
        values: for each strength, by name, its value while the gate is on.
        updates: how many entropies were taken.
        rejected: how many were not, because they were not finite.
        low_rollouts: how many of the last in a row were below `stop_below`.
    """

    def __init__(self, control: EntropyControl, strengths: Sequence[Strength]) -> None:
        """
        Raises:
            ValueError: the schedule does not go with the strengths. The message starts with `schedule` or the
                strength's name, then its value.
        """
        self.control, self._strengths = control, tuple(strengths)
        schedule, is_pi = control.schedule, control.schedule == "pi"
        if schedule != "open" and not self._strengths:
            raise ValueError(f"schedule {schedule} sets strengths, and this method has none: give open")
        for s in self._strengths:
            if schedule == "adaptive" and s.clip(s.start) != s.start:
                low, high = sorted((s.neutral, s.bound))
                raise ValueError(
                    f"{s.name} {s.start} is outside the {low} to {high} in which the schedule adaptive keeps it: "
                    "give a value inside or another bound"
                )
        self.target = control.target_at(0)
        self.gate_on = not is_pi
        self.integral = 0.0
        self.values = {s.name: float(s.neutral if is_pi else s.start) for s in self._strengths}
        self.effort = self._first_effort()
        self.updates = self.rejected = self.low_rollouts = 0

    def update(self, entropy: float) -> dict[str, float]:
        """Take the entropy of a rollout.

        Args:
            entropy: H in nats. One that is not finite changes nothing but the counter `rejected`.

        Returns:
            The strengths of the coming `fit`, by name, as `strengths` has them.
        """
        entropy = float(entropy)
        if not math.isfinite(entropy):
            self.rejected += 1
            return self.strengths
        self.target = self.control.target_at(self.updates)
        self.updates += 1
        self.low_rollouts = self.low_rollouts + 1 if entropy < self.control.stop_below else 0
        shortfall = self.target - entropy
        if self.control.schedule == "pi":
            self._proportional_integral(shortfall / self.target)
        elif self.control.schedule != "open":
            self.gate_on = entropy < self.target
            if self.control.schedule == "adaptive":
                self._step(shortfall)
            self.effort = self._first_effort()
        return self.strengths

    @property
    def strengths(self) -> dict[str, float]:
        """What the method acts with, by name: the values, or neutral while the gate is off."""
        return dict(self.values) if self.gate_on else {s.name: float(s.neutral) for s in self._strengths}

    @property
    def collapse(self) -> str | None:
        """Why the job is to end: `stop_after` rollouts in a row were below `stop_below`. None if it is not to."""
        if self.low_rollouts < self.control.stop_after:
            return None
        return (
            f"The entropy was below --entropy.stop_below {self.control.stop_below} for {self.low_rollouts} rollouts "
            "in a row: the policy has collapsed. Go on from an earlier checkpoint with a higher --entropy.target or "
            "a stronger method, or give --entropy.stop_below 0"
        )

    def _step(self, shortfall: float) -> None:
        step = 0.0 if shortfall == 0 else math.copysign(self.control.step, shortfall)
        for s in self._strengths:
            self.values[s.name] = s.clip(self.values[s.name] + math.copysign(1.0, s.bound - s.neutral) * step)

    def _proportional_integral(self, error: float) -> None:
        self.integral = _clip(self.integral + self.control.k_i * error, 0.0, 1.0)
        self.effort = _clip(self.control.k_p * error + self.integral, 0.0, 1.0)
        self.gate_on = self.effort > 0
        self.values = {s.name: s.at(self.effort) for s in self._strengths}

    def _first_effort(self) -> float:
        if not (self.gate_on and self._strengths):
            return 0.0
        first = self._strengths[0]
        return first.effort(self.values[first.name])

    # ── checkpoints ──

    def state_dict(self) -> dict:
        """What a checkpoint keeps: plain numbers, and `values` with a number for each strength."""
        own = {name: value for name, value in vars(self).items() if name not in ("control", "_strengths")}
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
        """Forget for how many rollouts the entropy has been too low, so that a remedy has its time to act."""
        self.low_rollouts = 0


def _names(state: dict) -> set[str]:
    return {*state, *(f"values.{name}" for name in state.get("values", ()))}


def _clip(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))
