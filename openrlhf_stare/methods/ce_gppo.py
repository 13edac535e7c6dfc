"""CE-GPPO (arXiv 2509.20712): tokens that PPO clips keep a gradient, of bounded size.

    A < 0 and r < 1 - eps_low:    loss = -beta_low (1 - eps_low) A r / sg(r)
    A > 0 and r > 1 + eps_high:   loss = -beta_high (1 + eps_high) A r / sg(r)
    all others: OpenRLHF's loss;  r = pi / pi_old, sg stops the gradient

The first are unlikely tokens of bad responses, whose gradient lowers entropy; the second are unlikely tokens of good
responses, whose gradient raises it. Published constants: beta_low (beta 1) 0.75, beta_high (beta 2) 1, for 1.5B also
0.5 and 1; with a dual clip of 3 and eps 0.2 and 0.28.

Equal to the published code (Kwai-Klear/CE-GPPO, compute_gppo_loss_general_beta in its README) with
`--actor.dual_clip 3`. OpenRLHF's loss of such a token is the constant -(1 - eps_low) A or -(1 + eps_high) A, so the
penalty is the new loss less that constant.

It has no strength for a controller to set, only the schedule `open`. It does nothing in the first optimizer step after
a rollout, in which r = 1 and nothing is clipped, so it needs several steps on a rollout; nor where all advantages are
0. Under the gspo surrogate, which clips responses and not tokens, it must not be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.options import Options, option
from openrlhf_stare.rules import Finding


@dataclass(frozen=True)
class CeGppoOptions(Options):
    beta_low: float = option(0.75, "gradient of tokens with A < 0 clipped below", within="[0, inf)")
    beta_high: float = option(1.0, "gradient of tokens with A > 0 clipped above", within="[0, inf)")


# These leave OpenRLHF's loss out of some tokens, or put another in its place.
LEAVE_TOKENS_OUT = ("clip_cov", "high_entropy", "kl_cov")


class CeGppo(Method):
    Options = CeGppoOptions
    options: CeGppoOptions
    acts_in_first_step = False

    def penalty(self, log_probs: Tensor, tokens: Tokens) -> Tensor:
        log_ratio = log_probs - tokens.log_probs
        ratio = log_ratio.detach().exp()
        low, high = 1 - self.clip_range[0], 1 + self.clip_range[1]
        of_one = (log_ratio - log_ratio.detach()).exp()  # r / sg(r): 1, with the gradient of log r
        below = -low * tokens.advantages * (self.options.beta_low * of_one - 1)
        above = -high * tokens.advantages * (self.options.beta_high * of_one - 1)
        is_below = (tokens.advantages < 0) & (ratio < low)
        is_above = (tokens.advantages > 0) & (ratio > high)
        return torch.where(is_below, below, torch.where(is_above, above, 0.0))

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        for name in args.policy_loss.split("+"):
            if name in LEAVE_TOKENS_OUT:
                yield Finding(
                    f"--policy_loss {args.policy_loss}",
                    f"has {name} take OpenRLHF's loss from tokens to which ce_gppo would give a gradient all the same",
                    "leave one of the two out",
                )
        if args.actor.policy_loss_type == "gspo":
            yield Finding(
                "--actor.policy_loss_type gspo",
                f"does not go with --policy_loss {args.policy_loss}, since it clips responses and not tokens",
                "use ppo",
            )
