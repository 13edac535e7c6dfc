"""What every Ray worker of a job runs first (Ray's `worker_process_setup_hook`)."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
from types import ModuleType

from openrlhf_stare.runtime import prepare_process
from openrlhf_stare.when_imported import patch_when_imported

# Every process imports thousands of modules, and Python would look for garbage among them all the while. Here, since
# the driver's next imports bring torch.
gc.set_threshold(10_000, 10, 10)

HOOK = f"{__name__}.install"

# Module of OpenRLHF -> what changes it once it is imported, in this order.
CHANGES = {
    "openrlhf.trainer.ppo_utils.samples_generator": (
        "fixes.failed_rewards.count_as_nan",
        "fixes.uneven_dealing.cut",
        "fixes.evaluation.use_own_top_p",
    ),
    "openrlhf.trainer.ppo_utils.experience_maker": (
        "estimators.advantages.change",
        "tpo.whole_groups.number_responses",
    ),
    "openrlhf.trainer.ppo_trainer": ("tpo.whole_groups.deal_whole_groups", "actor_group.token_record.tell_the_step"),
    "openrlhf.trainer.ppo_trainer_async": ("actor_group.token_record.tell_the_step",),
    "openrlhf.trainer.ray.launcher": ("fixes.ports.hold_the_port",),
    "openrlhf.trainer.ray.ppo_actor": ("fixes.empty_steps.survive", "fixes.saving.guard"),
    "openrlhf.trainer.ray.ppo_critic": ("fixes.empty_steps.survive_in_critic", "fixes.saving.guard_critic"),
    "openrlhf.utils.agent": ("rollout.reward_answers.change",),
    "openrlhf.utils.deepspeed.deepspeed": ("fixes.checkpoints.keep_the_newest_complete",),
}


def install() -> None:
    """Announce our changes to OpenRLHF in this process. Cheap: neither OpenRLHF nor a change is imported here."""
    for module, changes in CHANGES.items():
        for change in changes:
            patch_when_imported(module, functools.partial(_apply, change))
    # Python would end by looking for garbage among the half million objects of the libraries, for a second and more.
    atexit.register(gc.freeze)
    prepare_process()


def _apply(change: str, module: ModuleType) -> None:
    place, _, function = change.rpartition(".")
    getattr(importlib.import_module(f"openrlhf_stare.{place}"), function)(module)
