"""OpenRLHF's trainers, in the places where the table puts ours, and as Ray carries them to their processes."""

import importlib
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
import ray.cloudpickle
from flag_parser import parse

from openrlhf_stare import worker
from openrlhf_stare.replacing import plain_class

worker.install()

from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController  # noqa: E402

TRAINERS = {"openrlhf.trainer.ppo_trainer": "PPOTrainer", "openrlhf.trainer.ppo_trainer_async": "TrainingActor"}
EVERY_TRAINER = pytest.mark.parametrize(("module", "name"), TRAINERS.items())


def trainer(module: str, name: str) -> type:
    return plain_class(getattr(importlib.import_module(module), name))


@EVERY_TRAINER
@pytest.mark.parametrize("responses", [0, 1])
def test_the_ranks_are_told_the_step_only_where_something_is_recorded(module, name, monkeypatch, responses):
    """That OpenRLHF's own trainers tell it in their processes is shown by the jobs of test_recipes.py and
    test_job_matrix.py, by the steps of their records."""
    told = []
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    ours = object.__new__(trainer(module, name))
    ours.args = SimpleNamespace(
        policy_loss="stare",
        entropy=SimpleNamespace(record_tokens=responses),
        critic=SimpleNamespace(freezing_steps=100),
        ds=SimpleNamespace(enable_sleep=False),
    )
    ours.critic_model_group = None
    ours.actor_model_group = SimpleNamespace(async_run_method=lambda *method, **named: told.append((*method, named)))
    assert ours.ppo_train(6) == {}
    # In a step of the critic alone the actor's rollout is dropped.
    assert told == [("begin_step", {"step": 7})] * responses + [("drop_rollout", {})]


@EVERY_TRAINER
def test_ours_has_openrlhfs_name_which_ray_puts_before_its_lines(module, name):
    ours = trainer(module, name)
    assert ours.__name__ == ours.__qualname__ == name and ours.__module__.startswith("openrlhf_stare.rollout.")


@EVERY_TRAINER
def test_a_trainer_that_does_not_see_the_checkpoint_ends_the_job_before_a_model_is_loaded(module, name, tmp_path):
    """OpenRLHF's would count steps and prompts from 0, and leave the sampler with the first weights."""
    ckpt = SimpleNamespace(path=str(tmp_path), load_enable=True, resume_from=[str(tmp_path / "_actor/global_step1")])
    strategy = SimpleNamespace(args=SimpleNamespace(ckpt=ckpt))
    with pytest.raises(FileNotFoundError, match="Put it on a file system that all nodes share"):
        trainer(module, name)("model", strategy)


def saving_trainer(module: str, name: str, saved: list, *words: str):
    """One whose checkpoints' states go to `saved`."""
    ours = object.__new__(trainer(module, name))
    ours.args = parse("--ckpt.save_steps", "1", *words)
    kl = ours.args.algo.kl
    ours.kl_ctl = AdaptiveKLController(kl.init_coef, kl.target or 1, kl.horizon)
    ours.best_eval_metric_key, ours.best_eval_metric_value = ours.args.ckpt.best_metric_key, -math.inf
    ours._latest_eval_metric_value = ours.critic_model_group = ours.wandb_logger = ours.tensorboard_logger = None
    ours.actor_model_group = SimpleNamespace(async_run_method=lambda **call: saved.append(call["client_states"]))
    return ours


