"""The results of the pretrained study: python launch/study/pretrained.py RUN [RUN …] --table FILE

A RUN is the folder of one task, arm and seed, such as sentences-stare20-seed0, with its TensorBoard logs and its
answers.json. Writes the table and prints for each claim whether it holds. Exit status 1: one does not.
python launch/study/pretrained.py --choose RUN RUN prints the learning rate of the run with the higher mean reward,
which stands in its name: chain_sum-lr1e-5-seed90.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_stare.algorithms.verdict import AUTHORITY, BAND, ENTROPY, HELD, LITTLE_AUTHORITY, TARGET
from openrlhf_stare.report.figures import REWARD
from openrlhf_stare.report.reading import Run, read_runs

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from results import report  # noqa: E402

ARMS = {
    "grpo": "GRPO",
    "stare50": "STARE, 50 %",
    "stare20": "STARE, 20 %",
    "anneal": "STARE, 50 % to 20 %",
    "bonus_pi": "entropy bonus, PI, 20 %",
    "bonus": "entropy bonus, constant",
}
TO_RECOMMEND = ("stare50", "anneal", "stare20")  # the highest target first
TASKS = ("chain_sum", "countdown", "sentences")
SEVERAL = ("countdown", "sentences")  # the tasks with several right answers
AGAIN = "again"  # the sentences under the other rule
LOST, GAINED, DISTINCT = 0.05, 0.05, 1.25


@dataclass(frozen=True)
class Result:
    """One run: its logs, and what launch/pretrained/answers.py found."""

    run: Run
    answers: dict[str, float]

    def last_third(self, *tags: str) -> np.ndarray:
        values = self.run.finite(*tags).values
        return values[len(values) - max(1, len(values) // 3) :]

    @property
    def reward(self) -> float:
        return float(self.last_third(*REWARD).mean())

    @property
    def in_band(self) -> float | None:
        """Of the last third's steps with some authority the share within BAND of the target; None without any."""
        entropy, target, authority = (self.last_third(tag) for tag in (ENTROPY, TARGET, AUTHORITY))
        able = authority >= LITTLE_AUTHORITY
        return float(np.mean(np.abs(entropy - target)[able] <= BAND * target[able])) if able.any() else None


Results = dict[tuple[str, str, int], Result]  # by task, arm and seed


def read(folders: list[Path]) -> Results:
    """The results of the folders.

    Raises:
        ValueError: a folder has another name.
    """
    results: Results = {}
    for folder, run in zip(folders, read_runs(folders), strict=True):
        named = re.fullmatch(r"(\w+?)-(\w+)-seed(\d+)", folder.name)
        if not named:
            raise ValueError(f"{folder.name} is not TASK-ARM-seedNUMBER")
        answers = json.loads((folder / "answers.json").read_text())
        results[named[1], named[2], int(named[3])] = Result(run, answers)
    return results


def table(results: Results) -> str:
    """A markdown table, a row for each run."""
    head = ("task, seed", "arm", "first entropy", "entropy", "in band", "authority", "reward")
    rows = [(*head, "right of 16", "different right ones", "verdict"), ("---",) * 10]
    for (task, arm, seed), result in results.items():
        in_band = result.in_band if result.run.finite(TARGET) else None
        rows.append(
            (
                f"{task}, {seed}",
                ARMS[arm],
                f"{result.run.finite(ENTROPY).values[0]:.2f}",
                f"{result.last_third(ENTROPY).mean():.2f}",
                "–" if in_band is None else f"{100 * in_band:.0f} %",
                f"{result.last_third(AUTHORITY).mean():.2f}",
                f"{result.reward:.3f}",
                f"{16 * result.answers['right']:.1f}",
                f"{result.answers['distinct_right']:.1f}",
                result.run.verdict.kind if result.run.verdict else "–",
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def recommended(results: Results) -> tuple[str | None, dict[str, float]]:
    """The arm with the highest target that loses at most LOST of GRPO's reward anywhere, and the most that each loses.

    None: every one loses more. An arm whose runs are not all there is not considered.
    """
    losses: dict[str, float] = {}
    grpo = [(task, seed) for task, arm, seed in results if arm == "grpo" and task in TASKS]
    for arm in TO_RECOMMEND:
        pairs = [(results[task, "grpo", seed], results.get((task, arm, seed))) for task, seed in grpo]
        if pairs and all(held for _, held in pairs):
            losses[arm] = max(plain.reward - held.reward for plain, held in pairs)
    return next((arm for arm, loss in losses.items() if loss <= LOST), None), losses


def claims(results: Results) -> list[tuple[bool, str]]:
    """What the study is to show: whether it does, and a sentence with the figures."""
    found = []
    for (task, arm, seed), result in results.items():
        if task in SEVERAL and arm in ("stare50", "stare20"):
            in_band = result.in_band
            said = "no step has authority" if in_band is None else f"{100 * in_band:.0f} % of the steps are in band"
            found.append(
                (
                    in_band is None or in_band >= HELD,
                    f"{task}, {ARMS[arm]}, seed {seed}: {said}; wanted: {100 * HELD:.0f} %",
                )
            )
    best, losses = recommended(results)
    said = ", ".join(f"{ARMS[arm]} {loss:.3f}" for arm, loss in losses.items())
    found.append((best is not None, f"lost of GRPO's reward at most: {said}; wanted: one of at most {LOST}"))
    if best:
        found.append((True, f"to recommend: {ARMS[best]}"))
    # Without one to recommend the lowest target shows what holding is good for.
    arm = best or TO_RECOMMEND[-1]
    for (task, other, seed), grpo in results.items():
        if other != "grpo" or (task, arm, seed) not in results:
            continue
        held, name = results[task, arm, seed], f"{task}, {ARMS[arm]}, seed {seed}"
        if task in SEVERAL:
            ours, theirs = held.answers["distinct_right"], grpo.answers["distinct_right"]
            said = f"{name}: {ours:.1f} different right answers; wanted: {DISTINCT} times GRPO's {theirs:.1f}"
            found.append((ours >= DISTINCT * theirs, said))
        elif task == AGAIN:
            said = f"{name}: reward {held.reward:.3f} under the other rule; wanted: {GAINED} above GRPO's model"
            found.append((held.reward >= grpo.reward + GAINED, f"{said}, {grpo.reward:.3f}"))
    return found


def chosen_rate(folders: list[Path]) -> str:
    """The learning rate in the name of the run with the highest mean reward."""
    best = max(zip(folders, read_runs(folders), strict=True), key=lambda pair: pair[1].finite(*REWARD).values.mean())
    return re.search(r"-lr(.+)-seed", best[0].name)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("--choose", action="store_true", help="print the better learning rate")
    args = parser.parse_args()
    if args.choose:
        print(chosen_rate(args.runs))
        return 0
    if not args.table:
        parser.error("give --table FILE or --choose")

    results = read(args.runs)
    text = table(results)
    args.table.write_text(text)
    print(text)
    return report(claims(results))


if __name__ == "__main__":
    sys.exit(main())
