"""The batch entropy, measured in the log-prob pass that OpenRLHF makes anyway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import openrlhf.models.actor
import torch

from openrlhf_stare.algorithms.entropy import chunked_entropy


class EntropyMeter:
    """Adds up the entropy (nats) and the number of the action tokens of this rank's log-prob passes.

    `exact`: the entropy of the next-token distribution, from the logits of the pass. `sampled`: -log pi of the sampled
    tokens. The sums are float64 and are reduced over the data-parallel group by the one who takes them.
    """

    def __init__(self, actor: torch.nn.Module, kind: str) -> None:
        self.kind = kind
        self.seconds = 0.0
        self._measuring = False
        self._totals: torch.Tensor | None = None  # (3,) on the actor's device: what `take` returns
        actor.register_forward_pre_hook(self._ask_for_entropy, with_kwargs=True)
        actor.register_forward_hook(self._add, with_kwargs=True)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """The passes inside this context count, and the forward passes of training do not."""
        module = openrlhf.models.actor
        compute_entropy = module.compute_entropy
        # OpenRLHF's own needs a second tensor as large as the logits; training, which may need its gradient, gets it
        # back.
        module.compute_entropy = self._timed_entropy
        self._measuring = True
        try:
            yield
        finally:
            module.compute_entropy = compute_entropy
            self._measuring = False

    def take(self) -> list[float]:
        """The sum of the finite entropies, the number of tokens, and of non-finite entropies, since the last call."""
        taken = [0.0, 0.0, 0.0] if self._totals is None else self._totals.tolist()
        self._totals = None
        return taken

    def take_seconds(self) -> float:
        """The time spent on entropies beyond the log-prob pass since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _timed_entropy(self, logits: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        entropy = chunked_entropy(logits)
        self.seconds += time.perf_counter() - start
        return entropy

    def _ask_for_entropy(self, actor, args, kwargs):
        if self._measuring and self.kind == "exact":
            return args, {**kwargs, "return_output": True, "return_entropy": True}
        return None

    def _add(self, actor, args, kwargs, result):
        if not self._measuring:
            return None
        start = time.perf_counter()
        mask = args[1].bool()
        if self.kind == "exact":
            log_probs, output = result
            entropy = output.entropy[:, -mask.shape[1] :].double()
        else:
            log_probs = result
            entropy = -log_probs.double()
        # Nothing here waits for a GPU; the totals are read once a rollout.
        finite = torch.isfinite(entropy)
        totals = torch.stack([torch.where(mask & finite, entropy, 0).sum(), mask.sum(), (mask & ~finite).sum()])
        self._totals = totals if self._totals is None else self._totals + totals
        self.seconds += time.perf_counter() - start
        return log_probs
