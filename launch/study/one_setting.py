"""One setting on many tasks: the choice of the constant bonus, and from the results to a table, a figure and claims.

    python launch/study/one_setting.py RESULTS --choose
    python launch/study/one_setting.py RESULTS --table FILE --png FILE

RESULTS is the results file of launch/any_task_study.sh. launch/one_setting_study.sh says what is chosen and claimed.
Exit status 1: the choice's runs are missing, or a claim does not hold; claims whose runs are missing are open.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean, median

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from openrlhf_stare.algorithms.verdict import BAND, HELD
from openrlhf_stare.report.figures import COLOURS, STYLE

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
import results  # noqa: E402
from results import Result, with_interval  # noqa: E402

TASKS = {"addends": "addends", "own_task": "letters in order", "routes": "routes", "reversal": "reversal"}
SEVERAL_ANSWERS = ("addends", "own_task", "routes")
WAYS = {  # the constant is called `bonus` here, whatever its coefficient
    "grpo": "GRPO",
    "bonus": "constant bonus",
    "entropy_bonus": "bonus, PI",
    "stare": "STARE, PI",
    "stare+entropy_bonus": "STARE + bonus, PI",
    "repo": "REPO, PI",
}
SEEDS, THIRD_SEEDS, COST_SEEDS = (0, 1, 2), (0,), (90, 91, 92, 93, 94)
CHOICE_SEEDS, CONSTANTS = (10, 11), ("0.003", "0.01", "0.03", "0.1")
THIRD, COST = "-lr1e-4", "-cost"
MOST_HELD_BY_A_CONSTANT, MOST_HELD_BY_REPO = 2, 1
MORE_ANSWERS, LOST_REWARD, TIME = 1.5, 0.05, 1.1
SHARE = 0.5  # of the first entropy: the target
STEPS = 200
TOP = 1.4  # of the figure's panels, as a share of the first entropy

Cells = dict[tuple[str, str], list[Result]]  # way and task -> the seeds


class NoChoice(Exception):
    """The runs of the choice are not all there."""


def choose(found: list[Result]) -> str:
    """The coefficient of the constant bonus, by the rule of launch/one_setting_study.sh.

    Raises:
        NoChoice: one of its eight runs is missing.
    """

    def merit(constant: str) -> tuple[float, float]:
        runs = [of[constant, seed] for seed in CHOICE_SEEDS]
        entropy, target = (fmean(run.number(figure) for run in runs) for figure in ("entropy", "target"))
        return fmean(run.number("in_band") for run in runs), -abs(math.log(entropy / target))

    of = {
        (result.arm.removeprefix("bonus_"), result.seed): result
        for result in found
        if result.task == "addends" and result.arm.startswith("bonus_") and result.seed in CHOICE_SEEDS
    }
    wanted = [(constant, seed) for constant in CONSTANTS for seed in CHOICE_SEEDS]
    missing = [f"{constant}, seed {seed}" for constant, seed in wanted if (constant, seed) not in of]
    if missing:
        raise NoChoice(f"of the eight runs of the choice {len(missing)} are missing: {'; '.join(missing)}")
    return max(CONSTANTS, key=merit)


def cells(found: list[Result], constant: str | None, variant: str, seeds: tuple[int, ...]) -> Cells:
    """The runs of each way and task under these seeds. Without a choice there is no constant bonus."""
    ways = {f"bonus_{constant}" if way == "bonus" else way: way for way in WAYS}
    arranged: Cells = {(way, task): [] for way in WAYS for task in TASKS}
    for result in sorted(found, key=lambda result: result.seed):
        way = ways.get(result.arm.removesuffix(variant)) if result.arm.endswith(variant) else None
        if way and result.task in TASKS and result.seed in seeds:
            arranged[way, result.task].append(result)
    return arranged


def numbers(runs: list[Result], figure: str) -> list[float]:
    return [run.number(figure) for run in runs]


def holds(runs: list[Result]) -> bool:
    """Whether the mean share of steps in band is HELD or more."""
    return fmean(numbers(runs, "in_band")) >= HELD


def seconds(found: list[Result], constant: str | None) -> dict[str, float]:
    """The step time of each way as a share of GRPO's: the median over all turns of the ratios within a turn."""
    timed = cells(found, constant, COST, COST_SEEDS)
    of = {(way, run.seed): run.number("step_seconds") for way in WAYS for run in timed[way, "addends"]}
    ratios = {
        way: [of[way, seed] / of["grpo", seed] for seed in COST_SEEDS if (way, seed) in of and ("grpo", seed) in of]
        for way in WAYS
    }
    return {way: median(of_way) for way, of_way in ratios.items() if len(of_way) == len(COST_SEEDS)}


