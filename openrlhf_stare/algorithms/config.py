"""The options of the algorithms. These dataclasses are the only place where a default is written."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

VARIANTS = ("O1", "C2")
SCHEDULES = ("fixed", "adaptive", "pi")
SCOPES = ("rollout", "micro_batch")
ENTROPIES = ("exact", "sampled")
SELECTIONS = ("auto", "kthvalue", "radix")


def option(default: object, description: str, choices: tuple[str, ...] | None = None) -> object:
    """A dataclass field that carries what a command-line flag needs: its help text and its choices."""
    return dataclasses.field(default=default, metadata={"help": description, "choices": choices})


@dataclass(frozen=True)
class StareConfig:
    """The options of STARE, checked when made. Under `pi`, `reweight_w` and `reweight_m` are without effect.

    Raises:
        ValueError: an option is outside its range. The message starts with the option's name and its value and ends
            with the remedy.
    """

    variant: str = option("O1", "O1 raises the weight of L+ only; C2 also lowers the weight of L-", VARIANTS)
    top_p_ratio: float = option(0.1, "P: share of T+ (and of T-) that is entropy-critical, between 0 and 1")
    reweight_w: float = option(1.1, "W: weight of L+, at least 1 (the start value under the adaptive schedule)")
    reweight_m: float = option(0.9, "M: weight of L- under C2, above 0 and at most 1")
    target_entropy: float = option(0.3, "H_tgt in nats: the weights act while the batch-mean entropy is below it")
    schedule: str = option(
        "fixed",
        "fixed keeps W and M; adaptive moves them by alpha once a rollout; pi is a proportional-integral controller",
        SCHEDULES,
    )
    alpha: float = option(0.01, "step of W and M under the adaptive schedule")
    w_max: float = option(1.5, "ceiling of W under the adaptive and pi schedules")
    m_min: float = option(0.5, "floor of M under the adaptive and pi schedules")
    scope: str = option("rollout", "the pool whose tokens are ranked: the whole rollout or each micro-batch", SCOPES)
    entropy: str = option("exact", "batch entropy: exact, or sampled as the mean of -log pi of the tokens", ENTROPIES)
    k_p: float = option(2.0, "proportional gain of log W under the pi schedule, at least 0")
    k_i: float = option(0.1, "integral gain of log W under the pi schedule, at least 0")
    selection: str = option(
        "auto", "how thresholds are found: gathering (kthvalue), counting (radix), or by batch size (auto)", SELECTIONS
    )
    record_tokens: int = option(0, "responses of each rollout that are written down token by token; 0 for none")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if choices := field.metadata["choices"]:
                self._require(
                    field.name, value in choices, f"is not one of {', '.join(choices)}", "choose one of them"
                )
            else:
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                self._require(field.name, is_number and math.isfinite(value), "is not a finite number", "give one")
        self._require("top_p_ratio", 0 <= self.top_p_ratio <= 1, "is outside [0, 1]", "give a share such as 0.1")
        self._require("reweight_w", self.reweight_w >= 1, "is below 1", "give a weight of at least 1, such as 1.1")
        self._require("reweight_m", 0 < self.reweight_m <= 1, "is outside (0, 1]", "give a weight such as 0.9")
        self._require("target_entropy", self.target_entropy > 0, "is not above 0", "give nats, such as 0.3")
        self._require("alpha", self.alpha >= 0, "is below 0", "give a step such as 0.01")
        self._require("k_p", self.k_p >= 0, "is below 0", "give a gain such as 2")
        self._require("k_i", self.k_i >= 0, "is below 0", "give a gain such as 0.1")
        self._require("record_tokens", isinstance(self.record_tokens, int), "is not an integer", "give one, such as 4")
        self._require("record_tokens", self.record_tokens >= 0, "is below 0", "give 0 for none, or a number such as 4")
        if self.schedule == "adaptive":
            at_least_w = f"give at least reweight_w = {self.reweight_w}"
            at_most_m = f"give a value above 0 and at most reweight_m = {self.reweight_m}"
            self._require("w_max", self.w_max >= self.reweight_w, "is below reweight_w", at_least_w)
            self._require("m_min", 0 < self.m_min <= self.reweight_m, "is outside (0, reweight_m]", at_most_m)
        if self.schedule == "pi":
            self._require("w_max", self.w_max >= 1, "is below 1", "give a ceiling such as 1.5")
            self._require("m_min", 0 < self.m_min <= 1, "is outside (0, 1]", "give a floor such as 0.5")

    def _require(self, name: str, holds: bool, problem: str, remedy: str) -> None:
        if not holds:
            raise ValueError(f"{name} {getattr(self, name)} {problem}: {remedy}")


@dataclass(frozen=True)
class SrGrpoConfig:
    """The option of SR-GRPO (`--advantage_estimator sr_grpo`), checked when made.

    Raises:
        ValueError: as for `StareConfig`.
    """

    tau: float = option(0.5, "temperature of a group's soft reward: near 0 its best reward, large its mean reward")

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ValueError(f"tau {self.tau} is not a finite number above 0: give one, such as 0.5")


@dataclass(frozen=True)
class TpoConfig:
    """The options of Target Policy Optimization (arXiv 2604.06159), checked when made.

    Raises:
        ValueError: as for `StareConfig`.
    """

    eta: float = option(1.0, "temperature of the target: small puts all on the best response, large keeps the policy")
    length_normalize: bool = option(True, "divide a response's log-prob by its tokens; off for short responses only")

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eta) and self.eta > 0):
            raise ValueError(f"eta {self.eta} is not a finite number above 0: give a temperature such as 1")
