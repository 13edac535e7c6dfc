"""Which actors' deaths end a job, and which errors may come of one."""

import ast
import importlib.util
import traceback
from pathlib import Path

import pytest
import ray
import torch
from ray._private.state import GlobalState
from ray.core.generated import common_pb2, gcs_pb2

from openrlhf_stare.driver import deaths

OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])


def test_every_actor_class_of_openrlhf_has_a_name_for_the_user():
    trees = [ast.parse(path.read_text()) for path in OPENRLHF.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    remote = {node.name for node in classes if any("ray.remote" in ast.unparse(d) for d in node.decorator_list)}
    assert remote and deaths.NAMES.keys() == remote


def as_the_driver_sees_it(cause: Exception, calls: int) -> Exception:
    """The error of a task that failed, or of one that waited for one that waited for it."""
    for _ in range(calls):
        cause = ray.exceptions.RayTaskError("fit", "the traceback", cause).as_instanceof_cause()
    return cause


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize(
    ("cause", "seconds"),
    [
        (FloatingPointError("the policy is not finite"), 0),
        (ValueError("a reward function's"), 0),
        (torch.OutOfMemoryError("CUDA out of memory"), 0),
        (RuntimeError("Connection closed by peer"), deaths.LAG_SECONDS),
        (OSError("the disk is full"), 0),
        (ConnectionResetError("reset"), deaths.LAG_SECONDS),
        (ray.exceptions.ActorDiedError(), deaths.LAG_SECONDS),
        (ray.exceptions.ActorUnavailableError("its node is gone", None), deaths.NODE_LAG_SECONDS),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_an_error_that_a_death_can_cause_is_waited_for(cause, seconds, calls):
    assert deaths.lag_of(as_the_driver_sees_it(cause, calls)) == seconds


class Told(Exception):
    pass


@pytest.mark.parametrize("message", ["one line", "1 validation error\n  2048 is more than 64\n    Read more", ""])
def test_an_error_is_told_with_all_lines_of_its_message_and_no_frames(message):
    try:
        raise Told(message)
    except Told:
        formatted = traceback.format_exc()
    said = deaths.whole_error(f"The actor died because of an error raised in its creation task, {formatted}")
    assert said == traceback.format_exception_only(Told, Told(message))[0].strip()


def test_of_an_error_s_causes_the_last_is_told():
    try:
        try:
            raise ValueError("the cause\n  of two lines")
        except ValueError as error:
            raise Told("vLLM did not start") from error
    except Told:
        formatted = traceback.format_exc()
    assert deaths.whole_error(formatted).endswith("Told: vLLM did not start")
    assert "the cause" not in deaths.whole_error(formatted)


def test_an_interrupt_while_ray_starts_starts_no_second_one(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    with pytest.raises(KeyboardInterrupt), deaths.watched():
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("context", "why"),
    [
        ({}, "Ray does not say why. The same command"),
        ({"oom_context": {"error_message": "The node ran\nout of memory."}}, "The node ran out of memory. The same"),
    ],
)
def test_a_death_is_told_with_a_reason_and_without(context, why):
    cause = common_pb2.ActorDeathCause(**context)
    row = gcs_pb2.ActorTableData(class_name="PolicyModelActor", pid=7, death_cause=cause)
    said = deaths.sentence(GlobalState()._gen_actor_info(row))
    assert said.startswith("an actor rank (PolicyModelActor, process 7 on ") and f" died: {why}" in said
