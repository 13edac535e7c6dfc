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
from ray.runtime_context import get_runtime_context  # ray.get_runtime_context starts Ray where there is none

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
    "get_num_unfinished_requests": "the start",
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
    model: str  # OpenRLHF's class, a key of `deaths.NAMES`
    name: str  # CLASS.method, where the class may be ours

    @property
    def method(self) -> str:
        return self.name.rpartition(".")[2]


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
        thread.join(2 * LOOK_SECONDS)  # Ray is shut down next


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
    table, calls = _actors(), []
    for task in _tasks(state_filters=ended):
        actor, states = task.task_info.actor_id.hex(), task.state_updates.state_ts_ns
        model = table.get(actor, {}).get("ActorClassName")
        if model in NAMES and states:
            calls.append(Call(task.task_id, max(states), actor, model, task.task_info.name))
    return frozenset([call for call in calls if call.model not in CALLERS] or calls)


def ranks(calls: frozenset[Call]) -> dict[str, int]:
    """Actor -> rank, of the calls' actors and their like. OpenRLHF makes those of a model one after the other."""
    found: dict[str, int] = {}
    for name in {call.name.rpartition(".")[0] for call in calls}:
        created = _tasks(task_name_filters=[Filters.TaskNameFilter(task_name=f"{name}.__init__", predicate=EQUAL)])
        made = sorted(created, key=lambda task: min(task.state_updates.state_ts_ns.values(), default=0))
        found |= {task.task_info.actor_id.hex(): rank for rank, task in enumerate(made)}
    return found


def _actors() -> dict[str, dict]:
    """Ray's table of the job's actors."""
    return actors(job_id=ray.JobID.from_hex(get_runtime_context().get_job_id()))


def _tasks(**filters: list) -> list:
    """What Ray's control store has of the job's tasks."""
    context = get_runtime_context()
    of_job = Filters.JobIdFilter(job_id=bytes.fromhex(context.get_job_id()), predicate=EQUAL)
    request = GetTaskEventsRequest(filters=Filters(exclude_driver=True, job_filters=[of_job], **filters))
    with create_gcs_channel(context.gcs_address) as channel:
        reply = TaskInfoGcsServiceStub(channel).GetTaskEvents(request, timeout=LOOK_SECONDS)
    return list(reply.events_by_task)


def phase_of(calls: frozenset[Call]) -> str:
    """What the calls are for; "" for none."""
    phases = {PHASES.get(call.method, call.method) for call in calls if call.model not in CALLERS}
    return " and ".join(sorted(phases)) or ("the trainer's own work" if calls else "")


def sentence(calls: frozenset[Call], seconds: float) -> str:
    """What is waited for: the phase, and the ranks."""
    table, numbers, here, found = _actors(), ranks(calls), ray.util.get_node_ip_address(), []
    for actor, model in {(call.actor, call.model) for call in calls}:
        pid, address = table[actor]["Pid"], table[actor]["Address"]["IPAddress"]
        state = STATES.get(process_state(pid) or "") if address == here else None
        why = f"; {state}" if state else ""
        # Those first whose state says why they do nothing.
        found.append(
            (not why, numbers.get(actor, 0), f"{_name(model, actor, numbers)} (process {pid} on {address}{why})")
        )
    names = [who for *_, who in sorted(found)]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"No answer for {seconds:.0f} s in {phase_of(calls)}: waiting for {', '.join(names[:SHOWN])}{more}"


def _name(model: str, actor: str, numbers: dict[str, int]) -> str:
    """Such as `actor rank 1`, `rank 0 of the critic`, `vLLM engine 0` and `the trainer`."""
    if model in CALLERS:
        return NAMES[model]
    words, number = NAMES[model].split()[1:], str(numbers.get(actor, "?"))
    words.insert(words.index("rank") + 1 if "rank" in words else len(words), number)
    return " ".join(words)


def process_state(pid: int) -> str | None:
    """The letter for the state of a process of this machine, as in /proc; None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
