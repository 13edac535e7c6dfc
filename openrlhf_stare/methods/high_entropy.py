"""High-entropy tokens only (arXiv 2506.01939, "Beyond the 80/20 Rule"): trains where the policy has a choice.

    tokens whose entropy is among the highest `share` of the rollout: OpenRLHF's loss
    all others:                                                       loss 0, and they stay in the mean

Published constant: share 0.2, the "forking tokens".

Ours differs from the published code (huggingface/trl, trl/trainer/grpo_trainer.py, get_high_entropy_mask) in this:
- It takes the quantile of the batch of one optimizer step on all ranks, from the entropies of the training pass. Here
  the threshold is the quantile of the whole rollout on all ranks, of the log-prob pass, and stays for the `fit`.
  Like there it lies between two tokens' entropies, and whether a token is above it is decided in the training pass:
  in the first step after a rollout that is the same policy, up to rounding, which turns over a token only if its
  entropy is the threshold's own.

The training pass computes entropies, which costs memory and time in proportion to the vocabulary.
It does nothing where all advantages are 0, and little where the entropy is 0 nearly everywhere: ties are all kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.selection import kth_largest
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option

# The training pass sums in batches of another shape than the log-prob pass. Rounding must not leave out a token that
# is at the threshold itself.
ROUNDING = 1e-5


@dataclass(frozen=True)
class HighEntropyOptions(Options):
    share: float = option(0.2, "share of the action tokens, those of highest entropy, to train on", within="(0, 1]")
    bound: float = option(0.05, "lowest share that a schedule may set", within="(0, 1]")


class HighEntropy(Method):
    Options = HighEntropyOptions
    options: HighEntropyOptions
    needs_entropy = True

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return (Strength("share", 1.0, self.options.share, self.options.bound, "log"),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.share = strengths["share"]
        entropies = _entropies(tokens)
        n = int(all_reduce_sums([entropies.numel()], group).item())
        # The place in ascending order, from 0; rounded, since 80 must not become 80.00000000000001.
        place = round((1 - self.share) * max(n - 1, 0), 6)
        ks = [lambda size: size - math.floor(place), lambda size: size - math.ceil(place)]
        below, above = (found.item() for found in kth_largest([entropies, entropies], ks, group=group))
        self.threshold = below + (above - below) * (place % 1) if place % 1 else below
        kept = all_reduce_sums([int(self._kept(entropies).sum())], group).item()
        return {"high_entropy/threshold": self.threshold, "high_entropy/kept_ratio": kept / max(n, 1)}

    def weights(self, tokens: Tokens) -> Tensor | None:
        return None if self.share == 1 else self._kept(_entropies(tokens)).float()

    def _kept(self, entropies: Tensor) -> Tensor:
        return entropies >= self.threshold * (1 - ROUNDING)


def _entropies(tokens: Tokens) -> Tensor:
    assert tokens.entropies is not None  # `needs_entropy`
    return tokens.entropies.float()
