"""Weights by the sign of the advantage (EntroPIC, arXiv 2511.15248; W-REINFORCE, arXiv 2506.01347).

    weight = 1 - alpha where A > 0, 1 + alpha where A < 0

Good responses sharpen a policy, bad ones flatten it, so alpha moves weight from the first to the second.
Published constants: EntroPIC sets alpha by a proportional-integral rule, with a gain of 1 per nat and 0.01 per nat and
step, at the target 0.1 (Qwen3-8B). In the relative units here these are 1 · 0.1 / 0.9 = 0.11 and 0.0011, the defaults.
W-REINFORCE's weights 0.1 and 1 are those of alpha 0.82, up to a common factor of 1.82.

Ours differs from the published codes (yk7333/EntroPIC, core_algos.py and dp_actor.py; lblaoke/entrocraft,
verl/trainer/ppo/core_algos.py) in this: EntroPIC's own weighs only tokens of high probability, averages them apart and
takes the entropy of a micro-batch; entrocraft's weighs rewards. In both, above the target alpha goes below 0 and
strengthens good responses, which here is `--entropy.sides both`; else the loss above the target is OpenRLHF's.

It does nothing where all advantages are 0. With alpha near 1 hardly anything is learned from good responses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class SignWeightsOptions(Options):
    alpha: float = option(0.5, "weight that A > 0 loses and A < 0 gains", within="[0, 1]")
    bound: float = option(0.9, "highest alpha that a schedule may set", within="(0, 1]")


class SignWeights(Method):
    Options = SignWeightsOptions
    options: SignWeightsOptions
    control = {"schedule": "pi", "target": 0.1, "k_p": 0.11, "k_i": 0.0011}

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return (Strength("alpha", 0.0, self.options.alpha, self.options.bound, counter=-self.options.bound),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.alpha = strengths["alpha"]
        return {}

    def weights(self, tokens: Tokens) -> Tensor | None:
        return None if self.alpha == 0 else 1 - self.alpha * tokens.advantages.sign()
