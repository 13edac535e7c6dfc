"""What OpenRLHF's output says of the training's progress, and the one line that shows it."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from openrlhf_stare.algorithms.verdict import AUTHORITY, ENTROPY, GATE, LITTLE_AUTHORITY, REWARD, TARGET

SEPARATOR = "  "  # of the figures
LINES_PER_RUN = 20  # where lines cannot be rewritten

# A line of OpenRLHF's logger in the process of its trainer, as Ray forwards it: what another process prints, such as a
# sampled text that looks the same, has another name before it, and what the trainer says of samples another beginning.
STEP = re.compile(
    r"\(\w*(?:PPOTrainer|TrainingActor) pid=[^)]*\) INFO [-\d]+ [:\d]+ ppo_trainer(?:_async)?\.py:\d+\] "
    r"(?:\u2728 )?Global step (\d{1,12}): \{(.*)\}\s*$"
)
FIGURE = re.compile(r"'([^']+)': (?:[\w.]+\()?(-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan))(?=[,)}]|$)")
PROMPTS = re.compile(r"Episode \[(\d{1,12})/(\d{1,12})\]:[^|]*\|[^|]*\| *(\d{1,12})/(\d{1,12}) ")


def step_figures(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and its logged figures, from the line that OpenRLHF's trainer writes for each; None: another line."""
    found = STEP.match(line)
    return found and (int(found[1]), {name: float(value) for name, value in FIGURE.findall(found[2])})


@dataclass
class Progress:
    """How far training has come, in steps of the trainer."""

    prompts_per_step: int
    varying: bool  # dynamic filtering: a step takes as many prompts as it needs
    step: int = 0
    total: int | None = None  # None: not known yet

    def __post_init__(self) -> None:
        self.times: deque[tuple[int, float]] = deque(maxlen=21)  # the last 20 steps' ends and the one before

    def count_prompts(self, line: str) -> bool:
        """Take the total from OpenRLHF's progress bar over an episode's prompts; False if the line is none."""
        bars = PROMPTS.findall(line)
        if not bars:
            return False
        episode, episodes, taken, prompts = map(int, bars[-1])
        if not self.varying:
            self.total = episodes * math.ceil(prompts / self.prompts_per_step)
        elif self.step and (share := (episode - 1 + taken / prompts) / episodes):
            self.total = max(self.step, round(self.step / share))
        return True

    def advance(self, step: int, now: float) -> None:
        self.step = step
        self.times.append((step, now))

    @property
    def seconds_per_step(self) -> float | None:
        (first, start), (last, end) = self.times[0], self.times[-1]
        return (end - start) / (last - first) if last > first else None

    def starts_a_twentieth(self) -> bool:
        """Whether this step is the first of a twentieth of the run, or the last of all; every tenth if unknown."""
        if not self.total:
            return self.step % 10 == 0
        if self.step >= self.total:
            return True
        return self.step * LINES_PER_RUN // self.total > (self.step - 1) * LINES_PER_RUN // self.total


def describe(progress: Progress, figures: dict[str, float], strength: str | None = None) -> str:
    """The line for a step; what a narrow terminal can best do without comes last, and what is not logged is left out.

    The authority, the share of tokens with an advantage, is shown where it is too small for a method to do much.
    `strength` is the figure with the method's first strength. It is shown while the gate is open, when it acts.
    """
    total = f"/{max(progress.total, progress.step)}" if progress.total else ""
    seconds = progress.seconds_per_step
    parts = [f"step {progress.step:>{max(1, len(total) - 1)}}{total}"]
    if seconds is not None and progress.total:
        left = timedelta(seconds=round(max(0, progress.total - progress.step) * seconds))
        parts.append(f"{str(left).removeprefix('0:')} left")
    if REWARD in figures:
        parts.append(f"reward {figures[REWARD]:.3f}")
    if ENTROPY in figures:
        target = f"/{figures[TARGET]:.3f}" if TARGET in figures else ""
        parts.append(f"entropy {figures[ENTROPY]:.3f}{target}")
    if figures.get(GATE) and strength in figures:
        parts.append(f"{strength.partition('/')[2]} {figures[strength]:.3f}")
    elif GATE in figures:
        parts.append(f"gate {'open' if figures[GATE] else 'shut'}")
    if figures.get(AUTHORITY, 1.0) < LITTLE_AUTHORITY:
        parts.append(f"authority {100 * figures[AUTHORITY]:.0f} %")
    if seconds is not None:
        parts.append(f"{seconds:.2f} s/step")
    return SEPARATOR.join(parts)
