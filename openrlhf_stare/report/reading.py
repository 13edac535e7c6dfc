"""Reads a run's folder: its TensorBoard logs and its token record. The only reader of such logs here.

Each start of a job opens a new log, and a resume goes back to a checkpoint. What was logged before from that step on
was given up, and does not count, and likewise of the recorded responses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from openrlhf_stare.report import ReportError

LOGS, RECORDS = "events.out.tfevents.*", "tokens*.jsonl"
PREFIX = "train/"  # OpenRLHF's, before every tag of training
# As STARE was the only method, so that older runs can be compared.
FORMER_TAGS = {
    "stare/batch_entropy": "entropy/mean",
    "stare/target_entropy": "entropy/target",
    "stare/gate_on": "entropy/gate_on",
}
# The strengths of the methods in openrlhf_stare/methods/, whose files would bring torch along.
STRENGTHS = (
    "stare/reweight_w",
    "stare/reweight_m",
    "kl_cov/coefficient",
    "clip_cov/share",
    "high_entropy/share",
    "entropy_bonus/coefficient",
    "sign_weights/alpha",
)
LARGEST = 1e30  # what a recorded number can be and still be drawn


@dataclass(frozen=True)
class Series:
    """One figure over a run: `values[i]` is of step `steps[i]`, in the order of the steps."""

    steps: np.ndarray  # (S,) int
    values: np.ndarray  # (S,) float, not all need be finite


@dataclass(frozen=True)
class Response:
    """A recorded response; the lists have one number per token, None where there is none."""

    step: int
    prompt: str
    tokens: list[str]
    surprisal: list[float | None]  # nats
    advantage: list[float | None]
    omega: list[float | None]
    reward: float | None
    tau_positive: float | None
    tau_negative: float | None

    def picked(self, place: int) -> str:
        """Whether the method picks a token, by the sign of its advantage: "+", "-", or "" if it does not.

        STARE's sets L+ and L- are known from the thresholds, with the gate off too; of another method only that the
        weight is not 1.
        """
        s, advantage, omega = self.surprisal[place], self.advantage[place], self.omega[place]
        if s is None or advantage is None or advantage == 0:
            return ""
        tau = self.tau_positive if advantage > 0 else self.tau_negative
        reweighted = omega is not None and omega != 1
        # A token of probability 1 is in no set, unless P is 1; then it is in one if it was reweighted.
        selected = tau is not None and s >= tau and s > 0
        return ("+" if advantage > 0 else "-") if reweighted or selected else ""


@dataclass(frozen=True)
class Run:
    """What is known of a run. `scalars`: TensorBoard tag, less its `train/`, -> its series."""

    name: str
    scalars: dict[str, Series]
    responses: dict[int, list[Response]]  # by step
    logs: list[tuple[int, int]]  # first and last step of each log, in the order of time
    notes: list[str] = field(default_factory=list)  # what could not be read, a sentence each

    def finite(self, *tags: str) -> Series | None:
        """The finite values of the first of the tags that was logged; None if there are none."""
        for tag in tags:
            if tag in self.scalars:
                series = self.scalars[tag]
                kept = np.isfinite(series.values)
                return Series(series.steps[kept], series.values[kept]) if kept.any() else None
        return None

    @property
    def strength(self) -> str | None:
        """The tag of the first strength of the run's method; None without a known one."""
        return next((tag for tag in STRENGTHS if self.finite(tag)), None)

    @property
    def set_names(self) -> dict[str, str]:
        """What the sets of `Response.picked` are called: by STARE's names if the record has its thresholds."""
        recorded = [response for responses in self.responses.values() for response in responses]
        if any(response.tau_positive is not None or response.tau_negative is not None for response in recorded):
            return {"+": "L+", "-": "L-"}
        return {"+": "ω ≠ 1, A > 0", "-": "ω ≠ 1, A < 0"}

    def gate_spans(self) -> list[tuple[float, float]]:
        """The spans of steps with an open gate, from half a step before the first to half a step after the last."""
        gate = self.finite("entropy/gate_on")
        if gate is None:
            return []
        spans = []
        for is_on, places in groupby(range(len(gate.steps)), key=lambda place: gate.values[place] > 0.5):
            places = list(places)
            if is_on:
                spans.append((float(gate.steps[places[0]]) - 0.5, float(gate.steps[places[-1]]) + 0.5))
        return spans


