"""A job on prompts that `openrlhf_stare.data` prepared, with the mathematics reward and two evaluation sets."""

import json
import re
import subprocess
import sys

from jobs import ROOT, assert_figures, assert_sound, job_flags, run_job


def test_prepared_data_and_the_mathematics_reward_with_answers_that_never_end(addends, tmp_path):
    prompts = sorted({json.loads(line)["input"] for line in (addends / "prompts.jsonl").read_text().splitlines()})
    assert len(prompts) == 15  # 02= to 16=
    sources = {"deepscaler": prompts, "aime24": ["05="], "aime25": ["07=", "08="]}
    words = []
    for name, problems in sources.items():
        rows = [json.dumps({"problem": problem, "answer": problem.rstrip("=").lstrip("0")}) for problem in problems]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        words.append(f"{name}={tmp_path}/{name}.jsonl")
    data = tmp_path / "data"
    command = [sys.executable, "-m", "openrlhf_stare.data", *words, "--out", str(data), "--template", "none"]
    prepared = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    *_, flags = prepared.stdout.splitlines()

    flags = [*job_flags(addends, tmp_path), *flags.partition(": ")[2].split()]
    flags += ["--reward.remote_url", str(ROOT / "tests/pipeline/rewards/boxed_addends.py")]
    flags += ["--entropy.target", "0.01"]  # the gate stays shut
    flags += ["--eval.steps", "3", "--eval.n_samples_per_prompt", "2", "--eval.temperature", "1"]
    job = run_job(flags, tmp_path, timeout=480)

    assert_sound(job, steps=3)  # 12 prompts are left, and no verifier outlives the job
    assert_figures(job, rollouts=3)
    assert job.scalars["entropy/gate_on"] == [0, 0, 0]
    assert job.scalars["stare/mean_weight"] == [1, 1, 1]
    assert all(0 < reward < 1 for reward in job.scalars["reward"])
    assert all(0 < boxed <= 1 for boxed in job.scalars["boxed"])
    # An answer that hangs costs itself and no other.
    assert sum(job.scalars["nines"]) > 0
    assert job.scalars["verifier_failed"] == job.scalars["nines"]
    assert "The verifier took too long over '9^{9^{9^{9}}}'" in job.output
    assert set(re.findall(r"eval_\w+_pass\w+", job.output)) == {
        f"eval_{name}_pass{k}" for name in ("aime24", "aime25") for k in (1, 2)
    }
