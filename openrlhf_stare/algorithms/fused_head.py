"""Log-probs and exact entropies from hidden states, without a tensor of tokens times vocabulary.

The head's weight is taken a block of words at a time. The logits of all tokens for the block are computed, added to
each token's running maximum, normaliser and entropy, and dropped. The backward pass computes them again, for the
tokens that have a gradient. By words and not by tokens, since then the weight is read once, and the gradient of a
block's weights is one product that sums over all tokens. All that is not a matrix product is in float32, and in place
where it can be: on a CPU, fetching memory for a new tensor takes longer than several passes over an old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Float32 values of a block: 12 MiB, which the last cache of a CPU can hold. In smaller blocks several threads wait for
# each other more often than they compute, where others use the machine. Or a 64th of all logits where that is more, so
# that a GPU is not kept busy with launching thousands of small kernels.
_BLOCK_LOGITS, _BLOCK_SHARE = 3 * 2**20, 64
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Logits:
    """What a model and a rollout make of the head's products: softcap · tanh(scale · product / softcap) / temperature.

    Attributes:
        temperature: the rollout's.
        scale: the model's factor of all logits.
        softcap: what the model's logits stay below, by tanh; None without.
    """

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of_model(cls, config: Any, temperature: float = 1.0) -> Logits:
        """As a model's configuration (of transformers) says: Gemma's cap, Cohere's and Granite's scale.

        Raises:
            ValueError: the model has a factor whose use is not known.
        """
        scale = 1.0
        for name in ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"):
            factor = getattr(config, name, None)
            if factor in (None, 1):
                continue
            if name == "logit_scale" and config.model_type.startswith("cohere"):
                scale = factor
            elif name == "logits_scaling" and config.model_type.startswith("granite"):  # others multiply by it
                scale = 1 / factor
            else:
                raise ValueError(f"{config.model_type} has {name} {factor}, whose use in its logits is not known")
        return cls(temperature, scale, getattr(config, "final_logit_softcapping", None))

    def of_(self, products: Tensor) -> Tensor:
        """Float32 products -> logits, in place."""
        if self.softcap is None:
            return products if self.scale == self.temperature else products.mul_(self.scale / self.temperature)
        return products.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)

    def bend(self, logits: Tensor) -> Tensor | None:
        """What the cap makes of the derivative of the logits, which is scale / temperature without one."""
        if self.softcap is None:
            return None
        tanh = logits * (self.temperature / self.softcap)
        return tanh.square_().neg_().add_(1)


def fused_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    logits: Logits = Logits(),  # noqa: B008 (it is frozen)
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """The log-prob of each token's label and the entropy of its distribution over the vocabulary, in nats.

    Besides results and gradients it needs the logits of one block of words, twice in float32, and in the backward pass
    the gradient of the hidden states in float32. The backward pass leaves out tokens whose gradient is exactly 0. On a
    GPU the host waits once in each pass, to read how many tokens there are to compute.

    Args:
        hidden: (T, H) hidden states.
        weight: (V, H) of the head, of the same type.
        labels: (T,) words below V; of a token with a label below 0 nothing is computed, and both results are 0.
        bias: (V,) of the head.
        logits: scale, soft cap and temperature.
        entropy: whether entropies are wanted; zeros otherwise.

    Returns:
        (T,) log-probs and (T,) entropies, float32, both differentiable once by hidden states, weight and bias. NaN
        for a token with a NaN logit or one of +inf.

    Raises:
        ValueError: the shapes do not fit.
    """
    if (
        hidden.dim() != 2
        or weight.dim() != 2
        or hidden.shape[1] != weight.shape[1]
        or labels.shape != hidden.shape[:1]
    ):
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and labels {tuple(labels.shape)} do not fit: "
            "give (T, H), (V, H) and (T,)"
        )
    wanted = (labels >= 0).nonzero().squeeze(-1)
    if len(wanted) == len(labels):
        return _FusedLogProbs.apply(hidden, weight, bias, labels, logits, entropy)
    results = _FusedLogProbs.apply(hidden[wanted], weight, bias, labels[wanted], logits, entropy)
    return tuple(result.new_zeros(len(labels)).index_copy(0, wanted, result) for result in results)


class _FusedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, logits: Logits, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        of_label = hidden.new_zeros(len(hidden), dtype=torch.float32)
        highest = torch.full_like(of_label, _LOWEST)
        normaliser, weighted = torch.zeros_like(of_label), torch.zeros_like(of_label)  # Σe and Σe·(x - highest)
        buffer = hidden.new_empty(0, dtype=torch.float32)
        # With or without entropies in the same blocks, so that both give the same log-probs, bit for bit.
        for words, x, _ in _blocks(hidden, weight, bias, logits, len(hidden), 2):
            inside, at = _places(labels, words)
            of_label = torch.where(inside, x.gather(1, at).squeeze(-1), of_label)
            before, highest = highest, torch.maximum(highest, x.amax(dim=-1))
            shift = before - highest
            shrink = shift.exp()
            x.sub_(highest.unsqueeze(-1))
            e = torch.exp(x, out=buffer.resize_(x.shape) if entropy else x)
            if entropy:
                # 0 where no block was before: the shift is then as low as a float32 can be.
                weighted = shrink * (weighted + shift * normaliser) + x.mul_(e).sum(dim=-1)
            normaliser = normaliser * shrink + e.sum(dim=-1)
        log_normaliser = normaliser.log()
        entropies = log_normaliser - weighted / normaliser if entropy else torch.zeros_like(of_label)
        ctx.save_for_backward(hidden, weight, bias, labels, highest + log_normaliser, entropies)
        ctx.logits = logits
        ctx.set_materialize_grads(False)
        return of_label - highest - log_normaliser, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        """By a logit x of word w: of a log-prob [w is the label] - p, of an entropy -p·(log p + H)."""
        hidden, weight, bias, labels, log_normaliser, entropies = ctx.saved_tensors
        if of_log_probs is None and of_entropies is None:
            return (None,) * 6
        slope = ctx.logits.scale / ctx.logits.temperature
        g = torch.zeros_like(entropies) if of_log_probs is None else of_log_probs * slope
        g_entropy = None if of_entropies is None else of_entropies * slope
        # A token with advantage 0 or a clipped one has none: one product of four is left, that of the forward pass.
        tokens = len(hidden)
        counts = (g if g_entropy is None else g.abs() + g_entropy.abs()).nonzero().squeeze(-1)
        if len(counts) < tokens:
            hidden, labels, log_normaliser, entropies, g = (
                tensor[counts] for tensor in (hidden, labels, log_normaliser, entropies, g)
            )
            g_entropy = None if g_entropy is None else g_entropy[counts]
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        by_hidden = torch.zeros_like(hidden, dtype=torch.float32) if wants_hidden else None
        by_weight = torch.empty_like(weight) if wants_weight else None
        by_bias = torch.empty_like(bias) if wants_bias else None
        own = torch.zeros_like(g)  # what the product of the label gets besides
        of_block = torch.empty_like(hidden)
        buffer = hidden.new_empty(0, dtype=torch.float32)
        for words, x, rounded in _blocks(hidden, weight, bias, ctx.logits, tokens, 1 if g_entropy is None else 2):
            bend = ctx.logits.bend(x)
            log_p = x.sub_(log_normaliser.unsqueeze(-1))
            if g_entropy is None:
                d = log_p.exp_().mul_(-g.unsqueeze(-1))
            else:  # -p·(g + g_entropy·(log p + H))
                p = torch.exp(log_p, out=buffer.resize_(x.shape))
                log_p.mul_(-g_entropy.unsqueeze(-1)).sub_((g + g_entropy * entropies).unsqueeze(-1))
                d = log_p.mul_(p)
            inside, at = _places(labels, words)
            here = torch.where(inside, g, 0)
            if bend is not None:
                d.mul_(bend)
                here *= bend.gather(1, at).squeeze(-1)
            if rounded is not d:
                rounded.copy_(d)
            if by_hidden is not None:
                by_hidden += torch.mm(rounded, weight[words], out=of_block)
            own += here
            d.scatter_add_(1, at, here.unsqueeze(-1))
            if by_weight is not None:
                rounded.scatter_(1, at, d.gather(1, at).to(hidden.dtype))
                torch.mm(rounded.T, hidden, out=by_weight[words])
            if by_bias is not None:
                by_bias[words] = d.sum(dim=0)
        if by_hidden is not None:
            # Apart, since it is the largest part, and those of the blocks are rounded one by one.
            by_hidden.addcmul_(own.unsqueeze(-1), weight[labels])
            by_hidden = by_hidden.to(hidden.dtype)
            if len(counts) < tokens:
                by_hidden = by_hidden.new_zeros(tokens, by_hidden.shape[1]).index_copy_(0, counts, by_hidden)
        return by_hidden, by_weight, by_bias, None, None, None


def _blocks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, logits: Logits, tokens: int, tensors: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The words of each block, (T, words) their logits in float32, and a tensor of that shape in the type of `hidden`.

    The caller may write to both, and the next block overwrites them. For float32 they are the same. The words of a
    block depend on `tokens` and not on how many of them are left, so that neither does the order of a token's sums.
    `tensors` is how many float32 tensors of a block's size the caller has with it.
    """
    vocabulary = len(weight)
    words = min(vocabulary, max(_BLOCK_LOGITS // max(1, tokens * tensors), -(-vocabulary // _BLOCK_SHARE)))
    products = hidden.new_empty(0)
    x = products if hidden.dtype == torch.float32 else hidden.new_empty(0, dtype=torch.float32)
    for start in range(0, vocabulary, words):
        block = slice(start, min(start + words, vocabulary))
        products.resize_(len(hidden), block.stop - start)
        if bias is None:
            torch.mm(hidden, weight[block].T, out=products)
        else:
            torch.addmm(bias[block], hidden, weight[block].T, out=products)
        if x is not products:
            x.resize_(products.shape).copy_(products)
        yield block, logits.of_(x), products


def _places(labels: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """(T,) whether each label is among the words of the block, and (T, 1) where in it; anywhere, if it is not."""
    inside = (labels >= words.start) & (labels < words.stop)
    return inside, (labels - words.start).clamp(0, words.stop - words.start - 1).unsqueeze(-1)
