"""The places in OpenRLHF that the plugin holds on to, checked before anything starts."""

from __future__ import annotations

import importlib
import importlib.metadata

from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError

SUPPORTED = ("0.11.2",)

SEAMS = {
    "openrlhf.cli.train_ppo_ray": ("train", "PolicyModelActor"),
    "openrlhf.trainer.ray.ppo_actor": (
        "PolicyLoss",
        "DataLoader",
        "ActorPPOTrainer.ppo_train",
        "ActorPPOTrainer.training_step",
        "PolicyModelActor.__ray_metadata__.modified_class.init_model_from_pretrained",
        "PolicyModelActor.__ray_metadata__.modified_class.forward",
        "PolicyModelActor.__ray_metadata__.modified_class.fit",
        "PolicyModelActor.__ray_metadata__.modified_class.save_checkpoint",
        "PolicyModelActor.__ray_metadata__.modified_class.get_checkpoint_states",
        "PolicyModelActor.__ray_metadata__.modified_class.save_model",
    ),
    "openrlhf.trainer.ray.ppo_critic": (
        "CriticPPOTrainer.training_step",
        "CriticModelActor.__ray_metadata__.modified_class.save_checkpoint",
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
    "openrlhf.trainer.ppo_trainer": ("balance_experiences", "PPOTrainer.__ray_metadata__.modified_class.ppo_train"),
    "openrlhf.trainer.ppo_trainer_async": ("TrainingActor.__ray_metadata__.modified_class.ppo_train",),
    "openrlhf.trainer.ppo_utils.samples_generator": (
        "SamplesGenerator._process_response_into_experience",
        "SamplesGenerator.generate_samples",
        "SamplesGenerator.generate_eval_samples",
        "SamplesGenerator._dispatch_prompts_to_vllm",
    ),
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
        "DeepspeedStrategy.save_model",
        "DeepspeedStrategy.setup_distributed",
    ),
    "openrlhf.utils.utils": ("convert_to_torch_dtype",),
}


class MissingSeam(UsageError):
    """OpenRLHF is another version than the plugin knows, and a place that it holds on to is not there."""


def check_version() -> str:
    """The version of OpenRLHF that is installed; its files are not imported.

    Raises:
        MissingSeam: there is none, or it is older than what we know. Before 0.11.1 its log-probs were not at the
            rollout's temperature, and its loss returned other values, so that older ones would train on wrong figures.
    """
    try:
        found = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        raise MissingSeam(f"OpenRLHF is not installed: install openrlhf=={SUPPORTED[-1]}") from None
    from packaging.version import Version

    if Version(found) < Version(SUPPORTED[0]):
        raise MissingSeam(
            f"OpenRLHF {found} is older than {SUPPORTED[0]}, and its entropies and losses are others: "
            f"install openrlhf=={' or '.join(SUPPORTED)}"
        )
    return found


def check() -> None:
    """Look for every seam.

    Raises:
        MissingSeam: one is not there. The message names it, the version found and the versions supported.
    """
    found = check_version()
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
        notice(f"OpenRLHF {found} has all that openrlhf-stare needs, but only {SUPPORTED[-1]} has been tried")
