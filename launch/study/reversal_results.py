"""The results of the reversal study: python launch/study/reversal_results.py RUN [RUN …] --table FILE --png FILE

A RUN is the folder of one arm and seed, such as tpo-seed0, with its TensorBoard logs. Writes the table and the curves.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from openrlhf_stare.report.figures import COLOURS, REWARD_TAGS, STYLE
from openrlhf_stare.report.reading import Run, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from results import markdown, run_folder  # noqa: E402
from summary import SOLVED, draw_curves, mean_and_sd, steps_to_solve  # noqa: E402

ARMS = {"tpo": "TPO", "grpo": "GRPO without KL", "grpo_kl": "GRPO with KL"}


def final_reward(run: Run) -> float:
    """The mean reward over the last tenth of the steps."""
    values = run.finite(*REWARD_TAGS).values
    return float(values[-max(1, len(values) // 10) :].mean())


def table(arms: dict[str, list[Run]]) -> str:
    """A markdown table; the steps of every seed, and mean ± standard deviation over the seeds of the final reward."""
    rows = [("", f"steps to reward {SOLVED}, seed by seed", "final reward")]
    for arm, runs in arms.items():
        steps = ", ".join(str(steps_to_solve(run) or "never") for run in runs)
        rows.append((ARMS[arm], steps, mean_and_sd([final_reward(run) for run in runs])))
    return markdown(rows)


def draw(arms: dict[str, list[Run]], path: Path) -> None:
    """The reward of all runs, coloured by arm; a panel for each seed, since the seeds' models start far apart."""
    seeds = sorted({seed_of(run) for runs in arms.values() for run in runs})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), dpi=150)
        panels = dict(zip(seeds, figure.subplots(1, len(seeds), sharey=True, squeeze=False)[0], strict=True))
        for seed, ax in panels.items():
            ax.axhline(SOLVED, color="#222222", lw=1.1, linestyle=(0, (5, 3)))
            ax.set(xlabel="step", ylim=(0, 1.02), title=f"Seed {seed}: mean reward of a rollout")
        for colour, (arm, runs) in zip(COLOURS, arms.items(), strict=False):
            for run in runs:
                draw_curves(panels[seed_of(run)], [run], REWARD_TAGS, colour, ARMS[arm])
        panels[seeds[-1]].legend(loc="lower right", frameon=False)
        figure.savefig(path)


def seed_of(run: Run) -> str:
    return run.name.rpartition("-seed")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=run_folder, metavar="RUN")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arms: dict[str, list[Run]] = {arm: [] for arm in ARMS}
    for folder, run in zip(args.runs, read_runs(args.runs), strict=True):
        arms[folder.name.rpartition("-seed")[0]].append(run)
    text = table(arms)
    args.table.write_text(text)
    draw(arms, args.png)
    print(text)


if __name__ == "__main__":
    main()
