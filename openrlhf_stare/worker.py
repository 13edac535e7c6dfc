"""What every Ray worker of a job runs first (Ray's `worker_process_setup_hook`)."""

from __future__ import annotations

from openrlhf_stare.runtime import prepare_process
from openrlhf_stare.when_imported import patch_when_imported

HOOK = f"{__name__}.install"


def install() -> None:
    """Announce our changes to OpenRLHF in this process. Cheap: none of the modules they change is imported here."""
    from openrlhf_stare.actor_group import experience
    from openrlhf_stare.fixes import checkpoints, evaluation, ports

    patch_when_imported("openrlhf.trainer.ppo_utils.samples_generator", experience.deal_evenly)
    patch_when_imported("openrlhf.trainer.ppo_utils.samples_generator", evaluation.use_own_top_p)
    patch_when_imported("openrlhf.trainer.ppo_utils.experience_maker", experience.change_advantages)
    patch_when_imported("openrlhf.trainer.ppo_utils.experience_maker", experience.number_responses)
    patch_when_imported("openrlhf.trainer.ppo_trainer", experience.deal_whole_groups)
    patch_when_imported("openrlhf.trainer.ray.launcher", ports.hold_the_port)
    patch_when_imported("openrlhf.utils.deepspeed.deepspeed", checkpoints.keep_the_newest_complete)
    prepare_process()
