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

from openrlhf_stare.algorithms.verdict import AUTHORITY, EFFORT, ENTROPY, GATE, REWARD, TARGET, Verdict, verdict
from openrlhf_stare.report import ReportError

LOGS, RECORDS, SETTINGS = "events.out.tfevents.*", "tokens*.jsonl", "settings.json"
PREFIX = "train/"  # OpenRLHF's, before every tag of training
FACTS = ("is_idle", "needs_advantages", "pursues_target")
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

        The sets of a method with thresholds are known from them, with the gate off too; of another method only that
        the weight is not 1.
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
class Settings:
    """What a run was last started with; see `actor_group/settings.py`. Without its file nothing of it is known."""

    strengths: tuple[str, ...] = ()  # the tags of the method's strengths
    sets: tuple[str, ...] | None = None  # what its two sets of tokens are called
    facts: dict[str, bool] = field(default_factory=dict)  # for the verdict
    flags: dict[str, object] = field(default_factory=dict)  # ours
    arguments: dict[str, object] = field(default_factory=dict)  # OpenRLHF's


@dataclass(frozen=True)
class Run:
    """What is known of a run. `scalars`: TensorBoard tag, less its `train/`, -> its series."""

    name: str
    scalars: dict[str, Series]
    responses: dict[int, list[Response]]  # by step
    logs: list[tuple[int, int]]  # first and last step of each log, in the order of time
    notes: list[str] = field(default_factory=list)  # what could not be read, a sentence each
    settings: Settings = Settings()

    def finite(self, *tags: str) -> Series | None:
        """The finite values of the first of the tags that was logged; None if there are none."""
        for tag in tags:
            if tag in self.scalars:
                series = self.scalars[tag]
                kept = np.isfinite(series.values)
                return Series(series.steps[kept], series.values[kept]) if kept.any() else None
        return None

    @property
    def strengths(self) -> list[str]:
        """The tags of the strengths of the run's method, those that were logged."""
        return [tag for tag in self.settings.strengths if self.finite(tag)]

    @property
    def strength(self) -> str | None:
        """The tag of the first strength of the run's method; None without a known one."""
        return next(iter(self.strengths), None)

    @property
    def set_names(self) -> dict[str, str]:
        """What the sets of `Response.picked` are called, by the method's own names if it has any."""
        positive, negative = self.settings.sets or ("ω ≠ 1, A > 0", "ω ≠ 1, A < 0")
        return {"+": positive, "-": negative}

    @property
    def verdict(self) -> Verdict | None:
        """Whether the run held its target, and if not, why; None without a target."""
        steps: dict[int, dict[str, float]] = {}
        for tag in (ENTROPY, TARGET, GATE, EFFORT, AUTHORITY, REWARD):
            if series := self.finite(tag):
                for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                    steps.setdefault(step, {})[tag] = value
        return verdict([figures for _, figures in sorted(steps.items())], **self.settings.facts)

    def gate_spans(self) -> list[tuple[float, float]]:
        """The spans of steps with an open gate, from half a step before the first to half a step after the last."""
        gate = self.finite(GATE)
        if gate is None:
            return []
        spans = []
        for is_on, places in groupby(range(len(gate.steps)), key=lambda place: gate.values[place] > 0.5):
            if is_on:
                inside = list(places)
                spans.append((float(gate.steps[inside[0]]) - 0.5, float(gate.steps[inside[-1]]) + 0.5))
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
    settings = _read_settings(_files(folder, SETTINGS, notes), notes)
    return Run(name, scalars, responses, logs, notes, settings)


def _read_settings(files: list[Path], notes: list[str]) -> Settings:
    """The newest of the files that can be read."""
    for file in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            return Settings(
                strengths=tuple(map(str, read["strengths"])),
                sets=tuple(map(str, read["sets"])) if read["sets"] else None,
                facts={name: bool(read["facts"][name]) for name in FACTS if name in read["facts"]},
                flags=dict(read["flags"]),
                arguments=dict(read["arguments"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            notes.append(f"{file.name} could not be read")
    return Settings()


def _files(folder: Path, pattern: str, notes: list[str]) -> list[Path]:
    found = sorted(folder.rglob(pattern))
    # Reading a pipe or /dev/zero would not end.
    notes.extend(f"{path.name} is not a regular file and was not read" for path in found if not path.is_file())
    return [path for path in found if path.is_file()]


def _read_logs(files: list[Path], notes: list[str]) -> tuple[dict[str, Series], list[tuple[int, int]]]:
    latest: dict[str, dict[int, tuple[float, float]]] = {}  # tag -> step -> when it was logged, and the value
    logs = []
    for file in files:
        logged, start = set(), math.inf
        for event in _events(file, notes):
            for value in event.summary.value:
                if not value.tag.startswith(PREFIX) or not value.HasField("simple_value"):
                    continue
                logged.add(event.step)
                start = min(start, event.wall_time)
                values = latest.setdefault(value.tag.removeprefix(PREFIX), {})
                if event.step not in values or event.wall_time >= values[event.step][0]:
                    values[event.step] = (event.wall_time, value.simple_value)
        if logged:
            logs.append((start, min(logged), max(logged)))
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
