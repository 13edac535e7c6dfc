"""KL-Cov (arXiv 2505.22617): holds back the few tokens that lower entropy most by a KL penalty.

    c = (A - mean A)(l - mean l), l = log pi_old, means over all action tokens of the rollout on all ranks
    k = max(1, floor(share N)) tokens of largest c:  loss = -A r + coefficient |log r|, not clipped;  r = pi / pi_old
    all others:                                      OpenRLHF's loss

Published constants: coefficient 1; share 0.002 for 7B, 0.0002 for 32B (`k_percent` 0.2 and 0.02 in the code).

Ours differs from the published code (PRIME-RL/Entropy-Mechanism-of-RL, verl/trainer/ppo/core_algos.py) in this:
- It takes means and the k largest from one micro-batch of one rank and the current log-probs. Here the pool is the
  rollout and the set stays for the whole `fit`.
- It clips no token. Here only the k are not clipped, as in the paper; a wide clip range gives the other.
- Where several tokens have the k-th largest c, it takes any of them. Here all are in, so that neither the order of
  the tokens nor their ranks matter. A token with c = 0 is never in unless share is 1: where all advantages are equal,
  all c are 0, and the penalty would be on all tokens.
- log r is limited to -20 and 20, as everywhere in OpenRLHF.

It does nothing in the first optimizer step after a rollout: there r = 1, and |log r| has the gradient 0. So it needs
several steps on a rollout. It does nothing either where all advantages are 0. Under the gspo surrogate, where a
token's own loss cannot be taken away, it must not be used: the new loss would come on top, and push the k twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.algorithms.covariance import pooled_means, share_count, token_covariance
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.selection import kth_largest
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option
from openrlhf_stare.rules import Finding


@dataclass(frozen=True)
class KlCovOptions(Options):
    share: float = option(0.002, "share of the action tokens held back", within="(0, 1]")
    coefficient: float = option(1.0, "weight of abs(log r) in their loss", within="[0, inf)")
    bound: float = option(10.0, "highest coefficient that a schedule may set", within="(0, inf)")


class KlCov(Method):
    Options = KlCovOptions
    options: KlCovOptions
    acts_in_first_step = False

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return (Strength("coefficient", 0.0, self.options.coefficient, self.options.bound),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.coefficient = strengths["coefficient"]
        self.means = pooled_means(tokens.log_probs, tokens.advantages, group)
        c = token_covariance(tokens.log_probs, tokens.advantages, self.means)
        self.threshold = kth_largest([c], [lambda n: share_count(n, self.options.share)], group=group)[0].item()
        held = all_reduce_sums([int(self._held(tokens).sum())], group).item()
        return {"kl_cov/threshold": self.threshold, "kl_cov/held_ratio": held / max(self.means.tokens, 1)}

    def _held(self, tokens: Tokens) -> Tensor:
        c = token_covariance(tokens.log_probs, tokens.advantages, self.means)
        return tokens.action_mask & (c >= self.threshold) & ((c != 0) | (self.options.share == 1))

    def weights(self, tokens: Tokens) -> Tensor | None:
        return None if self.coefficient == 0 else (~self._held(tokens)).float()

    def penalty(self, log_probs: Tensor, tokens: Tokens) -> Tensor | None:
        if self.coefficient == 0:
            return None
        log_ratio = (log_probs - tokens.log_probs).clamp(min=-20.0, max=20.0)
        loss = self.coefficient * log_ratio.abs() - tokens.advantages * log_ratio.exp()
        return torch.where(self._held(tokens), loss, 0.0)

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        if args.actor.policy_loss_type == "gspo":
            yield Finding(
                "--actor.policy_loss_type gspo",
                f"does not go with --policy_loss {args.policy_loss}, since it has one ratio per response, out of "
                "which no token can be taken to be held back",
                "use ppo",
            )
