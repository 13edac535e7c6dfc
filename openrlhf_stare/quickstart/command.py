"""Trains a small language model with STARE on OpenRLHF, with or without GPUs: openrlhf-stare quickstart [flags]

The flags are those of train_ray (openrlhf-stare --help); they come after the quickstart's own, so they win.
  openrlhf-stare quickstart --policy_loss openrlhf     shows what happens without STARE
  STEPS=50 openrlhf-stare quickstart                   trains for 50 steps instead of 200
  OPENRLHF_STARE_CPU=1 openrlhf-stare quickstart       trains on the CPU, whatever GPUs there are
Each run has a new folder under runs/quickstart in the current folder, for its logs, its report and its model.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from pathlib import Path

from openrlhf_stare import runtime
from openrlhf_stare.driver import seams
from openrlhf_stare.options import UsageError
from openrlhf_stare.quickstart import flags

STEPS = 200
MACHINES = ("the CPU", "one GPU", "two GPUs", "three GPUs")  # of more it uses three


def main(words: list[str]) -> int:
    """Run the command with these flags of train_ray. Returns its exit status.

    Raises:
        SystemExit: with train_ray's status where training ended otherwise than well.
    """
    if {"-h", "--help"} & set(words):
        print(__doc__, end="")
        return 0
    try:
        look_for_the_stack(words)
        steps = number_of_steps()
        gpus = min(runtime.gpus(), 3)
        run = new_folder(words)
    except UsageError as error:
        print(f"quickstart: error: {error}", file=sys.stderr)
        return 2
    if gpus == 0:
        os.environ[runtime.CPU_VARIABLE] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"  # model and data are made here; nothing is fetched
    os.environ["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS") or "local"  # a Ray of its own, unless one is named

    say("model and prompts")
    prompts = make_task(run, steps * flags.PROMPTS_PER_STEP)
    say(f"{steps} steps on {MACHINES[gpus]}")
    train([*job(gpus, run, prompts, words), *words])

    if not (run / "tensorboard").is_dir():
        if not words:
            print(f"quickstart: the run left no logs in {run}/tensorboard", file=sys.stderr)
            return 1
        say(f"no logs in {run}/tensorboard, so no table")  # of a --preflight, say, or the flags sent them elsewhere
        return 0
    # Only the run that the figures are known for is held to them: no flag changed, and long enough.
    return show(run, check=not words and steps >= STEPS)


def say(sentence: str) -> None:
    print(f"quickstart: {sentence}", flush=True)


def look_for_the_stack(words: list[str]) -> None:
    """Look for all that the job and its report need, before anything is made.

    Raises:
        UsageError: something is not installed, or is another version than is needed.
    """
    seams.check(insist=seams.INSIST in words)
    for module in ("tensorboard", "matplotlib", "jinja2"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f'{module} is not installed: install "openrlhf-stare[report]"')


def number_of_steps() -> int:
    """What STEPS in the environment says, or the default.

    Raises:
        UsageError: it is not a positive number.
    """
    steps = os.environ.get("STEPS") or str(STEPS)
    if not re.fullmatch("[1-9][0-9]*", steps):
        raise UsageError(f"STEPS={steps} is not a positive number")
    return int(steps)


def new_folder(words: list[str]) -> Path:
    """A folder for the run, named after the time and the flags.

    Raises:
        UsageError: it cannot be made.
    """
    from openrlhf_stare.driver.flags import POLICY_LOSS, SECRET  # here, since it takes torch along

    shown = re.sub(rf"{re.escape(SECRET)}[ =]\S+", "", " ".join(words))
    given = re.sub("[^A-Za-z0-9._]+", "-", shown or POLICY_LOSS).strip("-")[:60].rstrip("-")
    run = Path.cwd() / "runs" / "quickstart" / f"{time.strftime('%Y%m%d-%H%M%S')}-{given}"
    try:
        run.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"{run} cannot be made ({error.strerror}): go to a folder in which you can write, and start it there"
        ) from None
    return run


def make_task(run: Path, prompts: int) -> Path:
    """Makes the model in the folder above the run's, unless it is there, and the run's prompts. Returns their file."""
    # After HF_HUB_OFFLINE is set, and seconds after the first line is shown.
    from openrlhf_stare.quickstart import small_model, task

    small_model.make(task.TASK, run.parent / "model")
    file = run / "prompts.jsonl"
    small_model.write_prompts(file, task.make_prompts(prompts))
    return file


def job(gpus: int, run: Path, prompts: Path, words: list[str]) -> list[str]:
    """The quickstart's own flags on so many GPUs, which are at most 3, before the words that the user gave."""
    model = str(run.parent / "model")
    own = flags.words(model, str(prompts), str(run), flags.REWARD, flags.PROMPTS_PER_STEP)
    own += ["--entropy.target", "50%"]  # of what the policy starts with
    if gpus:
        # For so small a model vLLM needs little memory; more of it would take half a minute to divide into blocks.
        own += ["--vllm.gpu_memory_utilization", "0.2", "--vllm.enforce_eager"]
    if gpus in (1, 2):
        own += ["--actor.num_gpus_per_node", "1"]
    if gpus == 1:  # actor and engine take turns on it
        own += ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep"]
    if not any(word.startswith("--policy_loss") for word in words):
        own += ["--entropy.schedule", "pi"]
    return own


def train(words: list[str]) -> None:
    """Train in this process.

    Raises:
        SystemExit: with its status, where training ended otherwise than well.
    """
    from openrlhf_stare import train_ray

    sys.argv[1:] = words
    try:
        train_ray.main()
    except SystemExit as end:
        if end.code:
            raise


def show(run: Path, check: bool) -> int:
    """The table, the report, and where everything is. Returns 1 if the run is checked and fell short."""
    from openrlhf_stare.quickstart import table
    from openrlhf_stare.report import __main__ as report

    say(f"done; {run.name}:")
    status = table.show(run / "tensorboard", check)
    report.main([str(run), "-o", str(run / "report.html")])
    say(f"report: {shown(run / 'report.html')}")
    say(f"curves: {shown(Path(sys.executable).with_name('tensorboard'))} --logdir {shown(run.parent)}")
    say(f"trained model: {shown(run / 'model')}")
    return status


def shown(path: Path) -> Path:
    """The path as one would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
