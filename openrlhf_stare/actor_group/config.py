"""The options that are added to OpenRLHF's own under `--actor`."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class ActorConfig(Options):
    fused_head: bool = option(
        False, "log-probs and entropies without logits, which are as large as tokens times vocabulary"
    )
