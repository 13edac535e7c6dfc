"""The results of the second-stage study: python launch/study/second_stage.py RESULTS --table FILE --png FILE

RESULTS is the study's file of results, see results.py; a line has both stages. Writes the table and the curves, and
prints for each claim of launch/second_stage.sh whether it holds. Exit status 1: one does not; claims whose runs are
missing are open.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from openrlhf_stare.report.figures import COLOURS, STYLE

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
import results  # noqa: E402
from results import Result, with_interval  # noqa: E402

RULES = {"smallest": "smallest first addend", "closest": "closest addends"}
ARMS = {
    "grpo-grpo": "GRPO → GRPO",
    "stare-grpo": "STARE → GRPO",
    "grpo-stare": "GRPO → STARE",
    "stare-stare": "STARE → STARE",
    "bonus-grpo": "constant bonus → GRPO",
}
LEAST, LEAST_ABOVE, LEAST_ABOVE_IN_MEAN, ALIKE = 0.95, 0.15, 0.10, 0.05

Cells = dict[tuple[str, str], list[Result]]  # rule and arm -> the seeds


def cells(found: list[Result]) -> Cells:
    arranged: Cells = {(rule, arm): [] for rule in RULES for arm in ARMS}
    for result in sorted(found, key=lambda result: result.seed):
        arranged[result.task, result.arm].append(result)
    return arranged


def ends(of: list[Result]) -> dict[int, float]:
    """The reward at the end of stage 2, by seed."""
    return {result.seed: result.number("reward_end") for result in of}


def table(runs: Cells) -> str:
    """A markdown table, a row for each rule and arm; a mean has its bootstrap interval over the seeds behind it."""
    head = ("rule", "stage 1 → stage 2", "reward at the end", "seed by seed", "steps to 0.9")
    rows = [(*head, "entropy after stage 1")]
    for (rule, arm), of in runs.items():
        if of:
            seeds = ", ".join(f"{seed}: {end:.3f}" for seed, end in ends(of).items())
            steps = ", ".join(str(result.figures["steps_to_solve"] or "never") for result in of)
            before = with_interval([float(result.stages[0].figures["entropy_end"] or 0) for result in of])
            rows.append((RULES[rule], ARMS[arm], with_interval(list(ends(of).values())), seeds, steps, before))
    return results.markdown(rows)


def claims(runs: Cells) -> list[tuple[bool | None, str]]:
    """For each rule the claims of launch/second_stage.sh, in their order: whether they hold, and the figures."""
    return [claim for rule in RULES for claim in claims_of(rule, {arm: ends(runs[rule, arm]) for arm in ARMS})]


def claims_of(rule: str, end: dict[str, dict[int, float]]) -> list[tuple[bool | None, str]]:
    def claim(needed: tuple[str, ...], judge) -> tuple[bool | None, str]:
        """`judge` gets the ends of the arms by seed, of seeds that all of them have; it needs three."""
        seeds = sorted(set.intersection(*(set(end[arm]) for arm in needed)))
        if len(seeds) < 3:
            return None, f"{rule}: {len(seeds)} of three seeds of {' and '.join(ARMS[arm] for arm in needed)}"
        holds, said = judge(*([end[arm][seed] for seed in seeds] for arm in needed))
        return holds, f"{rule}: {said}"

    def ends_high(held):
        return min(held) >= LEAST, f"STARE → STARE ends at {min(held):.3f} or more on every seed; wanted: {LEAST}"

    def ends_above(held, grpo):
        least = min(a - b for a, b in zip(held, grpo, strict=True))
        return least >= LEAST_ABOVE, f"STARE → STARE ends {least:.3f} or more above GRPO → GRPO; wanted: {LEAST_ABOVE}"

    def first_counts(held, grpo):
        least, mean = min(a - b for a, b in zip(held, grpo, strict=True)), fmean(held) - fmean(grpo)
        said = f"STARE → GRPO ends {least:.3f} or more above GRPO → GRPO, {mean:.3f} in the mean"
        said += f"; wanted: 0 and {LEAST_ABOVE_IN_MEAN:.2f}"
        return least > 0 and mean >= LEAST_ABOVE_IN_MEAN, said

    def second_does_not(both, held, late):
        apart, below = abs(fmean(both) - fmean(held)), fmean(held) - fmean(late)
        said = f"STARE → STARE is {apart:.3f} from STARE → GRPO, GRPO → STARE {below:.3f} below it"
        said += f"; wanted: at most {ALIKE}, and {LEAST_ABOVE_IN_MEAN:.2f}"
        return apart <= ALIKE and below >= LEAST_ABOVE_IN_MEAN, said

    def how_does_not_count(held, bonus):
        apart = abs(fmean(held) - fmean(bonus))
        return apart <= ALIKE, f"constant bonus → GRPO and STARE → GRPO are {apart:.3f} apart; wanted: at most {ALIKE}"

    return [
        claim(("stare-stare",), ends_high),
        claim(("stare-stare", "grpo-grpo"), ends_above),
        claim(("stare-grpo", "grpo-grpo"), first_counts),
        claim(("stare-stare", "stare-grpo", "grpo-stare"), second_does_not),
        claim(("stare-grpo", "bonus-grpo"), how_does_not_count),
    ]


def draw(runs: Cells, path: Path) -> None:
    """A row of panels for each rule: reward over both stages, and below entropy; a panel an arm, a line a seed."""
    seeds = sorted({result.seed for of in runs.values() for result in of})
    colours = {seed: COLOURS[place % len(COLOURS)] for place, seed in enumerate(seeds)}
    with matplotlib.rc_context({**STYLE, "font.size": 8, "axes.titlesize": 8}):
        figure = Figure(figsize=(13, 9), dpi=130)
        grid = figure.subplots(2 * len(RULES), len(ARMS), squeeze=False)
        for row, (rule, rule_title) in enumerate(RULES.items()):
            for place, (arm, title) in enumerate(ARMS.items()):
                for ax, name, top in zip(
                    grid[2 * row : 2 * row + 2, place], ("reward", "entropy"), (1.02, None), strict=True
                ):
                    for result in runs[rule, arm]:
                        draw_stages(ax, result, name, colours[result.seed])
                    if not runs[rule, arm]:
                        ax.text(0.5, 0.5, "no run yet", transform=ax.transAxes, ha="center", color="#777777")
                    ax.set(ylim=(0, top), xlim=(0, None))
                    if place == 0:
                        ax.set_ylabel(f"{rule_title}\n{'reward' if name == 'reward' else 'entropy (nats)'}")
                grid[0][place].set_title(title)
        for ax in grid[-1]:
            ax.set_xlabel("step")
        lines = [Line2D([], [], color=colours[seed], lw=2, label=f"seed {seed}") for seed in seeds]
        change = Line2D([], [], color="#222222", lw=1, linestyle=(0, (5, 3)), label="the rule changes")
        figure.legend(handles=[*lines, change], loc="outside upper center", ncols=8, frameon=False)
        figure.savefig(path)


def draw_stages(ax, result: Result, curve: str, colour: str) -> None:
    """One curve over all stages, one after the other, and a dashed line where a stage ends."""
    after = 0.0
    for number, stage in enumerate(result.stages):
        if number:
            ax.axvline(after, color="#222222", lw=1, linestyle=(0, (5, 3)))
        ax.plot([step + after for step in stage.curves["step"]], stage.curves[curve], color=colour, lw=1.1)
        after += float(stage.figures["steps"] or 0)


def main() -> int:
    return results.present(__doc__.splitlines()[0], cells, table, draw, claims)


if __name__ == "__main__":
    sys.exit(main())
