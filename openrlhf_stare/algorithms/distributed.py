"""Sums and gathers over a process group. `group=None` means this process alone, never the default group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def collective_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device that tensors must be on for a collective of `group`: the current GPU under NCCL, otherwise the CPU.

    The group's backend decides, not whether there is a GPU: a machine with GPUs can run gloo groups.
    """
    if group is not None and dist.get_backend(group) == dist.Backend.NCCL:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def all_reduce_sums(values: Tensor | Sequence[float], group: dist.ProcessGroup | None) -> Tensor:
    """The elementwise sum of every rank's `values`, the same bits on all ranks. One collective, none without a group.

    Args:
        values: any shape, the same shape and dtype on all ranks; a sequence of numbers becomes float64.
        group: the ranks to sum over.

    Returns:
        A tensor of the shape, dtype and device of `values` (float64 on the CPU for a sequence); `values` stays.
    """
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=torch.float64)
    if group is None:
        return values.clone()
    total = values.to(collective_device(group), copy=True).contiguous()
    dist.all_reduce(total, group=group)
    return total.to(values.device)


def gather_uneven(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Every rank's `values`, one rank after the other. Shares may differ in length and may be empty.

    Args:
        values: (N,), of the same dtype on all ranks.
        group: the ranks to gather from.

    Returns:
        (sum of all N,), the same on all ranks, on the device of `values`. Two collectives, the second one of
        world size × longest share elements and left out where all shares are empty; none without a group.
    """
    if group is None:
        return values
    device, world = collective_device(group), dist.get_world_size(group)
    own_size = torch.tensor([values.numel()], device=device)
    sizes = [torch.empty_like(own_size) for _ in range(world)]
    dist.all_gather(sizes, own_size, group=group)
    lengths = [int(size) for size in sizes]
    longest = max(lengths)
    if longest == 0:
        return values
    padded = torch.zeros(longest, dtype=values.dtype, device=device)
    padded[: values.numel()] = values
    shares = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(shares, padded, group=group)
    return torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)]).to(values.device)
