"""The results of the pretrained study: python launch/study/pretrained.py RESULTS --table FILE --png FILE

RESULTS is the study's file of results, see results.py. Writes the table, with ten answers of each arm's model, and the
curves, and prints for each claim of launch/pretrained_study.sh whether it holds. Exit status 1: one does not; claims
whose runs are missing are open.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from openrlhf_stare.algorithms.verdict import HELD
from openrlhf_stare.report.figures import COLOURS, STYLE

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
import results  # noqa: E402
from results import Result, with_interval  # noqa: E402

ARMS = {
    "grpo": "GRPO",
    "stare50": "STARE, 50 %",
    "stare20": "STARE, 20 %",
    "anneal": "STARE, 50 % to 20 %",
    "bonus_pi": "entropy bonus, PI, 20 %",
    "bonus": "entropy bonus, constant",
}
WITHOUT_TARGET = ("grpo", "bonus")
TO_RECOMMEND = ("stare50", "anneal", "stare20")  # the highest target first
AGAIN = "again"  # the sentences under the other rule
TASKS = ("sentences", AGAIN, "chain_sum", "countdown")
SEVERAL = ("sentences", "countdown")  # the tasks with several right answers
LOST, GAINED, DISTINCT = 0.05, 0.05, 1.25

Runs = dict[tuple[str, str, int], Result]  # by task, arm and seed


def runs_of(found: list[Result]) -> Runs:
    """In the order of tasks, seeds and arms."""
    in_order = sorted(found, key=lambda of: (TASKS.index(of.task), of.seed, list(ARMS).index(of.arm)))
    return {(result.task, result.arm, result.seed): result for result in in_order}


def in_band(result: Result) -> str:
    """Of the last third's steps with some authority the share in band, where the arm pursues a target."""
    if result.arm in WITHOUT_TARGET or result.task == AGAIN:
        return "–"
    share = result.figures["in_band_with_authority"]
    return "no authority" if share is None else f"{100 * float(share):.0f} %"


def table(runs: Runs) -> str:
    """Markdown tables: a row for each run; means over the seeds, where there are several; answers."""
    head = ("task, seed", "arm", "first entropy", "entropy", "in band", "with authority", "effort", "reward")
    rows = [(*head, "right of 16", "different right ones", "verdict", "computed in")]
    for (task, arm, seed), result in runs.items():
        held, effort = result.figures["with_authority"], result.figures["effort"]
        rows.append(
            (
                f"{task}, {seed}",
                ARMS[arm],
                f"{result.number('first_entropy'):.2f}",
                f"{result.number('entropy'):.2f}",
                in_band(result),
                "–" if held is None else f"{100 * float(held):.0f} %",
                "–" if effort is None else f"{float(effort):.2f}",
                f"{result.number('reward'):.3f}",
                f"{16 * result.number('right'):.1f}",
                f"{result.number('distinct_right'):.1f}",
                str(result.figures["verdict"] or "–"),
                result.machine["param_dtype"],
            )
        )
    read = [("task, seed", "arm", "ten answers, each to another held-out prompt; * is a right one")]
    for (task, arm, seed), result in runs.items():
        texts = " <br> ".join(
            f"{'*' if row['reward'] == 1 else ''}`{row['answer'].replace('|', '/')!r}`"
            for row in result.stages[-1].answers
        )
        read.append((f"{task}, {seed}", ARMS[arm], texts))
    means = over_seeds(runs)
    return "\n".join(map(results.markdown, (rows, means, read) if len(means) > 1 else (rows, read)))


def over_seeds(runs: Runs) -> list[tuple[str, ...]]:
    """The rows of a table: for each task and arm with several seeds means with their intervals.

    What is lost of GRPO's reward is that of GRPO with the same seed less the arm's.
    """
    rows = [("task", "arm", "seeds", "entropy", "reward", "lost of GRPO's", "right of 16", "different right ones")]
    for task, arm in dict.fromkeys((task, arm) for task, arm, _ in runs):
        seeds = [seed for *place, seed in runs if place == [task, arm]]
        if len(seeds) == 1:
            continue
        of = [runs[task, arm, seed] for seed in seeds]
        pairs = [(runs[task, "grpo", seed], runs[task, arm, seed]) for seed in seeds if (task, "grpo", seed) in runs]
        lost = [theirs.number("reward") - ours.number("reward") for theirs, ours in pairs]
        rows.append(
            (
                task,
                ARMS[arm],
                str(len(seeds)),
                with_interval([result.number("entropy") for result in of], 2),
                with_interval([result.number("reward") for result in of]),
                with_interval(lost) if lost and arm != "grpo" else "–",
                with_interval([16 * result.number("right") for result in of], 1),
                with_interval([result.number("distinct_right") for result in of], 1),
            )
        )
    return rows