# ── the claims ──


def claims(found: list[Result], constant: str | None) -> list[tuple[bool | None, str]]:
    """Whether the claims in launch/one_setting_study.sh hold, in their order, each with a sentence with the figures.

    None where runs are missing, or nothing that a claim is about came up.
    """
    runs, third = cells(found, constant, "", SEEDS), cells(found, constant, THIRD, THIRD_SEEDS)
    times = seconds(found, constant)

    def lacks(needed: Cells, count: int, *ways: str, tasks: tuple[str, ...] = tuple(TASKS)) -> str:
        """A sentence where runs of these ways are missing, else the empty text."""
        missing = sum(max(0, count - len(needed[way, task])) for way in ways for task in tasks)
        of = count * len(ways) * len(tasks)
        return f"{missing} of {of} runs of {' and '.join(ways)} are missing" if missing else ""

    def held(way: str, needed: Cells = runs) -> list[str]:
        return [task for task in TASKS if holds(needed[way, task])]

    def named(tasks: list[str]) -> str:
        return f"{len(tasks)} ({', '.join(tasks)})" if tasks else "none"

    def fits_few(way: str, most: int) -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, way):
            return None, lack
        return len(held(way)) <= most, f"{WAYS[way]} holds {named(held(way))} of four tasks; wanted: at most {most}"

    def errs_to_both_sides() -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, "bonus"):
            return None, lack
        ratio = {
            task: fmean(run.number("entropy") / run.number("target") for run in runs["bonus", task]) for task in TASKS
        }
        weak, strong = min(ratio.values()) < 1 - BAND, max(ratio.values()) > 1 + BAND
        said = ", ".join(f"{task} {of_task:.2f}" for task, of_task in ratio.items())
        said += f"; wanted: below {1 - BAND} and above {1 + BAND}"
        return weak and strong, f"the constant's entropy over its target: {said}"

    def stare_holds_where_it_can() -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, "stare"):
            return None, lack
        able = [task for task in TASKS if min(numbers(runs["stare", task], "with_authority")) > 0.5]
        shares = {task: fmean(numbers(runs["stare", task], "in_band_with_authority")) for task in able}
        said = ", ".join(f"{task} {100 * share:.0f} %" for task, share in shares.items()) or "no task has it"
        every = all(share >= HELD for share in shares.values()) if able else None
        return every, f"STARE in band where most steps have authority: {said}; wanted: {100 * HELD:.0f} %"

    def both_hold_all() -> tuple[bool | None, str]:
        way = "stare+entropy_bonus"
        if lack := lacks(runs, 3, way):
            return None, lack
        return len(held(way)) == len(TASKS), f"{WAYS[way]} holds {named(held(way))} of four tasks; wanted: all"

    def adaptive_beats_constant() -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, "bonus", "entropy_bonus"):
            return None, lack
        adaptive, fixed = held("entropy_bonus"), held("bonus")
        said = f"the adaptive bonus holds {named(adaptive)}, the constant {named(fixed)}; wanted: more"
        return len(adaptive) > len(fixed), said

    def more_answers() -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, "stare", "grpo", tasks=SEVERAL_ANSWERS):
            return None, lack
        ratio = {
            task: fmean(numbers(runs["stare", task], "distinct_right"))
            / max(fmean(numbers(runs["grpo", task], "distinct_right")), 1e-9)
            for task in SEVERAL_ANSWERS
        }
        said = ", ".join(f"{task} {of_task:.2f}" for task, of_task in ratio.items())
        said += f"; wanted: {MORE_ANSWERS}"
        return min(ratio.values()) >= MORE_ANSWERS, f"STARE's distinct right answers over GRPO's: {said}"

    def little_reward_lost() -> tuple[bool | None, str]:
        if lack := lacks(runs, 3, "stare", "grpo"):
            return None, lack
        stare, grpo = (worst(runs, way) for way in ("stare", "grpo"))
        said = f"the worst task's reward is {stare:.3f} with STARE, {grpo:.3f} with GRPO"
        said += f"; wanted: at most {LOST_REWARD} below"
        return stare >= grpo - LOST_REWARD, said

    def holds_at_a_third() -> tuple[bool | None, str]:
        if lack := lacks(third, 1, "stare") or lacks(runs, 3, "stare"):
            return None, f"at a third of the learning rate: {lack}"
        first = {key: [run for run in of if run.seed in THIRD_SEEDS] for key, of in runs.items()}
        lower, usual = held("stare", third), held("stare", first)
        said = f"at a third of the learning rate STARE holds {named(lower)}, at 3e-4 {named(usual)}; wanted: no fewer"
        return len(lower) >= len(usual), said

    def little_time() -> tuple[bool | None, str]:
        if "stare" not in times:
            return None, "the runs of the cost are missing"
        return times["stare"] <= TIME, f"a step of STARE takes {times['stare']:.2f} of GRPO's; wanted: at most {TIME}"

    return [
        fits_few("bonus", MOST_HELD_BY_A_CONSTANT),
        errs_to_both_sides(),
        stare_holds_where_it_can(),
        both_hold_all(),
        adaptive_beats_constant(),
        fits_few("repo", MOST_HELD_BY_REPO),
        more_answers(),
        little_reward_lost(),
        holds_at_a_third(),
        little_time(),
    ]


