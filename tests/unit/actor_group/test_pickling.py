"""Our actor classes as Ray takes them to its processes: pickled, with copies of all inherited methods."""

import base64
import json
import subprocess
import sys

import pytest
import ray

from openrlhf_stare import worker

worker.install()

import openrlhf.trainer.ray.ppo_actor as ppo_actor  # noqa: E402
import openrlhf.trainer.ray.ppo_critic as ppo_critic  # noqa: E402

from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402


class Own(StarePolicyActor):
    """As somebody's own actor in a script, which is pickled by value."""

    def get_checkpoint_states(self):
        return {**super().get_checkpoint_states(), "own": True}


# What a process does that Ray has just started: the hook, then the class, then its methods.
IN_A_PROCESS_OF_RAY = """
import base64, json, sys
from types import SimpleNamespace
from openrlhf_stare import worker
worker.install()
import ray, torch
policy, critic, own = (ray.cloudpickle.loads(base64.b64decode(text)) for text in json.load(sys.stdin))
import openrlhf.trainer.ray.ppo_critic as ppo_critic

def states(actor_class, loaded):
    actor = actor_class.__new__(actor_class)
    actor.checkpoint_states = loaded
    return actor.get_checkpoint_states()

def refusal(actor_class, **attributes):
    actor = actor_class.__new__(actor_class)
    vars(actor).update(attributes, strategy=SimpleNamespace(args=args))
    try:
        actor.save_checkpoint("global_step1")
    except FloatingPointError as error:
        return str(error)

broken = torch.nn.Linear(2, 1)
broken.weight.data[0, 0] = torch.nan
args = SimpleNamespace(ckpt=SimpleNamespace(path="."))
print(json.dumps({
    "loaded": states(policy, {"global_step": 7}),
    "nothing": states(policy, {}),
    "own": states(own, {"global_step": 7}),
    "policy": refusal(policy, actor=SimpleNamespace(model=broken)),
    "critic": refusal(critic, critic=broken, disable_ds_ckpt=True),
    "whole critic": refusal(critic, critic=torch.nn.Linear(2, 1), disable_ds_ckpt=True),
    "trainer": ppo_critic.CriticPPOTrainer.__name__,
    "known as": [actor_class.__ray_actor_class__.__name__ for actor_class in (policy, critic)],
}))
"""


@pytest.fixture(scope="module")
def done() -> dict:
    classes = [ppo_actor.PolicyModelActor, ppo_critic.CriticModelActor, ray.remote(num_gpus=1)(Own)]
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        pickled = [ray.cloudpickle.dumps(actor_class.__ray_metadata__.modified_class) for actor_class in classes]
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    texts = json.dumps([base64.b64encode(data).decode() for data in pickled])
    command = [sys.executable, "-c", IN_A_PROCESS_OF_RAY]
    result = subprocess.run(command, input=texts, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_an_override_reaches_openrlhfs_method_and_adds_to_it(done):
    assert done["loaded"] == {"global_step": 7}
    assert done["nothing"]["global_step"] == done["nothing"]["episode"] == 0


def test_a_class_pickled_by_value_reaches_ours(done):
    assert done["own"] == {"global_step": 7, "own": True}


def test_neither_model_is_saved_when_it_is_not_finite(done):
    for model in ("policy", "critic"):
        assert "1 values in the" in done[model] and "checkpoint global_step1 was not written" in done[model]
    assert done["whole critic"] is None


def test_the_critics_trainer_is_ours(done):
    assert done["trainer"] == "CriticTrainer"


def test_a_death_is_told_by_openrlhfs_names(done):
    """driver/deaths.py knows the actors by them."""
    assert done["known as"] == ["PolicyModelActor", "CriticModelActor"]