def recommended(runs: Runs) -> tuple[str | None, dict[str, float]]:
    """The arm with the highest target that loses at most LOST of GRPO's reward anywhere, and the most that each loses
    in the runs that are there.

    None: every one loses more, or lacks a run beside one of GRPO's.
    """
    grpo = [(task, seed) for task, arm, seed in runs if arm == "grpo" and task != AGAIN]
    lost = {
        arm: [
            runs[task, "grpo", seed].number("reward") - runs[task, arm, seed].number("reward")
            for task, seed in grpo
            if (task, arm, seed) in runs
        ]
        for arm in TO_RECOMMEND
    }
    losses = {arm: max(of_arm) for arm, of_arm in lost.items() if of_arm}
    complete = [arm for arm in losses if len(lost[arm]) == len(grpo)]
    return next((arm for arm in complete if losses[arm] <= LOST), None), losses


def claims(runs: Runs) -> list[tuple[bool | None, str]]:
    """What the study is to show: whether it does, and a sentence with the figures; open where an arm lacks a seed."""
    best, losses = recommended(runs)
    # Without one to recommend the lowest target shows what holding is good for.
    example = best or TO_RECOMMEND[-1]
    found: list[tuple[bool | None, str]] = []
    for task in TASKS:
        compared = (example,) if task == AGAIN else TO_RECOMMEND
        for seed in sorted({seed for _, _, seed in runs}):
            missing = [ARMS[arm] for arm in ("grpo", *compared) if (task, arm, seed) not in runs]
            if missing:
                found.append((None, f"{task}, seed {seed}: no run yet of {'; '.join(missing)}"))
    for (task, arm, seed), result in runs.items():
        if task in SEVERAL and arm in ("stare50", "stare20"):
            share = result.figures["in_band_with_authority"]
            said = "no step has authority" if share is None else f"{100 * float(share):.0f} % of the steps are in band"
            found.append(
                (
                    None if share is None else float(share) >= HELD,
                    f"{task}, {ARMS[arm]}, seed {seed}: {said}; wanted: {100 * HELD:.0f} %",
                )
            )
    said = ", ".join(f"{ARMS[arm]} {loss:.3f}" for arm, loss in losses.items())
    seeds = {seed for _, _, seed in runs}
    complete = all((task, "grpo", seed) in runs for task in TASKS if task != AGAIN for seed in seeds)
    if losses:
        # Refuted when every one has lost more: an arm that lacks runs, or has none, may still be the one. It holds
        # only once every task has something to compare with.
        refuted = all(losses.get(arm, 0) > LOST for arm in TO_RECOMMEND)
        holds = True if best and complete else False if refuted else None
        found.append((holds, f"lost of GRPO's reward at most: {said}; wanted: one of at most {LOST}"))
    if best and complete:
        found.append((True, f"to recommend: {ARMS[best]}"))
    for (task, arm, seed), grpo in runs.items():
        if arm != "grpo" or (task, example, seed) not in runs:
            continue
        held, name = runs[task, example, seed], f"{task}, {ARMS[example]}, seed {seed}"
        if task in SEVERAL:
            ours, theirs = held.number("distinct_right"), grpo.number("distinct_right")
            said = f"{name}: {ours:.1f} different right answers; wanted: {DISTINCT} times GRPO's {theirs:.1f}"
            found.append((ours >= DISTINCT * theirs, said))
        elif task == AGAIN:
            ours, theirs = held.number("reward"), grpo.number("reward")
            said = f"{name}: reward {ours:.3f} under the other rule; wanted: {GAINED} above GRPO's model, {theirs:.3f}"
            found.append((ours >= theirs + GAINED, said))
    return found


def draw(runs: Runs, path: Path) -> None:
    """A row for each task: reward and entropy, a line for each arm and seed."""
    tasks = [task for task in TASKS if task in {task for task, _, _ in runs}]
    colours = dict(zip(ARMS, COLOURS, strict=False))
    with matplotlib.rc_context({**STYLE, "font.size": 8, "axes.titlesize": 9}):
        figure = Figure(figsize=(11, 1 + 3 * len(tasks)), dpi=130)
        grid = figure.subplots(len(tasks), 2, squeeze=False)
        for row, task in zip(grid, tasks, strict=True):
            for ax, curve, label, top in zip(
                row, ("reward", "entropy"), ("reward", "entropy (nats)"), (1.02, None), strict=True
            ):
                for (of, arm, _), result in runs.items():
                    if of == task:
                        curves = result.stages[-1].curves
                        ax.plot(curves["step"], curves[curve], color=colours[arm], lw=1.3)
                ax.set(ylim=(0, top), xlim=(0, None), xlabel="step", ylabel=label)
                ax.xaxis.get_major_locator().set_params(integer=True)
            row[0].set_title("sentences, the words the other way round" if task == AGAIN else task)
        drawn = [arm for arm in ARMS if arm in {arm for _, arm, _ in runs}]
        lines = [Line2D([], [], color=colours[arm], lw=2, label=ARMS[arm]) for arm in drawn]
        figure.legend(handles=lines, loc="outside upper center", ncols=6, frameon=False)
        figure.savefig(path)


def main() -> int:
    return results.present(__doc__.splitlines()[0], runs_of, table, draw, claims)


if __name__ == "__main__":
    sys.exit(main())
