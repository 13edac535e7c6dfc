"""The results of the second-stage study.

python launch/study/second_stage.py RUN [RUN …] --first DIR --table FILE --png FILE

A RUN is the folder of one arm and seed, such as grpo-pi-seed0 (stage 1 by GRPO, stage 2 by PI), with its TensorBoard
logs; DIR holds the runs of stage 1, such as grpo-seed0. Writes the table and the curves, and prints for each claim
whether it holds. Exit status 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from openrlhf_stare.report.figures import COLOURS, ENTROPY, REWARD, STYLE, moving_mean
from openrlhf_stare.report.reading import Run, Series, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from summary import SOLVED, mean_and_sd, steps_to_solve  # noqa: E402

STAGES = {"grpo": "GRPO", "pi": "STARE"}
GREYS = {"grpo": "#888888", "pi": "#333333"}  # of stage 1
LAST = 20  # steps that the final reward is the mean of
LEAST, LEAST_ABOVE = 0.95, 0.15

Arms = dict[str, list[tuple[Run, Run]]]  # "grpo-pi" -> stage 1 and stage 2 of each seed


def read(folders: list[Path], first_home: Path) -> Arms:
    """The runs of each arm, in the order in which the arms are first named."""
    stage_1: dict[str, Run] = {}
    arms: Arms = {}
    for folder, run in zip(folders, read_runs(folders), strict=True):
        arm, _, seed = folder.name.rpartition("-seed")
        first = f"{arm.partition('-')[0]}-seed{seed}"
        if first not in stage_1:
            [stage_1[first]] = read_runs([first_home / first])
        arms.setdefault(arm, []).append((stage_1[first], run))
    return arms


def title(arm: str) -> str:
    before, _, after = arm.partition("-")
    return f"{STAGES[before]} → {STAGES[after]}"


def final_reward(run: Run) -> float:
    """The mean reward of the last LAST steps."""
    return float(run.finite(*REWARD).values[-LAST:].mean())


def table(arms: Arms) -> str:
    """A markdown table: mean ± standard deviation over the seeds, and the figures of each seed."""
    head = ("stage 1 → stage 2", "reward at the end", "seed by seed", f"steps to {SOLVED}, seed by seed")
    rows = [(*head, "entropy at the end of stage 1"), ("---",) * 5]
    for arm, pairs in arms.items():
        finals = [final_reward(run) for _, run in pairs]
        steps = ", ".join(str(steps_to_solve(run) or "never") for _, run in pairs)
        before = [float(first.finite(ENTROPY).values[-LAST:].mean()) for first, _ in pairs]
        seeds = ", ".join(f"{final:.3f}" for final in finals)
        rows.append((title(arm), mean_and_sd(finals), seeds, steps, mean_and_sd(before)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def claims(arms: Arms) -> list[tuple[bool, str]]:
    """What the study is to show: whether it does, and a sentence with the figure."""
    held = [final_reward(run) for _, run in arms["pi-pi"]]
    above = [after - final_reward(run) for after, (_, run) in zip(held, arms["grpo-grpo"], strict=True)]
    return [
        (min(held) >= LEAST, f"STARE → STARE ends at {min(held):.3f} or more on every seed; wanted: {LEAST}"),
        (
            min(above) >= LEAST_ABOVE,
            f"STARE → STARE ends {min(above):.3f} or more above GRPO → GRPO on every seed; wanted: {LEAST_ABOVE}",
        ),
    ]


def draw(arms: Arms, path: Path) -> None:
    """Entropy and reward over both stages, the mean of the seeds in bold and each seed pale behind it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4), dpi=150)
        entropy, reward = figure.subplots(1, 2)
        drawn: set[str] = set()
        for colour, (arm, pairs) in zip(COLOURS, arms.items(), strict=False):
            last = max(int(first.finite(ENTROPY).steps[-1]) for first, _ in pairs)
            before = arm.partition("-")[0]
            for ax, tags in ((entropy, (ENTROPY,)), (reward, REWARD)):
                if before not in drawn:  # two arms share their stage 1
                    curves(
                        ax, [first.finite(*tags) for first, _ in pairs], 0, GREYS[before], f"{STAGES[before]}, stage 1"
                    )
                curves(ax, [run.finite(*tags) for _, run in pairs], last, colour, title(arm))
                ax.axvline(last, color="#222222", lw=1, linestyle=(0, (5, 3)))
            drawn.add(before)
        entropy.set(xlabel="step", ylim=(0, None), title="Entropy (nats per token)")
        reward.set(
            xlabel="step", ylim=(0, 1.02), title="Mean reward of a rollout; the rule changes at the dashed line"
        )
        reward.legend(loc="lower left", frameon=False)
        figure.savefig(path)


def curves(ax, series: list[Series], after: int, colour: str, label: str) -> None:
    smooth = [moving_mean(curve.values, 11) for curve in series]
    for curve, values in zip(series, smooth, strict=True):
        ax.plot(curve.steps + after, values, color=colour, lw=0.6, alpha=0.35)
    ax.plot(series[0].steps + after, sum(smooth) / len(smooth), color=colour, lw=1.8, label=label)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--first", type=Path, required=True, metavar="DIR", help="the runs of stage 1")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    arms = read(args.runs, args.first)
    text = table(arms)
    args.table.write_text(text)
    draw(arms, args.png)
    print(text)
    found = claims(arms)
    for holds, sentence in found:
        print("pass" if holds else "MISS", sentence)
    return 0 if all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
