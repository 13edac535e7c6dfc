"""The token record (`--entropy.record_tokens N`): a few responses of every rollout as JSON lines, token by token.

Rank 0 writes responses of its own buffer, so nothing is communicated. A line has:

    step                              the step under which TensorBoard has the rollout
    time                              when the rollout was recorded, seconds since 1970; tells a repeated step apart
    prompt                            text
    tokens                            the response, one string per token; joined they are its text
    surprisal, advantage, omega       one number per token, surprisal in nats
    reward                            of the response
    tau_positive, tau_negative        the thresholds of the rollout, in nats

A number is null where it is not finite, and for the tokens of a tool's output, which take no part. omega is what the
method multiplies the advantage by, 1 for all where it does nothing; it is null where only the training pass knows it
(a method that needs its entropies). The thresholds are null for a method that has none on surprisal.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from openrlhf_stare.algorithms.draw import places_of
from openrlhf_stare.algorithms.surprisal import surprisal
from openrlhf_stare.methods import base
from openrlhf_stare.methods.base import Method, Tokens
from openrlhf_stare.notices import notice

FILE = "tokens.jsonl"  # the newest part; before it came tokens.1.jsonl, tokens.2.jsonl and so on
PART_BYTES = 16 * 2**20
PARTS = 4


def record_folder(args: SimpleNamespace) -> Path:
    """Where a run with OpenRLHF's nested arguments keeps its record: beside its TensorBoard logs if it has any."""
    if args.logger.tensorboard_dir:
        return Path(args.logger.tensorboard_dir, args.logger.wandb.run_name)
    return Path(args.ckpt.path)


def responses_to_record(args: SimpleNamespace) -> int:
    """How many responses of each rollout a run with OpenRLHF's nested arguments records."""
    return base.control_of(args).record_tokens


class TokenRecord:
    """Writes `responses` responses of each rollout to `folder`, at most `parts` files of `part_bytes` bytes."""

    def __init__(
        self, folder: Path, responses: int, tokenizer: Any, part_bytes: int = PART_BYTES, parts: int = PARTS
    ) -> None:
        self.folder, self.responses, self.tokenizer = folder, responses, tokenizer
        self.part_bytes, self.parts = part_bytes, parts
        self._warned = False

    def write(
        self, step: int, items: Sequence[Any], method: Method | None = None, figures: dict[str, float] | None = None
    ) -> None:
        """Record a rollout. A disk that cannot be written to costs the record, with one warning, not the training.

        Args:
            step: the step under which the rollout is logged.
            items: the replay buffer of this rank: responses with unpadded `sequences` (T,), and `action_log_probs`,
                `advantages` and `action_mask` (T-1,), whose place i is about the token i+1.
            method: gives the weights, of the rollout that it has opened; None for weights of 1.
            figures: the method's, with its thresholds; None where there are none.
        """
        trained_on = [item for item in items if item.action_mask.any()]
        count = min(self.responses, len(trained_on))
        # Spread over the buffer, where the responses to one prompt are neighbours.
        chosen = [trained_on[i * len(trained_on) // count] for i in range(count)]
        thresholds = (method and method.threshold_figures) or ("", "")
        taus = [_number((figures or {}).get(figure, math.nan)) for figure in thresholds]
        rollout = {"step": step, "time": round(time.time(), 3), "tau_positive": taus[0], "tau_negative": taus[1]}
        try:
            for item in chosen:
                line = rollout | self._line(item, method)
                self._append(json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError as error:
            if not self._warned:
                notice(f"The token record of step {step} is incomplete, and training goes on: {error}")
            self._warned = True

    def _line(self, item: Any, method: Method | None) -> dict:
        mask = item.action_mask.bool()
        first = int(mask.nonzero()[0])
        places = None if item.index is None else places_of(item.index, len(mask))[0, first:]
        tokens = Tokens(item.action_log_probs[first:], item.advantages[first:], mask[first:], places=places)
        weights: Tensor | None
        if method and method.needs_entropy:
            weights = torch.full((len(tokens.action_mask),), math.nan)
        else:
            weights = method.weights(tokens) if method else None
            weights = torch.ones(len(tokens.action_mask)) if weights is None else weights
        return {
            "prompt": self.tokenizer.decode(item.sequences[: first + 1].tolist(), skip_special_tokens=False),
            "tokens": token_texts(item.sequences[first + 1 :].tolist(), self.tokenizer),
            "surprisal": _numbers(surprisal(tokens.log_probs), tokens.action_mask),
            "advantage": _numbers(tokens.advantages, tokens.action_mask),
            "omega": _numbers(weights, tokens.action_mask),
            "reward": _number(float(item.info["reward"])),
        }

    def _append(self, line: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = self.folder / FILE
        if newest.exists() and newest.stat().st_size + len(line) > self.part_bytes:
            parts = [newest, *(newest.with_suffix(f".{age}.jsonl") for age in range(1, self.parts))]
            for younger, older in reversed(list(zip(parts[:-1], parts[1:], strict=True))):
                if younger.exists():
                    os.replace(younger, older)
        with open(newest, "ab") as file:
            file.write(line)


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text that each token adds to those before it, spaces included; joined they are the whole text.

    Tokens that are parts of one character add nothing until its last one comes.
    """

    def decode(start: int, end: int) -> str:
        return tokenizer.decode(list(ids[start:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    # Decoded with the last whole text before it, because a tokenizer may drop the space of a text's first token.
    texts, before, after = [], 0, 0
    for place in range(len(ids)):
        text = decode(before, place + 1)
        # A character has four bytes at most; what is unfinished after four tokens is no character.
        if text.endswith("\N{REPLACEMENT CHARACTER}") and place - after < 3 and place + 1 < len(ids):
            texts.append("")
            continue
        texts.append(text[len(decode(before, after)) :])
        before, after = after, place + 1
    return texts


def _numbers(values: Tensor, mask: Tensor) -> list[float | None]:
    pairs = zip(values.tolist(), mask.tolist(), strict=True)
    return [_number(value) if is_action else None for value, is_action in pairs]


def _number(value: float) -> float | None:
    # Nine digits tell any two float32 values apart, so a surprisal compares with a threshold as it did in training.
    return float(f"{value:.9g}") if math.isfinite(value) else None
