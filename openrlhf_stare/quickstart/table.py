"""Prints what happened in a training run: python -m openrlhf_stare.quickstart.table RUN_DIR [--check]

Reads the TensorBoard logs under RUN_DIR. With --check it ends with status 1, and a sentence, unless the run shows
what the quickstart promises: the reward rose, the gate opened, and vLLM sampled with the actor's weights.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean, median

from openrlhf_stare import runtime
from openrlhf_stare.algorithms.verdict import ENTROPY, GATE, REWARD, TARGET
from openrlhf_stare.report.reading import LOGS, Run, read_run

ROWS = {
    "reward": REWARD,
    "entropy (nats)": ENTROPY,
    "gate": GATE,
}
LEAST_RISE = 0.3  # of the mean reward, from the first tenth of the run to the last
# |vllm_kl| of an engine that has the actor's weights is far below this in either type.
LARGEST_KL = {"bfloat16": 0.01, "float32": 1e-6}

Curves = dict[str, list[float]]


def read_one_run(run_dir: Path) -> Run:
    """The run whose logs are under `run_dir`.

    Raises:
        ValueError: there are logs of no run or of several.
    """
    folders = {path.parent for path in run_dir.rglob(LOGS)}
    if len(folders) != 1:
        raise ValueError(f"{run_dir} holds the logs of {len(folders)} runs; give the folder of one run")
    run = read_run(run_dir, run_dir.name)
    for note in run.notes:
        print(f"table: {note}", file=sys.stderr)
    return run


def curves_of(run: Run) -> Curves:
    """The logged figures of a run by name, each a list of its values in the order of the steps."""
    return {name: series.values.tolist() for name, series in run.scalars.items()}


def start_middle_end(values: list[float]) -> tuple[float, float, float]:
    """The means over the first, the central and the last tenth of the run, of one step at least."""
    tenth = max(1, len(values) // 10)
    central = (len(values) - tenth) // 2
    return fmean(values[:tenth]), fmean(values[central : central + tenth]), fmean(values[-tenth:])


def format_table(run: Run) -> str:
    """The table as text; a figure that was not logged has no row."""
    curves = curves_of(run)

    def line(name: str, *cells: str) -> str:
        return f"{name:<24}" + "".join(f"{cell:>9}" for cell in cells)

    lines = [line("", "start", "middle", "end")]
    for name, key in (ROWS | {key: key for key in run.strengths}).items():
        if curves.get(key):
            lines.append(line(name, *(f"{mean:.3f}" for mean in start_middle_end(curves[key]))))

    if target := curves.get(TARGET):
        lines.append(line("target entropy", f"{target[-1]:.3f}"))
    if gate := curves.get(GATE):
        lines.append(line("steps with an open gate", f"{sum(map(bool, gate))}/{len(gate)}"))
    if kl := curves.get("vllm_kl"):
        lines.append(line("|vllm_kl|, last step", f"{abs(kl[-1]):.1e}"))
    if seconds := curves.get("timing/step_total"):
        lines.append(line("seconds a step, median", f"{median(seconds):.2f}"))
    if found := run.verdict:
        lines.append(f"verdict: {found.sentence}")
    return "\n".join(lines)


def shortcomings(curves: Curves) -> list[str]:
    """One sentence for each promise of the quickstart that the run does not keep."""
    found = []
    rewards = curves.get(REWARD)
    if not rewards:
        found.append("No reward was logged.")
    else:
        start, _, end = start_middle_end(rewards)
        if not end - start >= LEAST_RISE:  # written so that NaN is a shortcoming
            found.append(f"The mean reward went from {start:.3f} to {end:.3f}, which is not a rise by {LEAST_RISE}.")
    gate = curves.get(GATE)
    if gate and not any(gate):
        found.append("The gate never opened: the entropy stayed above its target.")
    kl, largest = curves.get("vllm_kl"), LARGEST_KL["float32" if runtime.float32() else "bfloat16"]
    if not kl:
        found.append("vllm_kl was not logged, so nothing shows that vLLM had the actor's weights.")
    elif not (worst := max(map(abs, kl), key=lambda value: (math.isnan(value), value))) < largest:
        found.append(f"|vllm_kl| was up to {worst:.1e}, not below {largest:g}: vLLM had other weights.")
    return found


def show(run_dir: Path, check: bool) -> int:
    """Prints the table of the run. Returns 1, after a sentence, if it cannot be read or, with `check`, falls short."""
    try:
        run = read_one_run(run_dir)
    except ValueError as error:
        print(f"table: {error}", file=sys.stderr)
        return 1
    print(format_table(run))
    found = shortcomings(curves_of(run)) if check else []
    for sentence in found:
        print(f"table: {sentence}", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--check", action="store_true", help="end with status 1 unless the run shows what it should")
    args = parser.parse_args()
    return show(args.run_dir, args.check)


if __name__ == "__main__":
    sys.exit(main())
