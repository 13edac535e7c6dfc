"""All that changes in OpenRLHF's advantage step, in one place, because the parts share one pass over the rewards."""

from __future__ import annotations

from types import ModuleType

from openrlhf_stare.estimators import equal_rewards, sr_grpo
from openrlhf_stare.fixes import non_finite_rewards


def change(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.experience_maker`."""
    sr_grpo.accept(module)
    non_finite_rewards.leave_out(module, shapers=(sr_grpo.shape, equal_rewards.shape))
