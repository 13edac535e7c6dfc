"""Surprisal, how unlikely a token was to the policy that sampled it."""

from __future__ import annotations

from torch import Tensor


def surprisal(log_probs: Tensor) -> Tensor:
    """Surprisal -log π in nats: float32, the shape of `log_probs`, at least +0.0. NaN stays NaN.

    A log-prob that rounding put above 0 (+1e-7) has surprisal 0. `abs` makes -0.0 into +0.0, which clamp leaves alone.
    """
    return (-log_probs.float()).clamp(min=0).abs()
