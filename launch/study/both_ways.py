"""The results of the study of control from both sides: python launch/study/both_ways.py RUN [RUN …] --table FILE

A RUN is the folder of one arm and seed, such as rising-both-seed0, with its TensorBoard logs. Writes the table and
prints for each claim whether it holds. Exit status 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from openrlhf_stare.algorithms.verdict import BAND, EFFORT, ENTROPY, HELD, TARGET
from openrlhf_stare.report.figures import REWARD_TAGS
from openrlhf_stare.report.reading import Run, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from results import markdown, report, run_folder  # noqa: E402

Runs = dict[str, dict[int, Run]]  # "rising-both" -> seed -> run


def read(folders: list[Path]) -> Runs:
    arms: Runs = {}
    for folder, run in zip(folders, read_runs(folders), strict=True):
        arm, _, seed = folder.name.rpartition("-seed")
        arms.setdefault(arm, {})[int(seed)] = run
    return arms


def second_half(run: Run, *tags: str) -> np.ndarray:
    values = run.finite(*tags).values
    return values[len(values) // 2 :]


def rise(run: Run) -> float:
    """The mean entropy of the second half over the first one of the run."""
    return float(second_half(run, ENTROPY).mean() / run.finite(ENTROPY).values[0])


def in_band(run: Run, target: float) -> float:
    """The share of the second half's steps within BAND of the target."""
    return float(np.mean(np.abs(second_half(run, ENTROPY) - target) <= BAND * target))


def steps_to_last_target(run: Run) -> int | None:
    """The first step within BAND of the run's last target; None if there was none."""
    entropy, target = run.finite(ENTROPY), run.finite(TARGET).values[-1]
    reached = np.flatnonzero(np.abs(entropy.values - target) <= BAND * target)
    return int(entropy.steps[reached[0]]) if len(reached) else None


def table(arms: Runs) -> str:
    """A markdown table, a row for each arm and seed."""
    head = ("arm, seed", "first entropy", "last target", "entropy", "in band", "first step in band", "lowest effort")
    rows = [(*head, "reward")]
    for arm, seeds in arms.items():
        for seed, run in seeds.items():
            controlled = not arm.endswith("-grpo")
            target = float(run.finite(TARGET).values[-1]) if controlled else float(run.finite(ENTROPY).values[0])
            rows.append(
                (
                    f"{arm}, {seed}",
                    f"{run.finite(ENTROPY).values[0]:.3f}",
                    f"{target:.3f}" if controlled else "–",
                    f"{second_half(run, ENTROPY).mean():.3f}",
                    f"{100 * in_band(run, target):.0f} %",
                    str(steps_to_last_target(run) or "never") if controlled else "–",
                    f"{run.finite(EFFORT).values.min():.2f}" if controlled else "–",
                    f"{second_half(run, *REWARD_TAGS).mean():.3f}",
                )
            )
    return markdown(rows)


def whole(arms: Runs, *names: str) -> list[tuple[int, list[Run]]]:
    """The seeds that have a run of each of these arms, with the runs."""
    seeds = sorted(set.intersection(*(set(arms.get(name, {})) for name in names)))
    return [(seed, [arms[name][seed] for name in names]) for seed in seeds]


def claims(arms: Runs) -> list[tuple[bool, str]]:
    """What the study is to show: whether it does, and a sentence with the figures."""
    found = []
    for seed, (grpo, below, both) in whole(arms, "rising-grpo", "rising-below", "rising-both"):
        share = in_band(both, float(both.finite(TARGET).values[-1]))
        above = min(rise(grpo), rise(below))
        found.append(
            (
                above > 1 + BAND and share >= HELD,
                f"rising, seed {seed}: GRPO has {rise(grpo):.2f} times its first entropy, below {rise(below):.2f} "
                f"times; both holds it in {100 * share:.0f} % of the steps; wanted: more than {1 + BAND} times, and "
                f"{100 * HELD:.0f} %",
            )
        )
    for situation in ("falling", "bonus", "easy"):
        for seed, (both, below) in whole(arms, f"{situation}-both", f"{situation}-below"):
            steps = {"both": steps_to_last_target(both), "below": steps_to_last_target(below)}
            holds = steps["both"] is not None and (steps["below"] is None or steps["both"] < steps["below"])
            reached = " and ".join(f"{side} at step {step or 'never'}" for side, step in steps.items())
            found.append((holds, f"{situation}, seed {seed}: {reached}; wanted: both is earlier"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=run_folder, metavar="RUN")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arms = read(args.runs)
    text = table(arms)
    args.table.write_text(text)
    print(text)
    return report(claims(arms))


if __name__ == "__main__":
    sys.exit(main())
