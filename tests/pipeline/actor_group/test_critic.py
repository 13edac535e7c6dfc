"""OpenRLHF's critic, a rank of its own: what was left out of a rollout does not spoil it."""

import math

import pytest
import ray
import torch
from harness import FLAGS, fixed_experiences, parse
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils import get_strategy

from openrlhf_stare.actor_group import checkpoints
from openrlhf_stare.actor_group.critic import StareCriticActor
from openrlhf_stare.actor_group.saving import own_values

WAYS = {"fixed": ["--train.micro_batch_size", "2"], "dynamic": ["--train.dynamic_batch_enable"]}


class ReadableCritic(StareCriticActor):
    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: own_values(value).detach().clone() for name, value in self.critic.named_parameters()}

    def spoil(self) -> None:
        own_values(next(self.critic.parameters())).data.view(-1)[0] = torch.nan


@pytest.fixture(scope="module")
def critic(group_of):
    group = RayActorGroup(1, 1, ray.remote(num_gpus=1)(ReadableCritic))
    yield group
    for actor in group._actor_handlers:
        ray.kill(actor)


def start(critic: RayActorGroup, model: str, *flags: str) -> None:
    args = parse([*FLAGS, "--actor.model_name_or_path", model, "--advantage_estimator", "gae", *flags])
    ray.get(critic.async_init_model_from_pretrained(get_strategy(args), model, 100))


def run(critic: RayActorGroup, method: str, *args):
    return ray.get(critic.async_run_method(method, *args))[0]


@pytest.mark.parametrize("way", WAYS)
def test_steps_and_micro_batches_without_a_token_harm_nothing(addends, critic, way):
    start(critic, str(addends / "model"), "--rollout.batch_size", "4", "--train.batch_size", "8", *WAYS[way])
    before = run(critic, "parameters")
    for lost in (16, 10):
        experiences = fixed_experiences()
        for experience in experiences:
            experience.values = experience.returns = experience.action_mask.float()
        for experience in experiences[:lost]:
            experience.action_mask = torch.zeros_like(experience.action_mask)
        ray.get(critic.async_run_method_batch("append", experience=experiences))
        assert all(math.isfinite(value) for value in run(critic, "fit").values())
        after = run(critic, "parameters")
        assert all(value.isfinite().all() for value in after.values())
        assert all(torch.equal(after[name], value) for name, value in before.items()) == (lost == 16)


def test_one_that_is_not_finite_is_not_saved(addends, critic, tmp_path):
    folders = ["--ckpt.path", str(tmp_path), "--ckpt.output_dir", str(tmp_path / "final")]
    start(critic, str(addends / "model"), *folders, "--critic.save_value_network")
    run(critic, "spoil")
    with pytest.raises(ray.exceptions.RayTaskError, match="1 values in the critic's .* lower --critic.max_norm"):
        run(critic, "save_checkpoint", "global_step1")
    with pytest.raises(ray.exceptions.RayTaskError, match="final model"):
        run(critic, "save_model")
    assert not [*tmp_path.iterdir()]


def test_one_that_was_killed_in_its_first_save_starts_anew_beside_the_actor_s_checkpoints(addends, critic, tmp_path):
    for tag in ("global_step1", "global_step2"):
        checkpoint = tmp_path / "_actor" / tag
        checkpoints.begin(checkpoint)
        (checkpoint / "metric.json").write_text("{}")
        checkpoints.finish(checkpoint, checkpoints.sizes_of(checkpoint, [checkpoint / "metric.json"]))
    checkpoints.begin(tmp_path / "_critic/global_step2")
    start(critic, str(addends / "model"), "--ckpt.path", str(tmp_path), "--ckpt.load_enable")
    assert all(value.isfinite().all() for value in run(critic, "parameters").values())
