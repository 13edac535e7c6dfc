"""Entropy-stable RL training of language models on OpenRLHF: STARE (arXiv 2606.19236) as a plugin.

Importing this package imports nothing else: what a public name stands for is loaded when first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "EntropyControl": "algorithms.control",
    "EntropyController": "algorithms.control",
    "SrGrpoConfig": "rollout.sr_grpo",
    "StareOptions": "methods.stare",
    "StarePolicyLoss": "actor_group.policy_loss",
    "Strength": "algorithms.control",
    "TargetPolicyLoss": "tpo.loss",
    "TpoConfig": "tpo.target",
    "policy_loss": "actor_group.policy_loss",
    "soft_advantage": "rollout.sr_grpo",
    "surprisal_thresholds": "methods.stare",
    "target_distribution": "tpo.target",
    "target_policy_loss": "tpo.target",
    "token_weights": "methods.stare",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("StarePolicyLoss", "policy_loss"):
        # In a notebook on a machine without a GPU, OpenRLHF itself needs the stand-ins of the CPU runtime.
        from openrlhf_stare.runtime import prepare_process

        prepare_process()
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
