"""The results of the any-task study: python launch/study/any_task.py RUN [RUN …] --table FILE

A RUN is the folder of one task, arm and seed, such as routes-stare-seed0, with its TensorBoard logs. Writes the table
and prints for each claim whether it holds. Exit status 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_stare.algorithms.verdict import AUTHORITY, BAND, ENTROPY, HELD, LITTLE_AUTHORITY, TARGET, Verdict
from openrlhf_stare.report.figures import REWARD
from openrlhf_stare.report.reading import Run, read_runs

ONE_ANSWER = ("sorting",)  # the tasks with one right answer
SHARE = 0.5  # of the first entropy: the target
LOST_REWARD = 0.01  # at most, where a task has one right answer


@dataclass(frozen=True)
class Result:
    """A task and seed: STARE's run and GRPO's."""

    task: str
    seed: int
    stare: Run
    grpo: Run

    @property
    def with_authority(self) -> float:
        """The share of the second half's steps with an authority of LITTLE_AUTHORITY or more."""
        return float(np.mean(second_half(self.stare, AUTHORITY) >= LITTLE_AUTHORITY))

    @property
    def in_band(self) -> float | None:
        """Of these steps the share within BAND of the target; None without any."""
        entropy, target, authority = (second_half(self.stare, tag) for tag in (ENTROPY, TARGET, AUTHORITY))
        able = authority >= LITTLE_AUTHORITY
        return float(np.mean(np.abs(entropy - target)[able] <= BAND * target[able])) if able.any() else None

    @property
    def grpo_in_band(self) -> float:
        """GRPO's share of all of the second half's steps, held against half of its own first entropy."""
        target = SHARE * self.grpo.finite(ENTROPY).values[0]
        return float(np.mean(np.abs(second_half(self.grpo, ENTROPY) - target) <= BAND * target))

    @property
    def rewards(self) -> tuple[float, float]:
        return tuple(float(second_half(run, *REWARD).mean()) for run in (self.stare, self.grpo))

    @property
    def verdict(self) -> Verdict:
        return self.stare.verdict


def second_half(run: Run, *tags: str) -> np.ndarray:
    values = run.finite(*tags).values
    return values[len(values) // 2 :]


def read(folders: list[Path]) -> list[Result]:
    """The tasks and seeds of which both runs are there, in the order in which they are first named."""
    runs = dict(zip([folder.name for folder in folders], read_runs(folders), strict=True))
    results = []
    for name in runs:
        task, _, seed = name.partition("-stare-seed")
        if seed and (grpo := runs.get(f"{task}-grpo-seed{seed}")):
            results.append(Result(task, int(seed), runs[name], grpo))
    return results


def table(results: list[Result]) -> str:
    """A markdown table, a row for each task and seed."""
    head = (
        "task, seed",
        "first entropy",
        "target",
        "entropy",
        f"in band, of steps with authority ≥ {LITTLE_AUTHORITY}",
    )
    rows = [(*head, "steps with it", "reward", "GRPO: entropy", "in band", "reward", "verdict"), ("---",) * 11]
    for result in results:
        stare, grpo = result.rewards
        rows.append(
            (
                f"{result.task}, {result.seed}",
                f"{result.stare.finite(ENTROPY).values[0]:.3f}",
                f"{result.stare.finite(TARGET).values[-1]:.3f}",
                f"{second_half(result.stare, ENTROPY).mean():.3f}",
                "–" if result.in_band is None else f"{100 * result.in_band:.0f} %",
                f"{100 * result.with_authority:.0f} %",
                f"{stare:.3f}",
                f"{second_half(result.grpo, ENTROPY).mean():.3f}",
                f"{100 * result.grpo_in_band:.0f} %",
                f"{grpo:.3f}",
                result.verdict.kind,
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def claims(results: list[Result]) -> list[tuple[bool, str]]:
    """What the study is to show: whether it does, and a sentence with the figures."""
    found = []
    for result in results:
        name, kind = f"{result.task}, seed {result.seed}", result.verdict.kind
        stare, grpo = result.rewards
        if result.task in ONE_ANSWER:
            holds = stare >= grpo - LOST_REWARD and kind == "no authority"
            wanted = f"at most {LOST_REWARD} lower, and no authority"
            found.append((holds, f"{name}: reward {stare:.3f}, GRPO's {grpo:.3f}, {kind}; wanted: {wanted}"))
        elif result.with_authority <= 0.5:
            holds = kind in ("no authority", "held")
            found.append((holds, f"{name}: little authority in most steps, {kind}; wanted: a verdict that says so"))
        else:
            said = f"{name}: {100 * result.in_band:.0f} % of the steps with authority are in band, {kind}"
            said += f"; reward {stare:.3f}, GRPO's {grpo:.3f}; wanted: {100 * HELD:.0f} %"
            if result.grpo_in_band >= HELD:
                said += f". GRPO held it too ({100 * result.grpo_in_band:.0f} %), so this shows nothing"
            found.append((result.in_band >= HELD, said))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    results = read(args.runs)
    if not results:
        print("any_task: no task has both a -stare and a -grpo run: give both", file=sys.stderr)
        return 1
    text = table(results)
    args.table.write_text(text)
    print(text)
    found = claims(results)
    for holds, sentence in found:
        print("pass" if holds else "MISS", sentence)
    return 0 if all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
