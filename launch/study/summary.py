"""The results of the entropy study: python launch/study/summary.py RUN [RUN …] --table FILE --png FILE

A RUN is the folder of one arm and seed, such as pi-seed0, with its TensorBoard logs and its evaluation.json. Writes
the table and the figure, and prints for each claim whether it holds. Exit status 1: one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from openrlhf_stare.report.figures import BAND, COLOURS, ENTROPY, REWARD_TAGS, STYLE, moving_mean
from openrlhf_stare.report.page import FinalFigures, final_figures
from openrlhf_stare.report.reading import Run, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from results import markdown, report, run_folder  # noqa: E402

ARMS = {"grpo": "GRPO", "fixed": "STARE, fixed", "adaptive": "STARE, adaptive", "pi": "STARE, PI"}
SOLVED = 0.9  # the mean reward at which a task counts as solved
HELD = ("adaptive", "pi")  # the arms that are to hold the target


@dataclass(frozen=True)
class Result:
    """One run: its logs, its figures over the second half of the steps, and what launch/study/evaluate.py found."""

    run: Run
    final: FinalFigures
    evaluation: dict[str, float]


def read_results(folders: list[Path]) -> dict[str, list[Result]]:
    """The results of each arm, in the order of ARMS, a run for each seed."""
    runs = read_runs(folders)
    arms: dict[str, list[Result]] = {arm: [] for arm in ARMS}
    for folder, run in zip(folders, runs, strict=True):
        evaluation = json.loads((folder / "evaluation.json").read_text())
        arms[folder.name.rpartition("-seed")[0]].append(Result(run, final_figures(run, runs), evaluation))
    return arms


def table(arms: dict[str, list[Result]]) -> str:
    """A markdown table of mean ± standard deviation over the seeds."""
    head = (
        "",
        "entropy (nats)",
        f"steps within ±{100 * BAND:.0f} % of the target",
        "reward",
        "distinct right answers",
    )
    rows = [(*head, "pass@1", "pass@32", "W")]
    for arm, results in arms.items():
        finals, evaluations = [result.final for result in results], [result.evaluation for result in results]
        rows.append(
            (
                ARMS[arm],
                mean_and_sd([final.entropy for final in finals]),
                mean_and_sd([100 * final.in_band for final in finals], 1) + " %",
                mean_and_sd([final.reward for final in finals]),
                mean_and_sd([evaluation["distinct_right"] for evaluation in evaluations], 2),
                mean_and_sd([evaluation["pass@1"] for evaluation in evaluations]),
                mean_and_sd([evaluation["pass@32"] for evaluation in evaluations]),
                mean_and_sd([final.strength for final in finals], 1) if arm != "grpo" else "–",
            )
        )
    return markdown(rows)


def mean_and_sd(values: list[float], digits: int = 3) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def claims(arms: dict[str, list[Result]]) -> list[tuple[bool, str]]:
    """What the study is to show: whether it does, and a sentence with the figure."""
    target, band = arms["pi"][0].final.target, f"±{100 * BAND:.0f} %"
    end = max(end_of(result.run) for result in arms["grpo"])
    entropy = fmean(result.final.entropy for result in arms["pi"])
    off = 100 * (entropy / target - 1)
    answers = {arm: fmean(distinct(result) for result in results) for arm, results in arms.items()}
    reward = {arm: fmean(result.final.reward for result in results) for arm, results in arms.items()}
    found = [
        (end < target / 4, f"GRPO's entropy ends at {end:.3f} or less on every seed; wanted: below {target / 4:.3f}"),
        (abs(off) <= 5, f"{ARMS['pi']}: the mean entropy is {off:+.1f} % off the target; wanted: at most 5 %"),
    ]
    for arm in HELD:
        share = 100 * min(result.final.in_band for result in arms[arm])
        below = reward["grpo"] - reward[arm]
        found += [
            (
                share >= 95,
                f"{ARMS[arm]}: on every seed {share:.1f} % of the steps or more within {band}; wanted: 95 %",
            ),
            (
                answers[arm] >= 2 * answers["grpo"],
                f"{ARMS[arm]}: {answers[arm]:.2f} distinct right answers; wanted: twice GRPO's {answers['grpo']:.2f}",
            ),
            (below <= 0.05, f"{ARMS[arm]}: the mean reward is {below:.3f} below GRPO's; wanted: at most 0.05"),
        ]
    return found


def end_of(run: Run) -> float:
    """The mean entropy over the last tenth of the steps."""
    values = run.finite(ENTROPY).values
    return float(values[-max(1, len(values) // 10) :].mean())


def distinct(result: Result) -> float:
    return result.evaluation["distinct_right"]


def steps_to_solve(run: Run) -> int | None:
    """The first step around which the mean reward of 11 steps is SOLVED; None if there is none."""
    reward = run.finite(*REWARD_TAGS)
    solved = reward.steps[moving_mean(reward.values, 11) >= SOLVED]
    return int(solved[0]) if len(solved) else None


def draw(arms: dict[str, list[Result]], path: Path) -> None:
    """Entropy and reward of all runs, and the distinct right answers, coloured by arm."""
    target = arms["pi"][0].final.target
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4), dpi=150)
        entropy, reward, answers = figure.subplots(1, 3, width_ratios=[5, 4, 3])
        entropy.axhspan((1 - BAND) * target, (1 + BAND) * target, color="#888888", alpha=0.15, lw=0)
        entropy.axhline(target, color="#222222", lw=1.1, linestyle=(0, (5, 3)))
        for place, (colour, (arm, results)) in enumerate(zip(COLOURS, arms.items(), strict=False)):
            for ax, tags in ((entropy, (ENTROPY,)), (reward, REWARD_TAGS)):
                draw_curves(ax, [result.run for result in results], tags, colour, ARMS[arm])
            figures = [distinct(result) for result in results]
            answers.bar(place, fmean(figures), color=colour, alpha=0.35)
            answers.scatter([place] * len(figures), figures, color=colour, s=14, zorder=3)
        entropy.set(xlabel="step", ylim=(0, None), title=f"Entropy (nats per token), target and ±{100 * BAND:.0f} %")
        reward.set(xlabel="step", ylim=(None, 1), title="Mean reward of a rollout")
        answers.set(xticks=range(len(arms)), xticklabels=arms, title="Distinct right answers")
        answers.grid(axis="x", visible=False)
        reward.legend(loc="lower right", frameon=False)
        figure.savefig(path)


def draw_curves(ax, runs: list[Run], tags: tuple[str, ...], colour: str, label: str) -> None:
    """The mean over the seeds, ± their standard deviation, of each step's moving mean, and each run pale behind it."""
    curves = [run.finite(*tags) for run in runs]
    steps = curves[0].steps
    for curve in curves:
        ax.plot(curve.steps, curve.values, color=colour, lw=0.5, alpha=0.25)
    smooth = np.stack([moving_mean(curve.values, 11) for curve in curves])
    mean, spread = smooth.mean(0), smooth.std(0, ddof=1) if len(curves) > 1 else 0
    ax.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
    ax.plot(steps, mean, color=colour, lw=1.6, label=label)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=run_folder, metavar="RUN")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arms = read_results(args.runs)
    text = table(arms)
    args.table.write_text(text)
    draw(arms, args.png)
    print(text)
    return report(claims(arms))


if __name__ == "__main__":
    sys.exit(main())
