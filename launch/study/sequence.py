"""The results of the sequence study: python launch/study/sequence.py RESULTS --table FILE --png FILE

RESULTS is the study's file of results, see results.py; a line has all five stages. Writes the table and the curves,
and prints for each claim of launch/sequence_study.sh whether it holds. Exit status 1: one does not; claims whose runs
are missing are open.
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
from second_stage import draw_stages  # noqa: E402

RULES = ("any", "smallest", "closest", "largest", "even")
WAYS = {"grpo": "GRPO", "bonus": "constant bonus", "stare": "STARE, PI", "stare+entropy_bonus": "STARE + bonus, PI"}
SEEDS = 2  # or more, by which a claim is judged
TOP = 1.0  # of the figure's entropies, in nats
LEAST_ABOVE, LEAST, WORN, ALIKE = 0.10, 0.80, 0.10, 0.05

Arms = dict[str, list[Result]]


def arms_of(found: list[Result]) -> Arms:
    arms: Arms = {way: [] for way in WAYS}
    for result in sorted(found, key=lambda result: result.seed):
        arms[result.arm].append(result)
    return arms


def ends(of: list[Result]) -> list[list[float]]:
    """The reward at the end of each stage: a list of the seeds for each stage."""
    return [[float(result.stages[stage].figures["reward_end"] or 0) for result in of] for stage in range(len(RULES))]


def table(arms: Arms) -> str:
    """A markdown table, a row for each way: the reward at the end of each stage, its interval, and that of 2 to 5."""
    head = ("", "seeds", *(f"{place}: {rule}" for place, rule in enumerate(RULES, start=1)))
    rows = [(*head, "stages 2 to 5", "entropy at the end of stage 5")]
    for way, of in arms.items():
        if of:
            later = [fmean(of_seed) for of_seed in zip(*ends(of)[1:], strict=True)]
            entropy = [result.number("entropy_end") for result in of]
            seeds = ", ".join(str(result.seed) for result in of)
            rows.append(
                (WAYS[way], seeds, *map(with_interval, ends(of)), with_interval(later), with_interval(entropy))
            )
    return results.markdown(rows)


def claims(arms: Arms) -> list[tuple[bool | None, str]]:
    """The claims of launch/sequence_study.sh, in their order: whether they hold, and the figures."""

    def claim(needed: tuple[str, ...], judge) -> tuple[bool | None, str]:
        # Of the seeds that all of them have: a way is not compared with another's easier prompts.
        common = set.intersection(*({result.seed for result in arms[way]} for way in needed))
        if len(common) < SEEDS:
            counts = "; ".join(f"{WAYS[way]} has {len(arms[way])} seeds" for way in needed)
            return None, f"{counts}; wanted: {SEEDS} or more in common"
        runs = ([result for result in arms[way] if result.seed in common] for way in needed)
        return judge(*([fmean(stage) for stage in ends(of)] for of in runs))

    def grpo_loses(grpo, stare):
        below = fmean(stare[1:]) - fmean(grpo[1:])
        return below >= LEAST_ABOVE, f"GRPO's later ends are {below:.3f} below STARE's; wanted: {LEAST_ABOVE}"

    def learns_all(stare):
        return min(stare) >= LEAST, f"STARE ends each stage at {min(stare):.3f} or more; wanted: {LEAST}"

    def does_not_wear_out(stare):
        lost = stare[1] - stare[-1]
        return lost <= WORN, f"STARE's stage 5 ends {lost:.3f} below its stage 2; wanted: at most {WORN}"

    def constant_is_no_better(bonus, stare):
        above = fmean(bonus[1:]) - fmean(stare[1:])
        return (
            above <= ALIKE,
            f"the constant bonus's later ends are {above:.3f} above STARE's; wanted: at most {ALIKE}",
        )

    def both_is_no_worse(both, stare):
        below = fmean(stare[1:]) - fmean(both[1:])
        return below <= ALIKE, f"STARE + bonus's later ends are {below:.3f} below STARE's; wanted: at most {ALIKE}"

    return [
        claim(("grpo", "stare"), grpo_loses),
        claim(("stare",), learns_all),
        claim(("stare",), does_not_wear_out),
        claim(("bonus", "stare"), constant_is_no_better),
        claim(("stare+entropy_bonus", "stare"), both_is_no_worse),
    ]


def draw(arms: Arms, path: Path) -> None:
    """A column for each way, reward above and entropy below, a line a seed. What leaves a panel is said in it."""
    seeds = sorted({result.seed for of in arms.values() for result in of})
    colours = {seed: COLOURS[place % len(COLOURS)] for place, seed in enumerate(seeds)}
    with matplotlib.rc_context({**STYLE, "font.size": 8, "axes.titlesize": 9}):
        figure = Figure(figsize=(13, 5.5), dpi=130)
        grid = figure.subplots(2, len(WAYS), squeeze=False)
        for place, (way, title) in enumerate(WAYS.items()):
            for ax, curve, top in ((grid[0][place], "reward", 1.02), (grid[1][place], "entropy", TOP)):
                for result in arms[way]:
                    draw_stages(ax, result, curve, colours[result.seed])
                highest = max([0.0, *(max(stage.curves[curve]) for result in arms[way] for stage in result.stages)])
                if said := "no run yet" if not arms[way] else f"up to {highest:.1f}" if highest > top else "":
                    ax.text(0.97, 0.9, said, transform=ax.transAxes, ha="right", color="#777777")
                ax.set(ylim=(0, top), xlim=(0, None), xlabel="step")
            grid[0][place].set_title(title)
        grid[0][0].set_ylabel("reward")
        grid[1][0].set_ylabel("entropy (nats)")
        lines = [Line2D([], [], color=colours[seed], lw=2, label=f"seed {seed}") for seed in seeds]
        label = f"the rule changes: {', '.join(RULES)}"
        change = Line2D([], [], color="#222222", lw=1, linestyle=(0, (5, 3)), label=label)
        figure.legend(handles=[*lines, change], loc="outside upper center", ncols=8, frameon=False)
        figure.savefig(path)


def main() -> int:
    return results.present(__doc__.splitlines()[0], arms_of, table, draw, claims)


if __name__ == "__main__":
    sys.exit(main())
