"""The batch entropy, measured in the log-prob pass that OpenRLHF makes anyway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from openrlhf_stare.algorithms.entropy import chunked_entropy
from openrlhf_stare.replacing import replaced


class EntropyMeter:
    """Adds up the entropy (nats) and the number of the action tokens of this rank's log-prob passes.

    `exact`: the entropy of the next-token distribution, from the logits of the pass. `sampled`: -log pi of the sampled
    tokens. The sums are float64 and are reduced over the data-parallel group by the one who takes them.

    With `needs_tokens`, for a method that needs the entropies themselves, those of the log-prob pass are kept, and
    those of the last pass in training.

    Attributes:
        of_training: (B, A) the entropies of the last pass in training; None where no method needs them.
    """

    def __init__(self, actor: torch.nn.Module, kind: str, needs_tokens: bool = False) -> None:
        self.kind, self.needs_tokens = kind, needs_tokens
        self.of_training: torch.Tensor | None = None
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # entropies and mask (B, A) of each log-prob pass
        self.seconds = 0.0
        self._measuring = False
        self._totals: torch.Tensor | None = None  # (3,) on the actor's device: what `take` returns
        actor.register_forward_pre_hook(self._ask_for_entropy, with_kwargs=True)
        actor.register_forward_hook(self._add, with_kwargs=True)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """The passes inside this context count, and the forward passes of training do not."""
        self._measuring = True
        try:
            with self.without_gradient():
                yield
        finally:
            self._measuring = False

    @contextmanager
    def without_gradient(self) -> Iterator[None]:
        """Entropies without a gradient and without a second tensor as large as the logits, which OpenRLHF's need."""
        with replaced("openrlhf.models.actor.compute_entropy", self._timed_entropy):
            yield

    def take(self) -> list[float]:
        """The sum of the finite entropies, the number of tokens, and of non-finite entropies, since the last call."""
        taken = [0.0, 0.0, 0.0] if self._totals is None else self._totals.tolist()
        self._totals = None
        return taken

    def take_tokens(self) -> torch.Tensor | None:
        """(M,) the entropies of the tokens since the last call, on the CPU; None where no method needs them."""
        kept, self._kept = self._kept, []
        if not self.needs_tokens:
            return None
        return torch.cat([torch.empty(0), *(entropy[mask].cpu() for entropy, mask in kept)])

    def take_seconds(self) -> float:
        """The time spent on entropies beyond the log-prob pass since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _timed_entropy(self, logits: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        entropy = chunked_entropy(logits.detach())
        self.seconds += time.perf_counter() - start
        return entropy

    def _ask_for_entropy(
        self, actor: torch.nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]] | None:
        wanted = self.kind == "exact" if self._measuring else self.needs_tokens and actor.training
        if wanted:
            return args, {**kwargs, "return_output": True, "return_entropy": True}
        return None

    def _add(self, actor: torch.nn.Module, args: tuple, kwargs: dict[str, Any], result: Any) -> torch.Tensor | None:
        if not self._measuring:
            if self.needs_tokens and actor.training:
                self.of_training = result[1].entropy[:, -args[1].shape[1] :].detach()
            return None
        start = time.perf_counter()
        mask = args[1].bool()
        if self.kind == "exact":
            log_probs, output = result
            entropy = output.entropy[:, -mask.shape[1] :]
            if self.needs_tokens:
                self._kept.append((entropy.float(), mask))
            entropy = entropy.double()
        else:
            log_probs = result
            entropy = -log_probs.double()
        # Nothing here waits for a GPU; the totals are read once a rollout.
        finite = torch.isfinite(entropy)
        totals = torch.stack([torch.where(mask & finite, entropy, 0).sum(), mask.sum(), (mask & ~finite).sum()])
        self._totals = totals if self._totals is None else self._totals + totals
        self.seconds += time.perf_counter() - start
        return log_probs