def worst(runs: Cells, way: str) -> float:
    """The lowest of the tasks' mean rewards."""
    return min(fmean(numbers(runs[way, task], "reward")) for task in TASKS)


# ── the tables ──


def tables(found: list[Result], constant: str | None) -> str:
    """Markdown: a table of the ways, one of ways and tasks, one of the choice. A dash where all runs are missing."""
    runs, third = cells(found, constant, "", SEEDS), cells(found, constant, THIRD, THIRD_SEEDS)
    times = seconds(found, constant)

    def share(of: list[Result]) -> str:
        return f"{100 * fmean(numbers(of, 'in_band')):.0f} %" if of else "–"

    rows = [("", *(f"in band: {title}" for title in TASKS.values()), "worst reward", "step / GRPO's", "runs")]
    for way, title in WAYS.items():
        of_way = [runs[way, task] for task in TASKS]
        count = sum(map(len, of_way))
        worst_reward = f"{worst(runs, way):.3f}" if all(of_way) else "–"
        time = f"{times[way]:.2f}" if way in times else "–"
        rows.append((title, *map(share, of_way), worst_reward, time, f"{count} of {len(TASKS) * len(SEEDS)}"))

    figures = {"reward": 3, "distinct_right": 2, "pass@1": 3, "pass@8": 3, "pass@32": 3}
    head = ("task", "way", "seeds", "entropy / first", "in band", "reward", "distinct right answers")
    detail = [(*head, "pass@1", "pass@8", "pass@32", "verdict", "in band at lr 1e-4")]
    for task, of_task in TASKS.items():
        for way, title in WAYS.items():
            if not (of := runs[way, task]):
                continue
            ratios = [run.number("entropy") / run.number("first_entropy") for run in of]
            verdicts = ", ".join(str(run.figures["verdict"] or "–") for run in of)
            detail.append(
                (
                    of_task,
                    title,
                    ", ".join(str(run.seed) for run in of),
                    with_interval(ratios, 2),
                    with_interval([100 * value for value in numbers(of, "in_band")], 0) + " %",
                    *(with_interval(numbers(of, figure), digits) for figure, digits in figures.items()),
                    verdicts,
                    share(third[way, task]),
                )
            )

    choice = [("constant", "seed", "entropy", "target", "in band", "reward")]
    for result in sorted(found, key=lambda result: (result.arm, result.seed)):
        if result.arm.startswith("bonus_") and result.seed in CHOICE_SEEDS:
            values = (f"{result.number(figure):.3f}" for figure in ("entropy", "target"))
            rest = (f"{100 * result.number('in_band'):.0f} %", f"{result.number('reward'):.3f}")
            choice.append((result.arm.removeprefix("bonus_"), str(result.seed), *values, *rest))
    return "\n".join(results.markdown(of) for of in (rows, detail, choice) if len(of) > 1)


