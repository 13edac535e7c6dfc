"""What a job waits for that makes no progress: Ray keeps waiting for a rank that is stopped, and says nothing.

Ray's control store knows which calls of the job's actors have not ended. A thread looks at them now and then; while
they stay the same, nothing is going on that the driver could see.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray._private.gcs_utils import create_gcs_channel
from ray._private.state import actors
from ray.core.generated.gcs_service_pb2 import EQUAL, NOT_EQUAL, GetTaskEventsRequest
from ray.core.generated.gcs_service_pb2_grpc import TaskInfoGcsServiceStub

from openrlhf_stare.driver.deaths import NAMES
from openrlhf_stare.notices import notice

Filters = GetTaskEventsRequest.Filters

LOOK_SECONDS = 5
PATIENCE_SECONDS = 60
AGAIN_SECONDS = 600  # until the same is said again, for the file
SHOWN = 8  # processes that are named
# They call the others, and their own calls last for the whole job.
CALLERS = ("PPOTrainer", "PPOTrainerAsync", "TrainingActor", "GenerateSamplesActor", "VLLMLock")
PHASES = {
    "__init__": "the start",
    "init_model_from_pretrained": "the loading of the models",
    "generate_responses": "the rollout",
    "generate": "the rollout",
    "execute_batch": "the log-probs, values or rewards",
    "fit": "training",
    "init_process_group": "the weight sync",
    "broadcast_to_vllm": "the weight sync",
    "update_weight": "the weight sync",
    "update_weight_cuda_ipc": "the weight sync",
    "save_checkpoint": "a checkpoint",
    "save_model": "the final model",
}
# The states of a process in /proc that explain why it does nothing.
STATES = {"T": "stopped, as by SIGSTOP", "t": "stopped by a debugger", "D": "waiting for a disk"}


@dataclass(frozen=True)
class Call:
    """A call of an actor that has not ended."""

    task: bytes
    state: int  # Ray's, the latest
    actor: str  # hex
    actor_class: str
    method: str


class Watch:
    """Decides from the calls, seen again and again, when the user should hear what is waited for.

    A phase that once lasted long and ended by itself, as the rollouts of a large model do, has twice that time before
    anything is said.
    """

    def __init__(self) -> None:
        self.calls: frozenset[Call] = frozenset()
        self.since = self.due = 0.0
        self.longest: dict[str, float] = defaultdict(float)

    def look(self, calls: frozenset[Call], now: float) -> float | None:
        """The seconds without progress, if it is time to tell of them."""
        if calls != self.calls or not calls:
            phase = phase_of(self.calls)
            self.longest[phase] = max(self.longest[phase], now - self.since if self.calls else 0)
            self.calls, self.since = calls, now
            self.due = now + max(PATIENCE_SECONDS, 2 * self.longest[phase_of(calls)])
        if not calls or now < self.due:
            return None
        self.due = now + AGAIN_SECONDS
        return now - self.since


@contextmanager
def told() -> Iterator[None]:
    """Tell what the job waits for whenever it makes no progress for a minute."""
    over = threading.Event()
    thread = threading.Thread(target=_look_now_and_then, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _look_now_and_then(over: threading.Event) -> None:
    watch = Watch()
    while not over.wait(LOOK_SECONDS):
        if not ray.is_initialized():
            continue
        try:
            calls = unfinished_calls()
            if (seconds := watch.look(calls, time.monotonic())) and not over.is_set():
                notice(sentence(calls, seconds))
        except Exception:  # Ray is being shut down, or its control store is busy: look again
            continue


def unfinished_calls() -> frozenset[Call]:
    """The calls of the job's actors of OpenRLHF that have not ended; the trainer's own only if there are no others."""
    ended = [Filters.StateFilter(state=state, predicate=NOT_EQUAL) for state in ("FINISHED", "FAILED")]
    calls = []
    for task in _tasks(state_filters=ended):
        name, _, method = task.task_info.name.rpartition(".")
        if name in NAMES and task.state_updates.state_ts_ns:
            state, actor = max(task.state_updates.state_ts_ns), task.task_info.actor_id.hex()
            calls.append(Call(task.task_id, state, actor, name, method))
    return frozenset([call for call in calls if call.actor_class not in CALLERS] or calls)


def ranks(name: str) -> dict[str, int]:
    """Actor -> rank of the actors of a class: OpenRLHF makes them one after the other."""
    created = _tasks(task_name_filters=[Filters.TaskNameFilter(task_name=f"{name}.__init__", predicate=EQUAL)])
    asked = sorted(created, key=lambda task: min(task.state_updates.state_ts_ns.values(), default=0))
    return {task.task_info.actor_id.hex(): rank for rank, task in enumerate(asked)}


def _tasks(**filters: list) -> list:
    """What Ray's control store has of the job's tasks."""
    context = ray.get_runtime_context()
    of_job = Filters.JobIdFilter(job_id=bytes.fromhex(context.get_job_id()), predicate=EQUAL)
    request = GetTaskEventsRequest(filters=Filters(exclude_driver=True, job_filters=[of_job], **filters))
    stub = TaskInfoGcsServiceStub(create_gcs_channel(context.gcs_address))
    return list(stub.GetTaskEvents(request, timeout=LOOK_SECONDS).events_by_task)


def phase_of(calls: frozenset[Call]) -> str:
    """What the calls are for; "" for none."""
    phases = {PHASES.get(call.method, call.method) for call in calls if call.actor_class not in CALLERS}
    return " and ".join(sorted(phases)) or ("the trainer's own work" if calls else "")


def sentence(calls: frozenset[Call], seconds: float) -> str:
    """What is waited for: the phase, and the ranks."""
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    table = actors(job_id=job)
    here, found = ray.util.get_node_ip_address(), []
    for name in {call.actor_class for call in calls}:
        numbers = ranks(name)
        for actor in {call.actor for call in calls if call.actor_class == name}:
            row, number = table[actor], numbers.get(actor)
            address = row["Address"]["IPAddress"]
            state = STATES.get(process_state(row["Pid"])) if address == here else None
            who = NAMES[name].partition(" ")[2] if number is not None else NAMES[name]
            number = "" if number is None else f" {number}"
            why = f"; {state}" if state else ""
            found.append((not state, f"{who}{number} (process {row['Pid']} on {address}{why})"))
    names = [who for _, who in sorted(found)]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"No progress for {seconds:.0f} s in {phase_of(calls)}: waiting for {', '.join(names[:SHOWN])}{more}"


def process_state(pid: int) -> str | None:
    """The letter for the state of a process of this machine, as in /proc; None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
