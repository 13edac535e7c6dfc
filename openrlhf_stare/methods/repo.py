"""REPO-R (arXiv 2603.11682), as SkyRL has it: every token's weight goes by its surprisal.

    weight = max(0, 1 + zeta s) where A > 0, max(0, 1 - zeta s) where A < 0, 1 elsewhere;  s = -log pi_old

Entropy falls where advantage and log-prob go together. With zeta above 0 a surprising token of a good response counts
more and one of a bad response less, which takes from that correlation; with zeta below 0 it is the other way round,
and the entropy falls. No weight is below 0, so no advantage changes its sign. Published constant: zeta 0.01 at the
start.

Ours differs from the published code (NovaSky-AI/SkyRL, pull request 1896) in this: it takes the log-probs of the
training pass, here they are pi_old's, so that the weights stay for the whole `fit`; and it halves or doubles zeta
towards a target, which here is the controller's part.

It does nothing where all advantages are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class RepoOptions(Options):
    zeta: float = option(0.01, "change of the weight per nat of surprisal", within="[0, inf)")
    bound: float = option(1.0, "highest zeta that a schedule may set", within="(0, inf)")


class Repo(Method):
    Options = RepoOptions
    options: RepoOptions

    @property
    def strengths(self) -> tuple[Strength, ...]:
        bound = self.options.bound
        return (Strength("zeta", 0.0, self.options.zeta, bound, counter=-bound),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.zeta = strengths["zeta"]
        weights = self.weights(tokens)
        weights = torch.ones_like(tokens.log_probs) if weights is None else weights
        own = [weights.numel(), int((weights == 0).sum()), weights.double().sum().item()]
        n, without_weight, total = all_reduce_sums(own, group).tolist()
        return {"repo/zero_ratio": without_weight / max(n, 1.0), "repo/mean_weight": total / max(n, 1.0)}

    def weights(self, tokens: Tokens) -> Tensor | None:
        if self.zeta == 0:
            return None
        return (1 - self.zeta * tokens.advantages.sign() * tokens.log_probs.float()).clamp(min=0)
