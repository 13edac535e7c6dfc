"""A random draw of tokens that any number of ranks makes alike, and a resumed job too: without state or collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Odd numbers below 2**31, so that no product with a 32-bit number leaves int64.
_FACTORS = (0x45D9F3B, 0x119DE1F3, 0x2C1B3C6D)


def places_of(rows: Sequence[int], length: int) -> Tensor:
    """A number for each token of some responses, which no other token of the rollout has.

    Args:
        rows: (B,), a number for each response, below 2**31, which no other response of the rollout has.
        length: A, the places of a response in the replay buffer, or in a micro-batch with padding on the right.

    Returns:
        (B, A) int64.
    """
    return (torch.tensor(rows, dtype=torch.int64)[:, None] << 32) + torch.arange(length)


@torch.no_grad()
def lot_numbers(log_probs: Tensor, advantages: Tensor, seed: int, places: Tensor | None = None) -> Tensor:
    """A lot for each token: as good as random, but the same for the same bits of log-prob and advantage at one place.

    Args:
        log_probs, advantages: of one shape; taken as float32.
        seed: another one gives other lots.
        places: int64 of that shape, from `places_of`; None for lots that are equal where the others are.

    Returns:
        float32 of that shape, finite and above 0. To draw k tokens, take those with the k highest lots.
    """
    lots = torch.full_like(log_probs, seed, dtype=torch.int64)
    of_token = [(values.float() + 0.0).view(torch.int32) for values in (log_probs, advantages)]  # -0.0 becomes +0.0
    of_token += [] if places is None else [places, places >> 32]
    for bits in of_token:
        lots = (lots ^ bits) & 0xFFFFFFFF
        for factor in _FACTORS:
            lots = ((lots ^ (lots >> 16)) * factor) & 0xFFFFFFFF
    lots = lots ^ (lots >> 16)
    # The patterns of the normal float32 numbers above 0, which order as the integers that they are.
    return (2**23 + lots % (2**31 - 2**24)).int().view(torch.float32)
