"""OpenRLHF's `PolicyLoss` with a method in it, the same loss for every method."""

from __future__ import annotations

import dataclasses
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from openrlhf.models import PolicyLoss
from torch import Tensor

from openrlhf_stare.algorithms.draw import places_of
from openrlhf_stare.methods.base import OWN_MODULE, Method, Tokens, chosen, parts_of
from openrlhf_stare.methods.stare import Stare, StareOptions
from openrlhf_stare.options import Options, UsageError


class MethodFailed(ValueError):
    """A method in a file of the user's own raised an error in training."""


@contextmanager
def own_file_is_told() -> Iterator[None]:
    """Run a method's code in this context.

    Raises:
        MethodFailed: it raised in a file of the user's own. The message has the file, the line and the error.
    """
    try:
        yield
    except Exception as error:
        own = {module.__file__ for name, module in list(sys.modules.items()) if name.startswith(OWN_MODULE)}
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
        if not frames:
            raise
        last = frames[-1]
        raise MethodFailed(
            f"--policy_loss {last.filename} failed in line {last.lineno}, in {last.name} "
            f"({type(error).__name__}: {error}): fix it"
        ) from error


class MethodLoss(PolicyLoss):
    """OpenRLHF's policy loss, with the same forward arguments and returned tuple, as a method wants it.

    The policy actor opens each rollout. Until one was opened, the batch of the call over all ranks of `group` is the
    pool of the method's statistics.

    Attributes:
        method: the method; its name, formula and figures are in methods/.
        strengths: the values of the method's strengths until a rollout is opened with others.
        group: the data-parallel group; None for this process alone.
    """

    clip_eps_low: float
    clip_eps_high: float

    def __init__(self, method: type[Method], options: Options | None = None, **of_openrlhf) -> None:
        super().__init__(**of_openrlhf)
        self.method = method(options, clip_range=(self.clip_eps_low, self.clip_eps_high))
        self.strengths = {strength.name: strength.start for strength in self.method.strengths}
        self.group: torch.distributed.ProcessGroup | None = None
        self._is_open = False
        self._seconds = 0.0

    def open_rollout(self, tokens: Tokens, strengths: dict[str, float] | None = None) -> dict[str, float]:
        """Fix the method's statistics for all calls to come; called on all ranks of `group`.

        Args:
            tokens: (N,), this rank's action tokens.
            strengths: a value for each of the method's; None for `self.strengths`.

        Returns:
            The method's figures, the same on all ranks.
        """
        self._is_open = True
        with own_file_is_told():
            return self._open(tokens, self.strengths if strengths is None else strengths)

    def _open(self, tokens: Tokens, strengths: dict[str, float]) -> dict[str, float]:
        figures = self.method.open_rollout(tokens, strengths, self.group)
        self.clip_eps_low, self.clip_eps_high = self.method.surrogate_range()
        return figures

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor | None = None,
        *others,
        entropies: Tensor | None = None,
        rows: Sequence[int] | None = None,
        **named,
    ) -> tuple:
        """Log-probs, advantages and mask (B, A) -> OpenRLHF's five values; the other arguments are passed through.

        Args:
            entropies: (B, A) of this pass, in nats, without a gradient; for a method with `needs_entropy`.
            rows: (B,), the numbers of the responses in the rollout; for a method with `needs_places`.

        Raises:
            ValueError: the method needs entropies, and there are none.
        """
        start = time.perf_counter()
        mask = torch.ones_like(advantages, dtype=torch.bool) if action_mask is None else action_mask.bool()
        if self.method.needs_entropy and entropies is None:
            raise ValueError(f"{type(self.method).__name__} needs the tokens' entropies: give `entropies`")
        places = None
        if self.method.needs_places and rows is not None:
            places = places_of(rows, mask.shape[1]).to(mask.device, non_blocking=True)
        tokens = Tokens(old_log_probs, advantages, mask, entropies, places)
        with own_file_is_told():
            weighted, penalty = self._acted(log_probs, tokens)
        self._seconds += time.perf_counter() - start
        loss, *metrics = super().forward(log_probs, old_log_probs, weighted, action_mask, *others, **named)
        if penalty is not None:
            # With a ratio of 1 the loss of a token is -A: so OpenRLHF corrects and averages the penalty as its own.
            loss = loss + super().forward(old_log_probs, old_log_probs, -penalty, action_mask, *others, **named)[0]
        return loss, *metrics

    def _acted(self, log_probs: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The weighted advantages and the penalty of the method, both (B, A)."""
        with torch.no_grad():
            if not self._is_open:
                mask = tokens.action_mask
                entropies, places = (None if of is None else of[mask] for of in (tokens.entropies, tokens.places))
                pool = Tokens(tokens.log_probs[mask], tokens.advantages[mask], mask[mask], entropies, places)
                self._open(pool, self.strengths)
            weights = self.method.weights(tokens)
        advantages = tokens.advantages
        weighted = advantages if weights is None else weights.to(advantages.dtype) * advantages
        return weighted, self.method.penalty(log_probs, tokens)

    def take_seconds(self) -> float:
        """The time that the method took in `forward` since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def policy_loss(name: str, options: dict[str, object] | None = None, **of_openrlhf) -> MethodLoss:
    """The loss module of a method, for one's own training loop.

    Until its `open_rollout` is called, the batch of the call is the pool, and the strengths are the published ones.

    Args:
        name: a method's, as `--policy_loss` takes it, or a file of one's own.
        options: the method's options by name; the others have their defaults.
        of_openrlhf: the arguments of OpenRLHF's `PolicyLoss`.

    Raises:
        UsageError: there is no such method.
        ValueError: an option is unknown or outside its range.
    """
    method, options = chosen(name), options or {}
    if method is None:
        raise UsageError(f"name {name} is not a method: take OpenRLHF's own loss, or openrlhf_stare.TargetPolicyLoss")
    if len(parts_of(name)) > 1:
        raise UsageError(f"name {name} is a composition, which a job can train with: give one method")
    known = {field.name for field in dataclasses.fields(method.Options)}
    if unknown := options.keys() - known:
        raise ValueError(
            f"{', '.join(sorted(unknown))} is not an option of {name}: give one of {', '.join(sorted(known))}"
        )
    return MethodLoss(method, method.Options(**options), **of_openrlhf)


class StarePolicyLoss(MethodLoss):
    """OpenRLHF's policy loss on the advantages ω·A of STARE (arXiv 2606.19236).

    Every surrogate of `PolicyLoss` is positively homogeneous in the advantage, so this equals weighting the clipped,
    dual-clipped and importance-corrected loss of each token. With W = M = 1 the call is OpenRLHF's, bit for bit.
    """

    def __init__(self, stare: StareOptions, **of_openrlhf) -> None:
        super().__init__(Stare, stare, **of_openrlhf)
