"""Clip-Cov (arXiv 2505.22617): takes a few of the tokens that lower entropy much out of the loss, drawn at random.

    c = (A - mean A)(l - mean l), l = log pi_old, means over all action tokens of the rollout on all ranks
    of the tokens with low < c < high, max(1, floor(share N)) are drawn, or all if there are fewer: loss 0
    all others: OpenRLHF's loss; N counts all action tokens, and the drawn ones stay in the mean

Published constants: share 0.0002, low 1, high 5.

Ours differs from the published code (PRIME-RL/Entropy-Mechanism-of-RL, verl/trainer/ppo/core_algos.py) in this:
- It takes means and the draw from one micro-batch of one rank and the current log-probs, and tokens that PPO clips
  already are not drawn. Here the pool is the rollout, before the first step, when nothing is clipped yet, and the
  drawn set stays for the whole `fit`.
- It draws by a random permutation. Here each token has a number from its log-prob, its advantage and `seed`, and
  those with the highest are drawn: on any number of ranks the same, and a resumed job draws as if it went on. Among
  tokens that are alike in both, as all certain ones of a response are, their places decide; without `Tokens.places`
  they are drawn together.

It does nothing where no c is between low and high, as in rollouts whose advantages are all 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from openrlhf_stare.algorithms.control import Strength
from openrlhf_stare.algorithms.covariance import pooled_means, share_count, token_covariance
from openrlhf_stare.algorithms.distributed import all_reduce_sums
from openrlhf_stare.algorithms.draw import lot_numbers, lots_of_places
from openrlhf_stare.algorithms.selection import kth_largest
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class ClipCovOptions(Options):
    share: float = option(0.0002, "share of the action tokens dropped from the loss", within="[0, 1]")
    low: float = option(1.0, "only tokens with a covariance c above this are drawn")
    high: float = option(5.0, "only tokens with a covariance c below this are drawn")
    seed: int = option(0, "another seed draws other tokens", within="[0, 4294967295]")
    bound: float = option(0.05, "highest share that a schedule may set", within="(0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("high", self.high > self.low, f"is not above low {self.low}", "give a range such as 1 to 5")


class ClipCov(Method):
    Options = ClipCovOptions
    options: ClipCovOptions
    needs_places = True

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return (Strength("share", 0.0, self.options.share, self.options.bound),)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        self.share = strengths["share"]
        self.means = pooled_means(tokens.log_probs, tokens.advantages, group)
        drawn = share_count(self.means.tokens, self.share)
        in_band = self._in_band(tokens)
        lots = lot_numbers(tokens.log_probs[in_band], tokens.advantages[in_band], self.options.seed)
        self.threshold = kth_largest([lots], [lambda n: min(n, drawn)], group=group)[0].item()
        band, above = all_reduce_sums([len(lots), int((lots > self.threshold).sum())], group).tolist()
        self.tie_threshold = 0.0  # every lot is above it
        if tokens.places is not None:
            ties = lots_of_places(tokens.places[in_band][lots == self.threshold], self.options.seed)
            left = min(int(band), drawn) - int(above)
            self.tie_threshold = kth_largest([ties], [lambda n: left], group=group)[0].item()
        dropped = all_reduce_sums([int(self._drawn(tokens).sum())], group).item()
        n = max(self.means.tokens, 1)
        return {"clip_cov/band_ratio": band / n, "clip_cov/dropped_ratio": dropped / n}

    def _in_band(self, tokens: Tokens) -> Tensor:
        c = token_covariance(tokens.log_probs, tokens.advantages, self.means)
        return tokens.action_mask & (c > self.options.low) & (c < self.options.high)

    def _drawn(self, tokens: Tokens) -> Tensor:
        lots = lot_numbers(tokens.log_probs, tokens.advantages, self.options.seed)
        tied = lots == self.threshold
        if tokens.places is not None:
            tied &= lots_of_places(tokens.places, self.options.seed) >= self.tie_threshold
        return self._in_band(tokens) & (tied | (lots > self.threshold))

    def weights(self, tokens: Tokens) -> Tensor | None:
        return None if self.share == 0 else (~self._drawn(tokens)).float()
