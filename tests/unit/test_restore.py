"""What the policy actor takes from a checkpoint, and what it says of it."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare import StareConfig, StareController, worker
from openrlhf_stare.fixes import saving

worker.install()

from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402

SAVED = StareConfig(schedule="adaptive", target_entropy=0.4)


def saved_states() -> dict:
    controller = StareController(SAVED)
    controller.update(0.1)
    return {"global_step": 7, "stare": {"config": dataclasses.asdict(SAVED), "controller": controller.state_dict()}}


def actor_with(config: StareConfig, checkpoint_states: dict) -> tuple[StarePolicyActor, list[str]]:
    """One that has loaded this from a checkpoint, and what it has said."""
    said = []
    actor = StarePolicyActor.__new__(StarePolicyActor)
    actor.stare, actor.checkpoint_states = config, checkpoint_states
    actor._notice, actor.controller = said.append, StareController(config)
    actor._restore(checkpoint_states.get("stare"))
    return actor, said


DISK_FULL = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"  # what torch.save says of one


@pytest.mark.parametrize(
    ("error", "is_disk"),
    [
        (OSError(28, "No space left on device"), True),
        (RuntimeError(DISK_FULL), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.distributed.DistBackendError("NCCL error: unhandled system error"), False),
        (RuntimeError("Connection closed by peer"), False),
        (ConnectionResetError("reset by peer"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_an_error_of_the_disk_is_called_one(tmp_path, monkeypatch, error, is_disk):
    def save_ckpt(*args, **named):
        raise error

    args = SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path), max_num=3, max_mem=1000))
    actor = StarePolicyActor.__new__(StarePolicyActor)
    actor.strategy = SimpleNamespace(args=args, save_ckpt=save_ckpt)
    actor.actor, actor.loss, actor.disable_ds_ckpt = SimpleNamespace(model=None), None, False
    monkeypatch.setattr(saving, "refuse_non_finite", lambda model, tag: None)
    with pytest.raises(type(error) if not is_disk else OSError) as raised:
        actor.save_checkpoint("global_step1")
    assert (raised.value is error) != is_disk
    assert ("could not be written to --ckpt.path" in str(raised.value)) == is_disk


def test_with_the_same_flags_the_controller_goes_on_without_a_word():
    states = saved_states()
    actor, said = actor_with(SAVED, states)
    assert actor.controller.state_dict() == states["stare"]["controller"]
    assert said == []
    assert actor.get_checkpoint_states() is states


def test_a_checkpoint_made_without_stare_starts_a_fresh_controller():
    actor, said = actor_with(SAVED, {"global_step": 7})
    assert actor.controller.state_dict() == StareController(SAVED).state_dict()
    assert said == ["The checkpoint was made without STARE: its controller starts fresh"]


@pytest.mark.parametrize(
    ("changes", "named", "goes_on"),
    [
        ({"target_entropy": 0.6}, "target_entropy 0.4 -> 0.6", True),
        ({"alpha": 0.1, "w_max": 4.0}, "alpha 0.01 -> 0.1, w_max 1.5 -> 4.0", True),
        ({"schedule": "pi"}, "schedule adaptive -> pi", False),
        ({"reweight_w": 1.2}, "reweight_w 1.1 -> 1.2", False),
        ({"reweight_m": 0.8}, "reweight_m 0.9 -> 0.8", False),
    ],
    ids=str,
)
def test_what_differs_is_named_and_the_flags_are_followed(changes, named, goes_on):
    config, states = dataclasses.replace(SAVED, **changes), saved_states()
    actor, said = actor_with(config, states)
    expected = states["stare"]["controller"] if goes_on else StareController(config).state_dict()
    assert actor.controller.state_dict() == expected
    assert actor.controller.config == config
    start = "goes on from the checkpoint" if goes_on else "starts fresh"
    assert said == [f"STARE follows the flags where the checkpoint differs ({named}); its controller {start}"]


def test_an_option_that_is_newer_than_the_checkpoint_is_no_difference():
    states = saved_states()
    del states["stare"]["config"]["record_tokens"]
    actor, said = actor_with(dataclasses.replace(SAVED, record_tokens=4), states)
    assert actor.controller.state_dict() == states["stare"]["controller"]
    assert said == []


def test_where_nothing_was_loaded_openrlhfs_trainer_is_told_to_begin():
    actor, said = actor_with(SAVED, {})
    assert actor.controller.state_dict() == StareController(SAVED).state_dict()
    assert said == []
    assert actor.get_checkpoint_states()["global_step"] == actor.get_checkpoint_states()["episode"] == 0
