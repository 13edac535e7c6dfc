"""When the user hears of a job that makes no progress, and of what it waits for."""

import ast
import importlib.util
from pathlib import Path

import pytest
import ray

from openrlhf_stare.driver import deaths, waiting
from openrlhf_stare.driver.waiting import AGAIN_SECONDS, LOOK_SECONDS, PATIENCE_SECONDS, Call, Watch

OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])


def call(number: int, method: str = "fit", model: str = "PolicyModelActor", state: int = 8) -> Call:
    return Call(bytes([number]), state, f"actor {number}", model, f"Ours.{method}")


def told_at(watch: Watch, calls: frozenset[Call], start: float, end: float) -> list[float]:
    """When something was said, of what stays the same from start to end; seconds without progress that were told."""
    times = range(int(start), int(end), LOOK_SECONDS)
    return [seconds for now in times if (seconds := watch.look(calls, now)) is not None]


def test_after_a_minute_in_which_no_call_begins_or_ends_something_is_said_once():
    watch, training = Watch(), frozenset([call(0), call(1)])
    assert told_at(watch, training, 0, PATIENCE_SECONDS) == []
    assert told_at(watch, training, PATIENCE_SECONDS, PATIENCE_SECONDS + AGAIN_SECONDS) == [PATIENCE_SECONDS]
    assert told_at(watch, training, 700, 720) == [700]  # for the file


def test_a_rank_that_ends_another_call_and_another_state_are_progress():
    watch, now = Watch(), 0
    for calls in ([call(0), call(1)], [call(0)], [call(0, state=7)], [call(2)], []):
        assert told_at(watch, frozenset(calls), now, now + PATIENCE_SECONDS) == []
        now += PATIENCE_SECONDS
    assert told_at(watch, frozenset(), now, now + 1000) == []  # the driver is at work itself


def test_a_phase_that_once_lasted_long_has_twice_that_time():
    watch, rollout = Watch(), [call(n, "generate_responses", "RolloutRayActor") for n in range(3)]
    assert told_at(watch, frozenset(rollout[:1]), 0, 300) == [60]
    assert told_at(watch, frozenset(rollout[1:2]), 300, 895) == []
    assert told_at(watch, frozenset(rollout[1:2]), 895, 905) == [600]
    assert told_at(watch, frozenset([call(9)]), 1000, 1065) == [60]  # another phase


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        ([call(0), call(1)], "training"),
        ([call(0, "save_checkpoint"), call(1, "save_checkpoint", "CriticModelActor")], "a checkpoint"),
        ([call(0), call(1, "generate_responses", "RolloutRayActor")], "the rollout and training"),
        ([call(0, "broadcast_to_vllm"), call(1, "update_weight", "RolloutRayActor")], "the weight sync"),
        ([call(0, "fit", "PPOTrainer")], "the trainer's own work"),
        ([call(0, "reload_states")], "reload_states"),
        ([], ""),
    ],
)
def test_the_phase_is_named_by_the_calls(calls, phase):
    assert waiting.phase_of(frozenset(calls)) == phase


def test_every_class_is_a_caller_or_has_numbers():
    assert set(waiting.CALLERS) < deaths.NAMES.keys()
    names = {waiting._name(model, "a", {"a": 3}) for model in deaths.NAMES.keys() - set(waiting.CALLERS)}
    assert names == {
        "actor rank 3",
        "rank 3 of the critic",
        "rank 3 of the reference model",
        "rank 3 of the reward model",
        "vLLM engine 3",
    }


def test_the_methods_that_have_phases_are_openrlhfs():
    trees = [ast.parse(path.read_text()) for path in (OPENRLHF / "trainer/ray").glob("*.py")]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    defined = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}
    assert waiting.PHASES.keys() <= defined


def test_the_state_of_a_process_that_is_gone_is_none():
    assert waiting.process_state(2**22 + 1) is None
    assert waiting.process_state(1) in ("S", "R", "I")


@pytest.mark.parametrize("look", [waiting._actors, waiting._tasks])
def test_a_look_after_the_end_of_ray_starts_no_second_one(monkeypatch, look):
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    with pytest.raises(Exception, match="not been (initialized|started)|ray.init"):
        look()