@EVERY_TRAINER
@pytest.mark.parametrize(
    ("words", "coefficient"),
    [("", 0.02), ("--algo.kl.init_coef 0.5", 0.5), ("--algo.kl.target 0", 0.01)],
    ids=["the same", "the flag wins", "no target"],
)
def test_an_adapted_kl_coefficient_goes_on_after_a_resume(module, name, monkeypatch, words, coefficient):
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    saved, target = [], ["--algo.kl.target", "6"]
    first = saving_trainer(module, name, saved, *target)
    first.kl_ctl.value = 0.02
    first.save_logs_and_checkpoints(1, {}, {"global_step": 1})
    first.save_best_checkpoint({"eval_a_pass1": 0.5}, 1, {"global_step": 1})
    assert [states["global_step"] for states in saved] == [1, 1]
    for states in (*saved, {"global_step": 1}):  # the last is of before it was kept
        resumed = saving_trainer(module, name, [], *target, *words.split())
        resumed.restore_best_checkpoint_state(states)
        initial = resumed.args.algo.kl.init_coef
        assert resumed.kl_ctl.value == (coefficient if "kl_coefficient" in states else initial)


@EVERY_TRAINER
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_kl_coefficient_that_is_not_finite_is_forgotten(module, name, value):
    resumed = saving_trainer(module, name, [], "--algo.kl.target", "6")
    resumed.restore_best_checkpoint_state({"kl_coefficient": (resumed.args.algo.kl.init_coef, value)})
    assert resumed.kl_ctl.value == resumed.args.algo.kl.init_coef


@EVERY_TRAINER
@pytest.mark.parametrize(
    ("saved", "flag", "key", "value"),
    [
        ("eval_a_pass1", "", "eval_a_pass1", 0.5),
        ("eval_a_pass1", "eval_a_pass1", "eval_a_pass1", 0.5),
        ("eval_a_pass1", "eval_b_pass1", "eval_b_pass1", -math.inf),
        ("eval_a_pass1", "none", "none", -math.inf),
        ("none", "", "", -math.inf),
        ("none", "eval_a_pass1", "eval_a_pass1", -math.inf),
        ("", "eval_a_pass1", "eval_a_pass1", 0.5),
    ],
)
def test_the_metric_of_the_best_checkpoint_is_the_flags(module, name, saved, flag, key, value):
    ours = saving_trainer(module, name, [], *(["--ckpt.best_metric_key", flag] if flag else []))
    states = {"best_eval_metric_key": saved, "best_eval_metric_value": 0.5, "latest_eval_metric_value": 0.4}
    ours.restore_best_checkpoint_state(states)
    assert (ours.best_eval_metric_key, ours.best_eval_metric_value) == (key, value)
    assert ours._latest_eval_metric_value == (0.4 if value == 0.5 else None)


ARRIVED = """
import pickle, sys
from openrlhf_stare import worker
worker.install()
arrived = pickle.load(sys.stdin.buffer)
print(arrived.__module__, arrived.__name__, arrived.ppo_train.__qualname__)
"""


@EVERY_TRAINER
def test_ray_takes_our_method_along_to_the_process(module, name):
    """Ray's actor classes have copies of inherited methods, which would hide a change made to a base class."""
    pickled = ray.cloudpickle.dumps(trainer(module, name))
    done = subprocess.run([sys.executable, "-c", ARRIVED], input=pickled, capture_output=True, timeout=300)
    place = trainer(module, name).__module__
    assert done.stdout.decode().splitlines()[-1:] == [f"{place} {name} StareTrainer.ppo_train"], done.stderr


ASYNC = """
import inspect, pickle, sys
from openrlhf_stare import worker
worker.install()
names = inspect.unwrap(pickle.load(sys.stdin.buffer).__init__).__globals__  # Ray wraps it
print(names["TrainingActor"].__ray_metadata__.modified_class.__module__)
"""


def test_in_async_mode_the_process_that_starts_the_trainer_starts_ours():
    """Ray pickles OpenRLHF's `PPOTrainerAsync` by value, with the actor classes that it knows."""
    pickled = ray.cloudpickle.dumps(trainer("openrlhf.trainer.ppo_trainer_async", "PPOTrainerAsync"))
    done = subprocess.run([sys.executable, "-c", ASYNC], input=pickled, capture_output=True, timeout=300)
    assert done.stdout.decode().splitlines()[-1:] == ["openrlhf_stare.rollout.async_trainer"], done.stderr