# ── the figure ──


def over_first(run: Result) -> list[float]:
    """The curve of the entropy as shares of the first one."""
    return [value / run.number("first_entropy") for value in run.stages[-1].curves["entropy"]]


def draw(found: list[Result], constant: str | None, path: Path) -> None:
    """A row for each task, a panel for each way: the entropy of each seed over the first one, and the band; at the
    right the rewards of all of them. What leaves a panel is said in it."""
    runs = cells(found, constant, "", SEEDS)
    with matplotlib.rc_context({**STYLE, "font.size": 8, "axes.titlesize": 8}):
        figure = Figure(figsize=(15, 8.5), dpi=130)
        grid = figure.subplots(len(TASKS), len(WAYS) + 1, squeeze=False)
        for row, (task, title) in zip(grid, TASKS.items(), strict=True):
            *panels, rewards = row
            for place, (ax, way) in enumerate(zip(panels, WAYS, strict=True)):
                ax.axhspan(SHARE * (1 - BAND), SHARE * (1 + BAND), color="#888888", alpha=0.2, lw=0)
                for run in runs[way, task]:
                    colour = COLOURS[SEEDS.index(run.seed)]
                    ax.plot(run.stages[-1].curves["step"], over_first(run), color=colour, lw=1.1)
                    rewards.scatter([run.number("reward")], [place], color=colour, s=16, alpha=0.8)
                highest = max([0.0, *(value for run in runs[way, task] for value in over_first(run))])
                if said := "no run yet" if not runs[way, task] else f"up to {highest:.1f}" if highest > TOP else "":
                    ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", color="#777777")
                ax.set(ylim=(0, TOP), xlim=(0, STEPS))
                ax.tick_params(labelleft=place == 0, labelbottom=task == [*TASKS][-1])
            panels[0].set_ylabel(f"{title}\nentropy / first entropy")
            rewards.set(xlim=(0, 1.02), ylim=(len(WAYS) - 0.5, -0.5))
            rewards.set_yticks(range(len(WAYS)), WAYS.values())
            rewards.tick_params(labelbottom=task == [*TASKS][-1])
        for ax, title in zip(grid[0], [*WAYS.values(), "all: reward, second half"], strict=True):
            ax.set_title(title)
        for ax in grid[-1][:-1]:
            ax.set_xlabel("step")
        grid[-1][-1].set_xlabel("reward")
        lines = [Line2D([], [], color=COLOURS[place], lw=2, label=f"seed {seed}") for place, seed in enumerate(SEEDS)]
        within = f"within {100 * BAND:.0f} % of the target, half of the first entropy"
        band = Patch(color="#888888", alpha=0.2, lw=0, label=within)
        figure.legend(handles=[*lines, band], loc="outside upper center", ncols=4, frameon=False)
        figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--choose", action="store_true", help="print the coefficient of the constant bonus")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("--png", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not args.choose and not (args.table and args.png):
        parser.error("give --choose, or --table FILE and --png FILE")

    found, constant = results.read(args.results), None
    try:
        constant = choose(found)
    except NoChoice as error:
        print(f"one_setting: {error}: run launch/one_setting_study.sh choice", file=sys.stderr)
        if args.choose:
            return 1
    if args.choose:
        print(constant)
        return 0
    text = tables(found, constant)
    args.table.write_text(text)
    draw(found, constant, args.png)
    print(text)
    return results.report(claims(found, constant))


if __name__ == "__main__":
    sys.exit(main())
