"""How much a token lowers entropy, after "The Entropy Mechanism" (arXiv 2505.22617): c = (A - mean A)(l - mean l).

To first order a policy-gradient step changes the entropy by minus the covariance of log-prob and advantage; c is what
one token adds to it. The means are over all action tokens of a rollout on all ranks, and l is log pi_old.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.distributed import all_reduce_sums


class PooledMeans(NamedTuple):
    """Means over the tokens of all ranks. Sums are in float64, so any sharding agrees to about 1e-16 of them."""

    tokens: int
    log_prob: float
    advantage: float


@torch.no_grad()
def pooled_means(log_probs: Tensor, advantages: Tensor, group: dist.ProcessGroup | None) -> PooledMeans:
    """The means of this rank's tokens and those of all other ranks of `group`, all of which must call it.

    Args:
        log_probs: (N,) nats; a rank may have none.
        advantages: (N,).
        group: None for this process alone.
    """
    own = [log_probs.numel(), log_probs.double().sum().item(), advantages.double().sum().item()]
    tokens, log_prob, advantage = all_reduce_sums(own, group).tolist()
    return PooledMeans(int(tokens), log_prob / max(tokens, 1), advantage / max(tokens, 1))


@torch.no_grad()
def token_covariance(log_probs: Tensor, advantages: Tensor, means: PooledMeans) -> Tensor:
    """c of each token: float32 of the shape of `log_probs`, the same bits in a rollout and in its micro-batches."""
    return ((advantages.double() - means.advantage) * (log_probs.double() - means.log_prob)).float()


def share_count(n: int, share: float) -> int:
    """How many of `n` tokens a share means: its whole part, at least one; none of none, and none for share 0."""
    # A product of floats can fall just short of a whole number: 0.29 * 100 does.
    return min(n, max(1, int(Fraction(str(share)) * n))) if share > 0 else 0
