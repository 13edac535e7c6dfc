"""The options that are added to OpenRLHF's own under `--actor`."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.options import Options, option


@dataclass(frozen=True)
class ActorConfig(Options):
    fused_head: bool = option(False, "compute log-probs and entropies without the logits (tokens times vocabulary)")