def read_runs(folders: list[Path]) -> list[Run]:
    """The runs in these folders, each under a name of its own.

    Raises:
        ReportError: a folder is not there or holds neither a log nor a record.
    """
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    return [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def read_run(folder: Path, name: str) -> Run:
    """The run in `folder`: everything below it belongs to it.

    Raises:
        ReportError: it is not there or holds neither a log nor a record.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is not a folder: give the folder of a run")
    notes: list[str] = []
    scalars, logs = _read_logs(_files(folder, LOGS, notes), notes)
    responses = _read_records(_files(folder, RECORDS, notes), notes)
    if not scalars and not responses:
        why = f" ({notes[0]})" if notes else ""
        raise ReportError(
            f"{folder} holds no TensorBoard logs of training and no token record{why}: give the folder of a run "
            "that was started with --logger.tensorboard_dir"
        )
    return Run(name, scalars, responses, logs, notes)


def _files(folder: Path, pattern: str, notes: list[str]) -> list[Path]:
    found = sorted(folder.rglob(pattern))
    # Reading a pipe or /dev/zero would not end.
    notes.extend(f"{path.name} is no regular file and was not read" for path in found if not path.is_file())
    return [path for path in found if path.is_file()]


def _read_logs(files: list[Path], notes: list[str]) -> tuple[dict[str, Series], list[tuple[int, int]]]:
    latest: dict[str, dict[int, tuple[float, float]]] = {}  # tag -> step -> when it was logged, and the value
    logs = []
    for file in files:
        steps, start = set(), math.inf
        for event in _events(file, notes):
            for value in event.summary.value:
                if not value.tag.startswith(PREFIX) or not value.HasField("simple_value"):
                    continue
                steps.add(event.step)
                start = min(start, event.wall_time)
                tag = value.tag.removeprefix(PREFIX)
                values = latest.setdefault(FORMER_TAGS.get(tag, tag), {})
                if event.step not in values or event.wall_time >= values[event.step][0]:
                    values[event.step] = (event.wall_time, value.simple_value)
        if steps:
            logs.append((start, min(steps), max(steps)))
    scalars = {}
    for tag, values in latest.items():
        given_up = {
            step
            for step, (time, _) in values.items()
            if any(time < start and first <= step for start, first, _ in logs)
        }
        if steps := sorted(values.keys() - given_up):
            scalars[tag] = Series(np.array(steps), np.array([values[step][1] for step in steps], dtype=float))
    return scalars, [(first, last) for _, first, last in sorted(logs)]


def _events(file: Path, notes: list[str]) -> Iterator[Event]:
    """The events of a log, up to its end or to the first that is damaged, which is noted."""
    reader, last = PyRecordReader_New(str(file)), None
    try:
        while True:
            reader.GetNext()
            event = Event.FromString(reader.record())
            yield event
            last = event.step
    except OutOfRangeError:
        return
    except Exception as error:  # of a record that is cut short, changed, too large or no event
        where = "at its start" if last is None else f"after step {last}"
        notes.append(f"{file.name} is damaged {where}, and what comes below is not shown ({type(error).__name__})")


def _read_records(files: list[Path], notes: list[str]) -> dict[int, list[Response]]:
    written = []  # time, response
    for file in files:
        unreadable = 0
        with open(file, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    written.append(_response(json.loads(line)))
                # Cut short by a full disk or the end of its job; or with what no job writes.
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    unreadable += 1
        if unreadable:
            notes.append(f"{unreadable} of the lines of {file.name} could not be read")
    responses: dict[int, list[Response]] = {}
    written.sort(key=lambda entry: entry[0])
    # The lines of a rollout have one time. Where a step comes that is not a new one, a run was resumed before it.
    for (step, _), entries in groupby(written, key=lambda entry: (entry[1].step, entry[0])):
        responses = {before: recorded for before, recorded in responses.items() if before < step}
        responses[step] = [response for _, response in entries]
    return dict(sorted(responses.items()))


def _response(line: dict) -> tuple[float, Response]:
    length = len(line["tokens"])
    numbers = {name: [_number(value) for value in line[name]] for name in ("surprisal", "advantage", "omega")}
    if any(len(values) != length for values in numbers.values()):
        raise ValueError("not one number per token")
    step, time = int(line["step"]), float(line["time"])
    if abs(step) >= 2**63 or not math.isfinite(time):
        raise ValueError("no step or no time")
    response = Response(
        step=step,
        prompt=str(line["prompt"]),
        tokens=[str(token) for token in line["tokens"]],
        reward=_number(line["reward"]),
        tau_positive=_number(line["tau_positive"]),
        tau_negative=_number(line["tau_negative"]),
        **numbers,
    )
    return time, response


def _number(value: float | None) -> float | None:
    if value is None or not abs(value) <= LARGEST:  # written so that NaN is none
        return None
    return float(value)


def _names(folders: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    names = []
    for folder in folders:
        for length in range(1, len(folder.parts) + 1):
            end = folder.parts[-length:]
            if sum(other.parts[-length:] == end for other in folders) == 1:
                break
        names.append("".join(letter if letter.isprintable() else "?" for letter in "/".join(end)))
    return names
