"""`--actor.fused_head`: the model's head gives log-probs and entropies in the place of logits.

OpenRLHF's `Actor.forward` calls the model, casts its logits to float32, divides them by the temperature, and makes
log-probs and entropies of them. Here the head's own forward, where ZeRO-3 has gathered its weight, gets the labels
beforehand and returns (log-prob, entropy) of each token, (B, T, 2) in float32. The cast then changes nothing, the
temperature that `Actor.forward` sees is 1, and the two functions that it calls only pick what is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from openrlhf.models.actor import Actor
from openrlhf.models.ring_attn_utils import get_tensor_in_current_ring_attn_rank
from torch import Tensor

from openrlhf_stare.algorithms.fused_head import Logits, fused_log_probs
from openrlhf_stare.replacing import replaced

LOG_PROBS = "openrlhf.models.actor.log_probs_from_logits"
ENTROPY = "openrlhf.models.actor.compute_entropy"
HEAD = "torch.nn.Linear.forward"
SCALE = "transformers.PreTrainedModel.logit_scale"
SOFT_CAP = "transformers.PreTrainedModel.config.final_logit_softcapping"
SCALING = "transformers.PreTrainedModel.config.logits_scaling"


@dataclass
class Pass:
    """What a forward pass wants of the head, and what it got.

    Attributes:
        labels: (B, T) the next token of each that is wanted, -1 for the others.
        entropy: whether entropies are wanted.
        entropy_gradient: and whether something will be differentiated by them.
        result: (B, T, 2) what the head returned.
    """

    labels: Tensor
    entropy: bool
    entropy_gradient: bool
    result: Tensor | None = None

    def of(self, head: torch.nn.Linear, logits: Logits, hidden: Tensor) -> Tensor:
        """The head's forward on hidden states (B, T, H)."""
        log_probs, entropies = fused_log_probs(
            hidden.flatten(0, -2), head.weight, self.labels.flatten(), head.bias, logits, self.entropy
        )
        if not self.entropy_gradient:
            entropies = entropies.detach()
        self.result = torch.stack([log_probs, entropies], dim=-1).view(*hidden.shape[:-1], 2)
        return self.result


class FusedHeadActor(Actor):
    """OpenRLHF's `Actor`, whose model makes no logits.

    Log-probs and entropies are those of the action tokens, 0 elsewhere: OpenRLHF's loss takes no others, and what the
    tokens of prompts and padding would cost is saved.
    """

    temperature: float

    def __init__(self, has_entropy_loss: Callable[[], bool], *args, **named) -> None:
        """OpenRLHF's arguments, after one of ours.

        Args:
            has_entropy_loss: whether the loss of the coming pass has the entropies' gradient in it.

        Raises:
            ValueError: the head is no plain linear layer, or what the model does to its products is not known.
        """
        super().__init__(*args, **named)
        head = self.model.get_output_embeddings()
        if type(head) is not torch.nn.Linear or getattr(self, "is_vlm", False):
            raise ValueError(
                f"--actor.fused_head does not go with {type(self.model).__name__}, which sees images or whose head is "
                "no plain linear layer: leave the flag out"
            )
        self.logits = Logits.of_model(self.model.config, self.temperature)
        self.temperature = 1.0  # the head divides by it
        self.has_entropy_loss = has_entropy_loss
        # In a tuple, or torch would take head and model for further modules of this one.
        self._inner = (head, self.model)
        self._tried = False

    def forward(self, sequences: Tensor, action_mask: Tensor | None = None, attention_mask=None, **named):
        """What `Actor.forward` returns for sequences (B, T) and action_mask (B, A).

        Raises:
            ValueError: neither action tokens nor log-probs are asked for, but logits.
        """
        if action_mask is None and not named.get("return_logprobs"):
            raise ValueError("--actor.fused_head makes no logits, which this pass asks for: leave the flag out")
        wants_entropy = named.get("return_entropy", False)
        wanted = Pass(
            self._labels(sequences, action_mask, attention_mask, named.get("ring_attn_group")),
            entropy=wants_entropy,
            entropy_gradient=wants_entropy and torch.is_grad_enabled() and self.has_entropy_loss(),
        )
        head, _ = self._inner
        with (
            replaced(HEAD, functools.partial(wanted.of, head, self.logits), on=head),
            self._unchanged(),
            self._picked(wanted),
        ):
            return super().forward(sequences, action_mask, attention_mask, **named)

    def _labels(self, sequences: Tensor, action_mask: Tensor | None, attention_mask: Tensor, ring_group) -> Tensor:
        """The token after each that is wanted, and -1 after the others, laid out as `Actor.forward` lays them out."""
        labels = sequences.roll(-1, dims=1)
        if action_mask is not None:
            last = sequences.shape[1] - 1
            is_wanted = torch.zeros_like(sequences, dtype=torch.bool)
            is_wanted[:, last - action_mask.shape[1] : last] = action_mask.bool()
            labels = labels.masked_fill(~is_wanted, -1)
        if self.packing_samples:
            labels = labels[attention_mask.bool()].unsqueeze(0)
            if ring_group is not None:
                labels, _ = get_tensor_in_current_ring_attn_rank(labels, ring_group, -1)
        return labels

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """The model neither caps nor scales what its head returns, which has done so itself."""
        _, model = self._inner
        with ExitStack() as stack:
            if getattr(model.config, "final_logit_softcapping", None) is not None:
                stack.enter_context(replaced(SOFT_CAP, None, on=model.config))
            if getattr(model.config, "logits_scaling", None) is not None:
                stack.enter_context(replaced(SCALING, 1.0, on=model.config))
            if getattr(model, "logit_scale", None) is not None:
                stack.enter_context(replaced(SCALE, 1.0, on=model))
            yield

    @contextmanager
    def _picked(self, wanted: Pass) -> Iterator[None]:
        """What OpenRLHF calls for log-probs and entropies picks them from what stands in the logits' place."""

        def log_probs(results: Tensor, labels: Tensor) -> Tensor:
            return self._checked(results, wanted)[..., 0]

        def entropies(results: Tensor) -> Tensor:
            return self._checked(results, wanted)[..., 1]

        with replaced(LOG_PROBS, log_probs), replaced(ENTROPY, entropies):
            yield

    def _checked(self, results: Tensor, wanted: Pass) -> Tensor:
        """What the model returned; the first time compared with what its head did, since comparing waits for a GPU.

        Raises:
            ValueError: the model did not call its head, or changed what it returned.
        """
        if not self._tried:
            own = wanted.result
            if own is None or own.shape != results.shape or not torch.equal(own.nan_to_num(), results.nan_to_num()):
                raise ValueError(
                    f"--actor.fused_head does not go with {type(self._inner[1]).__name__}, which does more to its "
                    "logits than cap and scale them: leave the flag out"
                )
            self._tried = True
        return results


def actor_class(args: SimpleNamespace) -> Callable[..., Actor]:
    """What makes an `Actor` under OpenRLHF's nested arguments: its own class without `--actor.fused_head`."""
    if not args.actor.fused_head:
        return Actor
    # Its value during the pass: a method sets it for a rollout.
    return functools.partial(FusedHeadActor, lambda: bool(args.actor.entropy_coef))
