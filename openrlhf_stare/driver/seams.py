"""The places in OpenRLHF that the plugin holds on to, checked before anything starts."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging

logger = logging.getLogger(__name__)

SUPPORTED = ("0.11.2",)

SEAMS = {
    "openrlhf.trainer.ray.ppo_actor": (
        "PolicyLoss",
        "DataLoader",
        "ActorPPOTrainer.ppo_train",
        "ActorPPOTrainer.training_step",
        "PolicyModelActor.__ray_metadata__.modified_class.init_model_from_pretrained",
        "PolicyModelActor.__ray_metadata__.modified_class.forward",
        "PolicyModelActor.__ray_metadata__.modified_class.append",
        "PolicyModelActor.__ray_metadata__.modified_class.fit",
        "PolicyModelActor.__ray_metadata__.modified_class.save_checkpoint",
        "PolicyModelActor.__ray_metadata__.modified_class.get_checkpoint_states",
    ),
    "openrlhf.trainer.ray.launcher": ("BaseDistributedActor._get_free_port",),
    "openrlhf.trainer.ray.vllm_engine": ("RolloutRayActor.__ray_metadata__.modified_class",),
    "openrlhf.models.actor": ("Actor.forward", "compute_entropy"),
    "openrlhf.trainer.ppo_utils.experience_maker": (
        "RemoteExperienceMaker.compute_advantages_and_returns",
        "apply_length_penalties",
        "compute_reward",
    ),
    "openrlhf.trainer.ppo_utils.experience": ("make_experience_batch", "split_experience_batch"),
    "openrlhf.trainer.ppo_trainer": ("balance_experiences",),
    "openrlhf.trainer.ppo_utils.samples_generator": (
        "SamplesGenerator.generate_samples",
        "SamplesGenerator.generate_eval_samples",
    ),
    "openrlhf.utils": ("get_strategy",),
    "openrlhf.utils.agent": (
        "MultiTurnAgentExecutor.execute",
        "SingleTurnAgentExecutor._fetch_rewards_via_func",
        "SingleTurnAgentExecutor._fetch_rewards_via_http",
    ),
    "openrlhf.utils.deepspeed.deepspeed": (
        "DeepspeedStrategy.save_ckpt",
        "DeepspeedStrategy.load_ckpt",
        "DeepspeedStrategy._read_ckpt_metric",
        "DeepspeedStrategy._write_ckpt_metric",
    ),
}


class MissingSeam(RuntimeError):
    """OpenRLHF is another version than the plugin knows, and a place that it holds on to is not there."""


def check() -> None:
    """Look for every seam.

    Raises:
        MissingSeam: one is not there. The message names it, the version found and the versions supported.
    """
    try:
        found = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        raise MissingSeam(f"OpenRLHF is not installed: install openrlhf=={SUPPORTED[-1]}") from None
    for module, names in SEAMS.items():
        for name in names:
            try:
                target = importlib.import_module(module)
                for part in name.split("."):
                    target = getattr(target, part)
            except (ImportError, AttributeError) as error:
                raise MissingSeam(
                    f"OpenRLHF {found} has no {module}.{name} ({error}), which openrlhf-stare needs: "
                    f"install openrlhf=={' or '.join(SUPPORTED)}"
                ) from error
    if found not in SUPPORTED:
        logger.warning(f"OpenRLHF {found} has all that openrlhf-stare needs, but only {SUPPORTED[-1]} has been tried")
