"""Micro-batches and optimizer steps without a token are safe.

Responses that were left out have an empty action mask. OpenRLHF 0.11.2's means over no token are NaN: one empty
micro-batch spoils the figures of its whole step, and an optimizer step of nothing else the parameters.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.loss_utils import get_loss_batch_info

# Stands for the tokens of a micro-batch without any: figures are divided by the tokens of all ranks.
NO_TOKENS = 1e-6


class Trainer(Protocol):
    """What both of OpenRLHF's trainers have, the policy's and the critic's."""

    strategy: Any
    replay_buffer: Any
    args: Any


def divisible_counts(
    trainer: Trainer, experience: Experience, step: int, loss_batch_info: dict[str, Any] | None
) -> dict[str, Any]:
    """The counts by which a loss is divided, as OpenRLHF makes them, but at least 1: the same bits wherever each
    optimizer step has a token."""
    if loss_batch_info is None:
        loss_batch_info = get_loss_batch_info(
            trainer.strategy,
            experience.action_mask,
            replay_buffer=trainer.replay_buffer,
            step=step,
            dynamic_batch=trainer.args.train.dynamic_batch_enable,
        )
    counts = {name: loss_batch_info[name] for name in ("batch_num_tokens", "global_batch_size")}
    return {**loss_batch_info, **{name: torch.where(count > 0, count, 1) for name, count in counts.items()}}
