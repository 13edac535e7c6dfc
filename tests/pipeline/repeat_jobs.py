"""python tests/pipeline/repeat_jobs.py [--runs 20] [--steps 3]: the same small job again and again.

Prints a line per run and ends with status 1 if any run hung, failed, logged a non-finite number or DeepSpeed's
placeholder for a grad norm, let vLLM's weights drift from the actor's, or left a process behind.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs import ROOT, job_flags, problems, run_job


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make = [sys.executable, ROOT / "launch/addends/make.py", folder, "--prompts", str(4 * options.steps)]
        subprocess.run(make, check=True)
        print("run  status  seconds  steps  max |vllm_kl|  grad norms           problems")
        for i in range(1, options.runs + 1):
            run = folder / f"run{i}"
            job = run_job(job_flags(folder, run), run)
            found = problems(job, options.steps)
            bad += bool(found)
            drift = max(map(abs, job.scalars.get("vllm_kl", [math.nan])))
            norms = " ".join(f"{norm:.3f}" for norm in job.scalars.get("actor_grad_norm", []))
            steps = len(job.scalars.get("actor_grad_norm", []))
            line = (
                f"{i:3}  {job.status:6}  {job.seconds:7.1f}  {steps:5}  {drift:13.5f}  {norms:20} {'; '.join(found)}"
            )
            print(line, flush=True)
            if found:
                print(job.output[-3000:])
    print(f"{options.runs - bad} of {options.runs} runs sound")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
