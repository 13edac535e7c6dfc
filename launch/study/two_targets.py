"""Whether the entropy of a run followed its targets: python launch/study/two_targets.py RUN

Prints a line for each target, over the second half of the steps with it. Exit status 1: for one of them, less than
95 % of these steps are within the band around the target.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from openrlhf_stare.report.figures import BAND, ENTROPY, TARGET
from openrlhf_stare.report.reading import Run, read_run

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from results import run_folder  # noqa: E402


def follows(run: Run) -> list[tuple[bool, str]]:
    """For each target, in the order of the steps: whether the entropy followed, and a sentence with the figures."""
    entropy, target = run.finite(ENTROPY), run.finite(TARGET)
    found = []
    for value in dict.fromkeys(target.values):
        steps = target.steps[target.values == value]
        settled = entropy.values[np.isin(entropy.steps, steps[len(steps) // 2 :])]
        share = 100 * np.mean(np.abs(settled - value) <= BAND * value)
        found.append(
            (
                bool(share >= 95),
                f"target {value:.1f}, steps {steps[0]} to {steps[-1]}: entropy {settled.mean():.3f} ± "
                f"{settled.std():.3f}, {share:.1f} % of the steps within ±{100 * BAND:.0f} %; wanted: 95 %",
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=run_folder, metavar="RUN")
    args = parser.parse_args()

    found = follows(read_run(args.run, args.run.name))
    for holds, sentence in found:
        print("pass" if holds else "MISS", sentence)
    return 0 if len(found) == 2 and all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
