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
    return (torch.tensor(rows, dtype=torch.int64).unsqueeze(1) << 32) + torch.arange(length)


@torch.no_grad()
def lot_numbers(log_probs: Tensor, advantages: Tensor, seed: int) -> Tensor:
    """A lot for each token: as good as random, but the same for the same bits of log-prob and advantage.

    Args:
        log_probs, advantages: of one shape; taken as float32.
        seed: another one gives other lots.

    Returns:
        float32 of that shape, finite and above 0. To draw k tokens, take those with the k highest lots.
    """
    # + 0.0 makes -0.0 into +0.0.
    return _lots([(values.float() + 0.0).view(torch.int32) for values in (log_probs, advantages)], seed)


@torch.no_grad()
def lots_of_places(places: Tensor, seed: int) -> Tensor:
    """Such lots from `places_of`, for tokens that are alike in both: another sharding gives others."""
    return _lots([places, places >> 32], seed)


def _lots(words: Sequence[Tensor], seed: int) -> Tensor:
    """Lots from the low 32 bits of these integers."""
    lots = torch.full_like(words[0], seed, dtype=torch.int64)
    for word in words:
        lots = (lots ^ word) & 0xFFFFFFFF
        for factor in _FACTORS:
            lots = ((lots ^ (lots >> 16)) * factor) & 0xFFFFFFFF
    lots = lots ^ (lots >> 16)
    # The patterns of the normal float32 numbers above 0, which order as the integers that they are.
    return (2**23 + lots % (2**31 - 2**24)).int().view(torch.float32)
