"""What OpenRLHF takes from flash_attn to pack and unpack sequences, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from einops import rearrange

__all__ = ["all_gather", "index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """(N, ...) -> (len(indices), ...)"""
    return tensor[indices]


def unpad_input(
    tensor: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """(B, T, ...) and its (B, T) mask -> the N unmasked entries (N, ...), where they lay among the B·T, the cumulative
    lengths (B + 1,), the longest length and the lengths (B,)."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return tensor.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def pad_input(tensor: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """(N, ...) -> (batch, seqlen, ...), zero where `indices` names nothing. Differentiable."""
    padded = tensor.new_zeros(batch * seqlen, *tensor.shape[1:])
    return padded.index_copy(0, indices, tensor).unflatten(0, (batch, seqlen))


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """(N, ...) -> (ranks · N, ...), one rank after the other. Differentiable."""
    return _AllGather.apply(tensor, group)


class _AllGather(torch.autograd.Function):
    # torch.distributed.nn has one whose backward pass, over gloo, is right in the group of all ranks only.
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        shares = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(shares, tensor.contiguous(), group=group)
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(ctx.group.size())[ctx.group.rank()], None
