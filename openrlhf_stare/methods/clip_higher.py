"""Clip-Higher (DAPO, arXiv 2503.14476; adaptive as in ADAPO, arXiv 2603.11682): the upper clip range is wider.

    the ratio r = pi / pi_old is clipped to 1 - eps_low and 1 + eps_high, where OpenRLHF's surrogate clips it

An unlikely token can only grow by a factor before it is clipped, which is little. A wider upper range lets unlikely
tokens of good responses grow further, which raises entropy; an upper range as narrow as the lower one lowers it.
Published constants: eps_low 0.2, eps_high 0.28. Neutral is what the user's `--actor.eps_clip_low_high` says.

The loss is OpenRLHF's own with another eps_high, which the published code (verl's `clip_ratio_high`) sets once for
all. It does nothing in the first optimizer step after a rollout, in which r = 1 and nothing is clipped, so it needs
several steps on a rollout; nor where all advantages are 0.
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
class ClipHigherOptions(Options):
    eps_high: float = option(0.28, "the upper clip range", within="[0, inf)")
    bound: float = option(1.0, "highest upper clip range that a schedule may set", within="(0, inf)")


class ClipHigher(Method):
    Options = ClipHigherOptions
    options: ClipHigherOptions
    acts_in_first_step = False
    tells_tokens_apart = False

    @property
    def strengths(self) -> tuple[Strength, ...]:
        low, high = self.clip_range
        # Where the user's ranges are equal there is nothing narrower to go to.
        counter = low if low < high else None
        return (Strength("eps_high", high, self.options.eps_high, self.options.bound, counter=counter),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.eps_high = strengths["eps_high"]
        return {}

    def surrogate_range(self) -> tuple[float, float]:
        return self.clip_range[0], self.eps_high

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        users, control = self.clip_range[1], control_of(args)
        # Which of the two the schedule takes; the last one is what it can reach.
        taken = {"adaptive": ("eps_high", "bound"), "pi": ("bound",)}.get(control.schedule, ("eps_high",))
        reached = taken[-1]
        if getattr(self.options, reached) == users and control.sides == "below":
            yield Finding(
                f"--clip_higher.{reached} {users:g}",
                "is the upper clip range of --actor.eps_clip_low_high already, so that nothing would change",
                "raise the first or lower the second",
            )
        for name in taken:
            if getattr(self.options, name) < users:
                yield Finding(
                    f"--clip_higher.{name} {getattr(self.options, name):g}",
                    f"is below the upper clip range {users:g} of --actor.eps_clip_low_high, the neutral value",
                    "raise the first or lower the second",
                )
