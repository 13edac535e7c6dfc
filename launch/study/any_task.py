"""The results of the any-task study: python launch/study/any_task.py RESULTS --table FILE

RESULTS is the study's file of results, see results.py. Writes the table and prints for each claim whether it holds.
Exit status 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from openrlhf_stare.algorithms.verdict import BAND, HELD, HIGH_REWARD, LITTLE_AUTHORITY

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
import results  # noqa: E402

ONE_ANSWER = ("sorting",)  # the tasks with one right answer
LOST_REWARD = 0.01  # at most, where a task has one right answer


@dataclass(frozen=True)
class Pair:
    """A task and seed: STARE's run and GRPO's."""

    stare: results.Result
    grpo: results.Result

    @property
    def name(self) -> tuple[str, int]:
        return self.stare.task, self.stare.seed

    @property
    def in_band(self) -> float | None:
        """The share, within the band, of the steps with authority; None without any."""
        share = self.stare.figures["in_band_with_authority"]
        return None if share is None else float(share)

    @property
    def rewards(self) -> tuple[float, float]:
        return self.stare.number("reward"), self.grpo.number("reward")


def pairs(found: list[results.Result]) -> list[Pair]:
    """The tasks and seeds of which both runs are there, in the order of the seeds."""
    runs = {(result.task, result.arm, result.seed): result for result in found}
    return sorted(
        (
            Pair(stare, runs[task, "grpo", seed])
            for (task, arm, seed), stare in runs.items()
            if arm == "stare" and (task, "grpo", seed) in runs
        ),
        key=lambda pair: pair.name,
    )


def table(found: list[Pair]) -> str:
    """A markdown table, a row for each task and seed."""
    in_band = f"in band, of steps with authority ≥ {LITTLE_AUTHORITY}"
    head = ("task, seed", "first entropy", "target", "entropy", in_band, "steps with it", "reward")
    rows = [(*head, "GRPO: entropy", "in band", "reward", "verdict")]
    for pair in found:
        stare, grpo = pair.stare, pair.grpo
        rows.append(
            (
                "{}, {}".format(*pair.name),
                f"{stare.number('first_entropy'):.3f}",
                f"{stare.number('target'):.3f}",
                f"{stare.number('entropy'):.3f}",
                "–" if pair.in_band is None else f"{100 * pair.in_band:.0f} %",
                f"{100 * stare.number('with_authority'):.0f} %",
                f"{stare.number('reward'):.3f}",
                f"{grpo.number('entropy'):.3f}",
                f"{100 * grpo.number('in_band'):.0f} %",
                f"{grpo.number('reward'):.3f}",
                str(stare.figures["verdict"]),
            )
        )
    return results.markdown(rows)


def claims(found: list[Pair]) -> list[tuple[bool | None, str]]:
    """What the study is to show: whether it does, and a sentence with the figures."""
    claimed: list[tuple[bool | None, str]] = []
    for pair in found:
        task, seed = pair.name
        name, kind = f"{task}, seed {seed}", pair.stare.figures["verdict"]
        stare, grpo = pair.rewards
        if task in ONE_ANSWER:
            holds = stare >= grpo - LOST_REWARD and kind == "no authority" and stare > HIGH_REWARD
            wanted = f"at most {LOST_REWARD} lower, and no authority, since it is solved"
            claimed.append((holds, f"{name}: reward {stare:.3f}, GRPO's {grpo:.3f}, {kind}; wanted: {wanted}"))
        elif pair.stare.number("with_authority") <= 0.5 or pair.in_band is None:
            holds = kind in ("no authority", "held")
            claimed.append((holds, f"{name}: little authority in most steps, {kind}; wanted: a verdict that says so"))
        else:
            said = f"{name}: {100 * pair.in_band:.0f} % of the steps with authority are in band, {kind}"
            said += f"; reward {stare:.3f}, GRPO's {grpo:.3f}; wanted: {100 * HELD:.0f} %"
            if pair.grpo.number("in_band") >= HELD:
                held = f"{100 * pair.grpo.number('in_band'):.0f} %"
                said += f". GRPO held it too ({held}), so this shows nothing"
            claimed.append((pair.in_band >= HELD, said))
    return claimed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    found = pairs(results.read(args.results))
    if not found:
        print(f"any_task: {args.results} has no task with both a stare and a grpo run", file=sys.stderr)
        return 1
    text = table(found)
    args.table.write_text(text)
    print(text)
    print(f"Entropies in nats; in band is within ±{100 * BAND:.0f} % of the target, in the second half of the steps.")
    return results.report(claims(found))


if __name__ == "__main__":
    sys.exit(main())
