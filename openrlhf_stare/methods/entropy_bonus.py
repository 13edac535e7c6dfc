"""An entropy bonus with an adaptive coefficient (Skywork-OR1, arXiv 2505.22312; TRL's `use_adaptive_entropy`).

    objective = OpenRLHF's + coefficient · mean entropy of the action tokens, with its gradient

The bonus is OpenRLHF's own (`--actor.entropy_coef`); this method sets its coefficient once a rollout.
Published constants: step 0.005 and target 0.2 (TRL), at most 0.005 (Skywork-OR1) or 1 (TRL), start 0. On the addends
task of this repository a constant 0.02 let the entropy slide to 0.11, and 0.05 held 0.25.

Ours differs from the published codes (SkyworkAI/Skywork-OR1, verl/trainer/ppo/core_algos.py; huggingface/trl,
trl/trainer/grpo_trainer.py) in this: the entropy is that of the whole rollout before its first step, where TRL takes
that of the last optimizer step; and at an entropy that is exactly the target the coefficient stays, where Skywork-OR1
lowers and TRL raises it.

The only method here that acts where all advantages are 0, because it does not act through them. The training pass
computes entropies, which costs memory and time in proportion to the vocabulary. The bonus raises the entropy of every
token, useful or not; a coefficient that is too high makes text random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch.distributed as dist

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.methods.base import Method, Tokens, control_of
from openrlhf_stare.options import Options, option
from openrlhf_stare.rules import Finding


@dataclass(frozen=True)
class EntropyBonusOptions(Options):
    coefficient: float = option(0.0, "initial weight of the mean entropy in the objective", within="[0, inf)")
    bound: float = option(0.2, "highest coefficient that a schedule may set", within="(0, inf)")


class EntropyBonus(Method):
    Options = EntropyBonusOptions
    options: EntropyBonusOptions
    control = {"schedule": "adaptive", "step": 0.005, "target": 0.2}
    needs_advantages = False
    tells_tokens_apart = False

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return (
            Strength("coefficient", 0.0, self.options.coefficient, self.options.bound, counter=-self.options.bound),
        )

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.coefficient = strengths["coefficient"]
        return {}

    def entropy_coefficient(self) -> float:
        return self.coefficient

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        if args.actor.entropy_coef is not None:
            yield Finding(
                f"--actor.entropy_coef {args.actor.entropy_coef:g}",
                f"does not go with --policy_loss {args.policy_loss}, which sets it",
                "give --entropy_bonus.coefficient instead",
            )
        schedule = control_of(args).schedule
        if schedule in ("open", "gate") and self.options.coefficient == 0:
            yield Finding(
                f"--entropy.schedule {schedule}",
                f"leaves --entropy_bonus.coefficient at its start of 0, at which {self.name} does nothing",
                "give --entropy_bonus.coefficient one above 0, or the schedule adaptive or pi",
            )
