"""python tests/pipeline/kill_jobs.py [--kills 20] [--seed 0] [--steps 10] [--parallel 1]: jobs that lose a process.

Each job saves a checkpoint after every step and loses one process to SIGKILL: the first five jobs within a second
after a random step's end, from step 2 on, when there is a checkpoint to go on from; the next five at a random moment
between their start and their usual end, most of which is start-up; and so on. Each has to end by itself, with a
message that names what died and no process left, and the same command with --ckpt.load_enable has to reach the last
step, having lost at most the step at hand. Prints a line per kill; ends with status 1 if any had a problem, or before
them if the whole job that shows the usual time had one.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from jobs import ROOT, Cluster, Job, job_flags, marked_processes, problems, run_job

from openrlhf_stare.actor_group.checkpoints import is_complete

# What is killed -> how its command line starts (the driver's is known), and how the job then calls it. Ray shows our
# actors by OpenRLHF's class while they run a method, and by ours in between.
TARGETS = {
    "actor rank": (("ray::PolicyModelActor", "ray::StarePolicyActor"), "an actor rank (PolicyModelActor, process "),
    "engine": (("ray::RolloutRayActor", "ray::StareRolloutActor"), "a vLLM engine (RolloutRayActor, process "),
    "engine core": ("VLLM::EngineCore", "a vLLM engine (RolloutRayActor, process "),
    "trainer": ("ray::PPOTrainer", "the trainer (PPOTrainer, process "),
    "driver": (None, ""),
}
BOUND = 60  # seconds from the kill to the end of the job
PATIENCE = 240  # seconds that a job has to come to the point at which it is to be killed


@dataclass
class Kill:
    """SIGKILL for one process of a job, for `run_job(meanwhile=…)`.

    It comes `moment` seconds after the job's log shows `shown` (after the start if that is ""), but not before the
    process is there.
    """

    target: str
    log: Path
    moment: float = 0
    shown: str = ""
    pid: int | None = None  # of the process killed; None: the job ended first
    seconds: float = 0  # from the start of the job to the kill

    def __call__(self, process: subprocess.Popen, mark: str) -> None:
        start = time.monotonic()
        title, _ = TARGETS[self.target]
        due = math.inf
        while process.poll() is None and self.seconds < PATIENCE:
            self.seconds = time.monotonic() - start
            if due == math.inf and self.shown in self.log.read_text(errors="replace"):
                due = self.seconds + self.moment
            if self.seconds >= due:
                found = [pid for pid, command in marked_processes(mark).items() if title and command.startswith(title)]
                if found or not title:
                    self.pid = random.choice(found) if title else process.pid
                    os.kill(self.pid, signal.SIGKILL)
                    return
            time.sleep(0.1)

    def problems(self, job: Job) -> list[str]:
        """What is wrong with the end of the job: a sentence each."""
        found = []
        if job.status in (0, 124):
            found.append("it hung" if job.status else "it ended with status 0")
        if job.seconds - self.seconds > BOUND:
            found.append(f"it ended {job.seconds - self.seconds:.0f} s after the kill")
        if TARGETS[self.target][1] not in last_line(job):
            found.append("its last line does not name what died")
        if job.left_over:
            found.append(f"it left {len(job.left_over)} processes: {job.left_over[0][:80]}")
        return found


def last_line(job: Job) -> str:
    return job.output.rstrip().rpartition("\n")[2]


def steps_shown(job: Job) -> list[int]:
    return [int(step) for step in re.findall(r"Global step (\d+):", job.output)]


def killed_job(flags: list[str], run: Path, target: str, cluster: Cluster | None = None, **when) -> tuple[Job, Kill]:
    kill = Kill(target, run / "output.log", **when)
    return run_job(flags, run, timeout=2 * BOUND, cluster=cluster, meanwhile=kill), kill


def resumed_job(flags: list[str], run: Path, steps: int) -> tuple[Job, int, list[str]]:
    """The same command with --ckpt.load_enable: the job, the step it resumed from, and what is wrong with it."""
    job = run_job([*flags, "--ckpt.load_enable"], run)
    resumed = re.search(r"Resuming from checkpoint global_step(\d+)", job.output)
    start = int(resumed[1]) if resumed else 0
    seen = steps_shown(job)
    found = []
    if job.status:
        found.append(f"resumed, it ended with status {job.status}")
    if job.left_over:
        found.append(f"resumed, it left {len(job.left_over)} processes")
    if seen != list(range(start + 1, steps + 1)):
        found.append(f"resumed from step {start}, it took the steps {seen}")
    if not is_complete(run / f"checkpoints/_actor/global_step{steps}"):
        found.append(f"resumed, it left no complete checkpoint of step {steps}")
    return job, start, found


def kill_and_resume(folder: Path, number: int, options: argparse.Namespace, usual: float) -> tuple[str, bool]:
    """The line for one kill, and whether all was well."""
    target = list(TARGETS)[number % len(TARGETS)]
    chance = random.Random(f"{options.seed} {number}")
    trained = number // len(TARGETS) % 2 == 0  # killed when it has a checkpoint
    kill = None
    while not (kill and kill.pid):  # the job ended first: another moment
        run = Path(tempfile.mkdtemp(prefix=f"kill{number}-", dir=folder))
        flags = [*job_flags(folder, run), "--ckpt.save_steps", "1"]
        if trained:
            when = {"shown": f"Global step {chance.randint(2, options.steps)}:", "moment": chance.random()}
        else:
            when = {"moment": chance.uniform(0, usual)}
        job, kill = killed_job(flags, run, target, **when)
        usual = min(usual, job.seconds)  # the whole job at the start may have had a busier machine
    reached = max(steps_shown(job), default=0)
    resumed, start, found = resumed_job(flags, run, options.steps)
    # A step is shown right before its checkpoint is written, and in a log that lags a little.
    if start < reached - 1:
        found.insert(0, f"it had reached step {reached}, but resumed from step {start}")
    found = kill.problems(job) + found
    line = (
        f"{number + 1:3}  {target:13}  {kill.seconds:6.1f}  {job.seconds - kill.seconds:6.1f}  {job.status:6}  "
        f"{reached:7}  {start:7}  {'; '.join(found) or 'none'}\n     {last_line(job)[:300]}"
    )
    if found:
        line += f"\n{job.output[-4000:]}\n── resumed ──\n{resumed.output[-4000:]}"
    return line, not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time; each takes about 5 GB")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: a kill after the first checkpoint needs 2 or more")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make = [sys.executable, ROOT / "launch/addends/make.py", folder, "--prompts", str(4 * options.steps)]
        subprocess.run(make, check=True)
        with ThreadPoolExecutor(options.parallel) as pool:
            # As many at a time as later, since they slow each other down.
            runs = [folder / f"whole{i}" for i in range(options.parallel)]
            whole = list(pool.map(lambda run: run_job(job_flags(folder, run), run), runs))
            found = [problem for job in whole for problem in problems(job, options.steps)]
            usual = max(job.seconds for job in whole)
            print(f"A whole job: {usual:.1f} s. Problems: {'; '.join(found) or 'none'}")
            if found:
                return 1
            print("  n  killed         second  to end  status  reached  resumed  problems; the killed job's last line")
            sound = []
            for line, good in pool.map(
                lambda number: kill_and_resume(folder, number, options, usual), range(options.kills)
            ):
                print(line, flush=True)
                sound.append(good)
    print(f"{sum(sound)} of {options.kills} kills sound")
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
