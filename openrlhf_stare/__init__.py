"""Entropy-stable RL training of language models on OpenRLHF: STARE (arXiv 2606.19236) as a plugin.

Importing this package imports torch at most: a loss loads OpenRLHF when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf_stare.actor_group.losses import StarePolicyLoss, TargetPolicyLoss
    from openrlhf_stare.algorithms.config import SrGrpoConfig, StareConfig, TpoConfig
    from openrlhf_stare.algorithms.controller import StareController
    from openrlhf_stare.algorithms.sr_grpo import soft_advantage
    from openrlhf_stare.algorithms.target_policy import target_distribution, target_policy_loss
    from openrlhf_stare.algorithms.thresholds import surprisal_thresholds
    from openrlhf_stare.algorithms.weights import token_weights

__version__ = "0.1.0"
__all__ = [
    "SrGrpoConfig",
    "StareConfig",
    "StareController",
    "StarePolicyLoss",
    "TargetPolicyLoss",
    "TpoConfig",
    "soft_advantage",
    "surprisal_thresholds",
    "target_distribution",
    "target_policy_loss",
    "token_weights",
]

_HOMES = {
    "SrGrpoConfig": "openrlhf_stare.algorithms.config",
    "StareConfig": "openrlhf_stare.algorithms.config",
    "StareController": "openrlhf_stare.algorithms.controller",
    "StarePolicyLoss": "openrlhf_stare.actor_group.losses",
    "TargetPolicyLoss": "openrlhf_stare.actor_group.losses",
    "TpoConfig": "openrlhf_stare.algorithms.config",
    "soft_advantage": "openrlhf_stare.algorithms.sr_grpo",
    "surprisal_thresholds": "openrlhf_stare.algorithms.thresholds",
    "target_distribution": "openrlhf_stare.algorithms.target_policy",
    "target_policy_loss": "openrlhf_stare.algorithms.target_policy",
    "token_weights": "openrlhf_stare.algorithms.weights",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("StarePolicyLoss", "TargetPolicyLoss"):
        # In a notebook on a machine without a GPU, OpenRLHF itself needs the stand-ins of the CPU runtime.
        from openrlhf_stare.runtime import prepare_process

        prepare_process()
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
