"""Which process of the job died, in one sentence, and the end of a driver that still waits for it.

Ray tells of a death only those who wait for a result of the dead actor. An actor that waits for it elsewhere, as in
the rendezvous or the broadcast of a weight sync, is told nothing, and the driver with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.runtime_context import get_runtime_context  # ray.get_runtime_context starts Ray where there is none

from openrlhf_stare.driver import console

POLL_SECONDS = 1
# What Ray's table of actors may lag behind the error that a death caused: an engine ends some seconds after its core,
# and a whole node's death is told by missed heartbeats.
LAG_SECONDS, NODE_LAG_SECONDS = 15, 60
# Errors that no death of another process causes, so nothing is waited for. Broken collectives are RuntimeErrors, and
# broken connections are taken out by `lag_of`.
OWN_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
    torch.OutOfMemoryError,
)
# A driver that the death reaches ends within this time by itself, with Ray's own traceback.
GRACE_SECONDS = 5
# One that was interrupted has this long to end Ray.
END_SECONDS = 15

# All actors of OpenRLHF. Ray knows ours by the names of the classes that they extend. Any other, such as an agent's
# environments, may end without harm.
NAMES = {
    "PolicyModelActor": "an actor rank",
    "CriticModelActor": "a rank of the critic",
    "ReferenceModelActor": "a rank of the reference model",
    "RewardModelActor": "a rank of the reward model",
    "RolloutRayActor": "a vLLM engine",
    "PPOTrainer": "the trainer",
    "PPOTrainerAsync": "the trainer",
    "TrainingActor": "the trainer",
    "GenerateSamplesActor": "the sampler",
    "VLLMLock": "the lock of the vLLM engines",
}
# Not deaths: Ray ends an actor that nobody holds any more, or that it was asked to end.
INTENDED = (ActorDiedErrorContext.OUT_OF_SCOPE, ActorDiedErrorContext.REF_DELETED, ActorDiedErrorContext.RAY_KILL)


@contextmanager
def watched() -> Iterator[None]:
    """Run a job's driver.

    If an actor's death makes the driver fail, the driver ends with status 1 and the sentence as its last line. If the
    driver still waits `GRACE_SECONDS` after a death, it is interrupted and ends the same way.

    Raises:
        SystemExit: an actor died.
    """
    # Only KeyboardInterrupt breaks Ray's waits. Raise it from SIGUSR1, because background jobs ignore SIGINT.
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    over = threading.Event()
    watch = threading.Thread(target=_interrupt_a_waiting_driver, args=(over,), daemon=True)
    watch.start()
    try:
        yield
    except (ray.exceptions.RayError, KeyboardInterrupt) as error:
        deadline = time.monotonic() + lag_of(error)
        while not (death := first_death()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if death:
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exc()
            sys.exit(f"{console.ERROR} {death}")
        raise
    finally:
        over.set()
        watch.join()


def lag_of(error: BaseException) -> float:
    """How many seconds after the driver's error Ray may still tell of a death that caused it."""
    while isinstance(cause := getattr(error, "cause", None), Exception):  # of a task that waited for another task
        error = cause
    broken_connection = isinstance(error, (ConnectionError, TimeoutError))
    if isinstance(error, (KeyboardInterrupt, *OWN_ERRORS)) and not broken_connection:
        return 0
    return NODE_LAG_SECONDS if isinstance(error, ray.exceptions.ActorUnavailableError) else LAG_SECONDS


def _interrupt_a_waiting_driver(over: threading.Event) -> None:
    while not over.wait(POLL_SECONDS):
        if not (death := first_death()) or over.wait(GRACE_SECONDS):
            continue
        os.kill(os.getpid(), signal.SIGUSR1)
        if not over.wait(END_SECONDS):
            console.fail(f"{console.ERROR} {death}")
            os._exit(1)


def first_death() -> str | None:
    """The first death among the job's actors of OpenRLHF; None if all are alive or were ended on purpose, or if Ray
    cannot be asked."""
    try:
        job = ray.JobID.from_hex(get_runtime_context().get_job_id())
        dead = actors(job_id=job, actor_state_name="DEAD").values()
    except Exception:  # Ray has not started, is being shut down, or its control store does not answer
        return None
    dead = [actor for actor in dead if actor["ActorClassName"] in NAMES]
    dead = [actor for actor in dead if actor["DeathCause"].actor_died_error_context.reason not in INTENDED]
    return sentence(min(dead, key=lambda actor: actor["EndTime"])) if dead else None


def sentence(actor: dict) -> str:
    """One sentence about a dead actor of Ray's table.

    For one that failed while loading it ends with the whole error, of however many lines.
    """
    name = actor["ActorClassName"]
    who = f"{NAMES[name]} ({name}, process {actor['Pid']} on {actor['Address']['IPAddress']})"
    cause = actor["DeathCause"]
    if cause.HasField("creation_task_failure_context"):
        error = whole_error(cause.creation_task_failure_context.formatted_exception_string)
        return f"{who} failed while loading: {error}"
    kind = cause.WhichOneof("context")  # none where Ray gives no reason
    why = " ".join(getattr(cause, kind).error_message.split()) if kind else "Ray does not say why."
    return f"{who} died: {why} The same command with --ckpt.load_enable goes on from the last complete checkpoint"


def whole_error(formatted: str) -> str:
    """The exception of a formatted traceback with all lines of its message, which `traceback` does not indent."""
    lines = formatted.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else lines
    first = next((number for number, line in enumerate(below) if not line.startswith("    ")), 0)
    return "\n".join(below[first:])
