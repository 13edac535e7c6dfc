"""`--actor.fused_head`: the model's head gives log-probs and entropies in the place of logits.

OpenRLHF's `Actor.forward` calls the model, casts its logits to float32, divides them by the temperature, and makes
log-probs and entropies of them. Here the head's own forward, where ZeRO-3 has gathered its weight, gets the labels
beforehand and returns (log-prob, entropy) of each token, (B, T, 2) in float32. The cast then changes nothing, the
temperature that `Actor.forward` sees is 1, and the two functions that it calls only pick what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import openrlhf.models.actor
import torch
from openrlhf.models.actor import Actor
from openrlhf.models.ring_attn_utils import get_tensor_in_current_ring_attn_rank
from torch import Tensor

from openrlhf_stare.algorithms.fused_head import Logits, fused_log_probs
from openrlhf_stare.model_logits import NEUTRAL, softcap_and_scale


@dataclass
class Pass:
    """What a forward pass wants of the head, and what it got.

    Attributes:
        labels: the next token of each that is computed, -1 where nothing is wanted.
        entropy: whether entropies are wanted.
        entropy_gradient: and whether something will be differentiated by them.
        result: (..., 2) what the head returned.
    """

    labels: Tensor
    entropy: bool
    entropy_gradient: bool
    result: Tensor | None = None


class FusedHead(torch.nn.Linear):
    """A model's head, which is made one of these by its `__class__`, so that parameters and hooks stay what they are.

    Attributes:
        logits: scale, soft cap and temperature.
        wanted: the pass that it is in; None for one that gets logits.
    """

    logits: Logits
    wanted: Pass | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if (wanted := self.wanted) is None:
            return super().forward(hidden)
        log_probs, entropies = fused_log_probs(
            hidden.flatten(0, -2), self.weight, wanted.labels.flatten(), self.bias, self.logits, wanted.entropy
        )
        if not wanted.entropy_gradient:
            entropies = entropies.detach()
        wanted.result = torch.stack([log_probs, entropies], dim=-1).view(*hidden.shape[:-1], 2)
        return wanted.result


class FusedHeadActor(Actor):
    """OpenRLHF's `Actor`, whose passes for log-probs make no logits. One that asks for logits gets them.

    Log-probs and entropies are those of the action tokens; OpenRLHF's loss takes no others, and what a prompt or a
    padding token would have cost is saved.

    Raises:
        ValueError: the model's head is no plain linear layer, or its logits go through something that is not known.
    """

    def __init__(self, has_entropy_loss: Callable[[], bool], *args, **kwargs) -> None:
        """`has_entropy_loss`: whether the loss of the coming pass has the entropies' gradient in it."""
        super().__init__(*args, **kwargs)
        self.has_entropy_loss = has_entropy_loss
        model = self.model
        head = model.get_output_embeddings()
        if type(head) is not torch.nn.Linear or getattr(self, "is_vlm", False):
            raise ValueError(
                f"--actor.fused_head does not go with {type(model).__name__}, whose head is a {type(head).__name__} or "
                "which sees images: leave the flag out"
            )
        head.__class__ = FusedHead
        scale, softcap = softcap_and_scale(model.config)[::-1]
        head.logits = Logits(self.temperature, scale, softcap)
        # Not attributes by themselves, or torch would take head and model for further parts of this module.
        self._parts = SimpleNamespace(head=head, model=model, tried=False)

    def forward(self, sequences: Tensor, action_mask: Tensor | None = None, attention_mask=None, **named):
        if action_mask is None and not named.get("return_logprobs"):
            return super().forward(sequences, action_mask, attention_mask, **named)
        wants_entropy = named.get("return_entropy", False)
        wanted = Pass(
            self._labels(sequences, action_mask, attention_mask, named.get("ring_attn_group")),
            entropy=wants_entropy,
            entropy_gradient=wants_entropy and torch.is_grad_enabled() and self.has_entropy_loss(),
        )
        with self._fused(wanted):
            return super().forward(sequences, action_mask, attention_mask, **named)

    def _labels(self, sequences: Tensor, action_mask: Tensor | None, attention_mask: Tensor, ring_group) -> Tensor:
        """The next token of each action token's predecessor, laid out as the model's input will be; -1 elsewhere."""
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
    def _fused(self, wanted: Pass) -> Iterator[None]:
        """The head gives what is wanted, the model leaves it as it is, and OpenRLHF's functions pick it."""

        def pick(which: int) -> Callable:
            return lambda logits, *labels: self._checked(logits, wanted)[..., which]

        with ExitStack() as stack:
            stack.enter_context(patch.object(self._parts.head, "wanted", wanted))
            stack.enter_context(patch.object(self, "temperature", 1.0))
            for holder in (self._parts.model, self._parts.model.config):
                for name, neutral in NEUTRAL.items():
                    if getattr(holder, name, None) is not None:
                        stack.enter_context(patch.object(holder, name, neutral))
            stack.enter_context(patch.object(openrlhf.models.actor, "log_probs_from_logits", pick(0)))
            stack.enter_context(patch.object(openrlhf.models.actor, "compute_entropy", pick(1)))
            yield

    def _checked(self, logits: Tensor, wanted: Pass) -> Tensor:
        """What the model returned, once compared with what its head did, since comparing waits for a GPU.

        Raises:
            ValueError: the model did not call its head, or changed what it returned.
        """
        if not self._parts.tried:
            as_it_was = wanted.result is not None and wanted.result.shape == logits.shape
            if not (as_it_was and torch.equal(wanted.result.nan_to_num(), logits.nan_to_num())):
                raise ValueError(
                    f"--actor.fused_head does not go with {type(self._parts.model).__name__}, which does more to its "
                    "logits than a soft cap and a scale: leave the flag out"
                )
            self._parts.tried = True
        return logits


def actor_class(args: SimpleNamespace) -> Callable[..., Actor]:
    """What makes an `Actor` under OpenRLHF's nested arguments: its own class without `--actor.fused_head`."""
    if not args.actor.fused_head:
        return Actor
    return lambda *given, **named: FusedHeadActor(lambda: bool(args.actor.entropy_coef), *given, **named)


def change_reference(launcher: ModuleType) -> None:
    """Change `openrlhf.trainer.ray.launcher`: how the reference model is made."""
    reference = launcher.ReferenceModelActor.__ray_metadata__.modified_class
    init = reference.init_model_from_pretrained

    def init_model_from_pretrained(self, strategy, pretrain) -> None:
        with patch.object(launcher, "Actor", actor_class(strategy.args)):
            init(self, strategy, pretrain)

    reference.init_model_from_pretrained = init_model_from_pretrained
