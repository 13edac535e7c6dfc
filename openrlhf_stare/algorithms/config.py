"""The options of STARE, of the entropy's measure and of its control."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.options import Options, option

VARIANTS = ("O1", "C2")
SCHEDULES = ("fixed", "adaptive", "pi")
ENTROPIES = ("exact", "sampled")
SELECTIONS = ("auto", "kthvalue", "radix")


@dataclass(frozen=True)
class StareConfig(Options):
    """The options of STARE, checked when made. Under `pi`, `reweight_w` and `reweight_m` are without effect.

    Raises:
        ValueError: an option is outside its range. The message starts with the option's name and its value and ends
            with the remedy.
    """

    variant: str = option("O1", "O1 raises the weight of L+ only; C2 also lowers the weight of L-", VARIANTS)
    top_p_ratio: float = option(
        0.1, "P: share of T+ (and of T-) that is entropy-critical, between 0 and 1", within="[0, 1]"
    )
    reweight_w: float = option(
        1.1, "W: weight of L+, at least 1 (the start value under the adaptive schedule)", within="[1, inf)"
    )
    reweight_m: float = option(0.9, "M: weight of L- under C2, above 0 and at most 1", within="(0, 1]")
    target_entropy: float = option(
        0.3, "H_tgt in nats: the weights act while the batch-mean entropy is below it", within="(0, inf)"
    )
    schedule: str = option(
        "fixed",
        "fixed keeps W and M; adaptive moves them by alpha once a rollout; pi is a proportional-integral controller",
        SCHEDULES,
    )
    alpha: float = option(0.01, "step of W and M under the adaptive schedule", within="[0, inf)")
    w_max: float = option(1.5, "ceiling of W under the adaptive and pi schedules")
    m_min: float = option(0.5, "floor of M under the adaptive and pi schedules")
    entropy: str = option("exact", "batch entropy: exact, or sampled as the mean of -log pi of the tokens", ENTROPIES)
    k_p: float = option(2.0, "proportional gain of log W under the pi schedule, at least 0", within="[0, inf)")
    k_i: float = option(0.1, "integral gain of log W under the pi schedule, at least 0", within="[0, inf)")
    selection: str = option(
        "auto", "how thresholds are found: gathering (kthvalue), counting (radix), or by batch size (auto)", SELECTIONS
    )
    record_tokens: int = option(
        0, "responses of each rollout that are written down token by token; 0 for none", within="[0, inf)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "adaptive":
            at_least_w = f"give at least reweight_w = {self.reweight_w}"
            at_most_m = f"give a value above 0 and at most reweight_m = {self.reweight_m}"
            self.require("w_max", self.w_max >= self.reweight_w, "is below reweight_w", at_least_w)
            self.require("m_min", 0 < self.m_min <= self.reweight_m, "is outside (0, reweight_m]", at_most_m)
        if self.schedule == "pi":
            self.require("w_max", self.w_max >= 1, "is below 1", "give a ceiling such as 1.5")
            self.require("m_min", 0 < self.m_min <= 1, "is outside (0, 1]", "give a floor such as 0.5")
