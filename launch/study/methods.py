"""The results of the methods study: python launch/study/methods.py RUN [RUN …] --table FILE --png FILE

A RUN is the folder of one arm and seed, such as kl_cov_pi-seed0, with the TensorBoard logs and the evaluation.json of
stage 1; the logs of stage 2 are in a folder of the same name in the folder `again` beside it. Writes the table and the
figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from openrlhf_stare.report.figures import BAND, COLOURS, ENTROPY, REWARD_TAGS, STYLE
from openrlhf_stare.report.reading import Run, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from enter import LAST, SECONDS  # noqa: E402
from results import markdown, run_folder  # noqa: E402
from summary import draw_curves, mean_and_sd  # noqa: E402

TARGET = 0.4  # nats, that of the arms under PI; the others are held against it too


@dataclass(frozen=True)
class Result:
    """One arm and seed: stage 1, stage 2, and what launch/study/evaluate.py found after stage 1."""

    first: Run
    again: Run
    evaluation: dict[str, float]

    def second_half(self, *tags: str) -> np.ndarray:
        values = self.first.finite(*tags).values
        return values[len(values) // 2 :]

    @property
    def in_band(self) -> float:
        """Share of the second half's steps whose entropy is within BAND of TARGET."""
        return float(np.mean(np.abs(self.second_half(ENTROPY) - TARGET) <= BAND * TARGET))


def read(folders: list[Path]) -> dict[str, list[Result]]:
    """The results of each arm, a run for each seed, in the order in which the arms are first named."""
    firsts = read_runs(folders)
    agains = read_runs([folder.parent / "again" / folder.name for folder in folders])
    arms: dict[str, list[Result]] = {}
    for folder, first, again in zip(folders, firsts, agains, strict=True):
        evaluation = json.loads((folder / "evaluation.json").read_text())
        arms.setdefault(folder.name.rpartition("-seed")[0], []).append(Result(first, again, evaluation))
    return arms


def title(arm: str) -> str:
    if arm == "grpo":
        return "GRPO"
    return f"`{arm.removesuffix('_pi')}`, {'PI' if arm.endswith('_pi') else 'as published'}"


def table(arms: dict[str, list[Result]]) -> str:
    """A markdown table of mean ± standard deviation over the seeds."""
    head = (
        "",
        "entropy (nats)",
        f"steps within ±{100 * BAND:.0f} % of {TARGET}",
        "reward",
        "distinct right answers",
    )
    rows = [(*head, "reward of stage 2", "step / GRPO's")]
    grpo = fmean(step_seconds(result) for result in arms["grpo"]) if "grpo" in arms else None
    for arm, results in arms.items():
        rows.append(
            (
                title(arm),
                mean_and_sd([float(result.second_half(ENTROPY).mean()) for result in results]),
                mean_and_sd([100 * result.in_band for result in results], 1) + " %",
                mean_and_sd([float(result.second_half(*REWARD_TAGS).mean()) for result in results]),
                mean_and_sd([result.evaluation["distinct_right"] for result in results], 2),
                mean_and_sd([final_reward(result.again) for result in results]),
                f"{fmean(step_seconds(result) for result in results) / grpo:.2f}" if grpo else "–",
            )
        )
    return markdown(rows)


def final_reward(run: Run) -> float:
    """The mean reward of the last LAST steps."""
    return float(run.finite(*REWARD_TAGS).values[-LAST:].mean())


def step_seconds(result: Result) -> float:
    return median(result.second_half(SECONDS))


def draw(arms: dict[str, list[Result]], path: Path) -> None:
    """A panel for each method, its entropy as published and under PI beside GRPO's; and the reward of stage 2."""
    methods = list(dict.fromkeys(arm.removesuffix("_pi") for arm in arms if arm != "grpo"))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 6), dpi=150)
        panels = figure.subplots(2, 4).flatten()
        for method, ax in zip(methods, panels, strict=False):
            ax.axhspan((1 - BAND) * TARGET, (1 + BAND) * TARGET, color="#888888", alpha=0.15, lw=0)
            for colour, arm in zip(("#888888", *COLOURS), ("grpo", method, f"{method}_pi"), strict=False):
                if arm in arms:
                    draw_curves(
                        ax, [result.first for result in arms[arm]], (ENTROPY,), colour, title(arm).replace("`", "")
                    )
            ax.set(title=f"{method}: entropy (nats)", xlabel="step", ylim=(0, 1))
            ax.legend(frameon=False, fontsize=7)
        last = panels[-1]
        rewards = [fmean(final_reward(result.again) for result in results) for results in arms.values()]
        last.barh(range(len(arms)), rewards, color=COLOURS[0], alpha=0.6)
        last.set(yticks=range(len(arms)), yticklabels=arms, xlim=(0, 1), title="Reward of stage 2")
        last.tick_params(labelsize=7, labelleft=True)
        last.invert_yaxis()
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=run_folder, metavar="RUN")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arms = read(args.runs)
    text = table(arms)
    args.table.write_text(text)
    draw(arms, args.png)
    print(text)


if __name__ == "__main__":
    main()
