"""The exact entropy of the next-token distribution, without a second tensor of the size of the logits."""

from __future__ import annotations

import torch
from torch import Tensor

# Elements of one scratch tensor: 4 MiB of float32, which stay in the cache, or a 64th of the logits where that is
# more, so that a GPU is not kept busy with launching thousands of small kernels.
_SCRATCH_ELEMENTS, _SCRATCH_SHARE = 2**20, 64


def chunked_entropy(logits: Tensor, chunk_tokens: int | None = None) -> Tensor:
    """Entropy of softmax(logits) in nats, logsumexp(x) - Σ softmax(x)·x, computed in float32.

    Works on `chunk_tokens` tokens at a time: besides the result it needs two chunks of scratch, however many tokens
    there are. It is for the log-prob pass and carries no gradient.

    Args:
        logits: (..., V), at the temperature wanted. -inf (a masked word) has probability 0 and adds 0.
        chunk_tokens: tokens per chunk; None for about 2**20 logits, 4 MiB of float32, or a 64th of them all.

    Returns:
        (...) float32 on the device of `logits`. NaN for a token with a NaN or +inf logit, or with -inf logits only.

    Raises:
        ValueError: `logits` has no vocabulary dimension or an empty one, `chunk_tokens` is below 1, or a gradient is
            expected (`logits` requires one and gradients are enabled).
    """
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits have the shape {tuple(logits.shape)}: give (..., V) with V at least 1")
    if torch.is_grad_enabled() and logits.requires_grad:
        raise ValueError("logits require a gradient, which chunked_entropy does not carry: give logits.detach()")
    if chunk_tokens is None:
        chunk_tokens = max(1, max(_SCRATCH_ELEMENTS, logits.numel() // _SCRATCH_SHARE) // logits.shape[-1])
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens {chunk_tokens} is below 1: give at least 1")
    with torch.no_grad():
        return _entropy(logits, chunk_tokens)


def _entropy(logits: Tensor, chunk_tokens: int) -> Tensor:
    if logits.dim() > 2 and not logits.is_contiguous():  # flattening such a view, logits[:, :-1] say, would copy it
        return torch.stack([_entropy(part, chunk_tokens) for part in logits.unbind(0)])
    tokens = logits.unsqueeze(0) if logits.dim() == 1 else logits.flatten(0, -2)
    entropy = torch.empty(tokens.shape[0], dtype=torch.float32, device=logits.device)
    scores = torch.empty(min(chunk_tokens, len(tokens)), tokens.shape[1], dtype=torch.float32, device=logits.device)
    weights = torch.empty_like(scores)
    for chunk, result in zip(tokens.split(chunk_tokens), entropy.split(chunk_tokens), strict=True):
        x, w = scores[: len(chunk)].copy_(chunk), weights[: len(chunk)]
        x.sub_(x.amax(dim=-1, keepdim=True))  # now w = exp(x) is at most 1, and H = log Σw - Σw·x / Σw
        normaliser = torch.exp(x, out=w).sum(dim=-1)
        x.clamp_(min=torch.finfo(torch.float32).min)  # 0 · log 0 is 0, but 0 · -inf would be NaN
        torch.sub(normaliser.log(), w.mul_(x).sum(dim=-1).div_(normaliser), out=result)
    return entropy.view(logits.shape[:-1])
