"""How long the command takes to refuse a mistake, in seconds by the clock and of processor time.

python launch/addends/make.py task && python tests/benchmarks/refusals.py task
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

REWARD = Path(__file__).resolve().parents[2] / "launch/addends/reward.py"
MISTAKES = (
    "--stare.variant X1",
    "--rollout.n_samples_per_prompt 1",
    "--ckpt.path /proc/nowhere",
    "--reward.remote_url nowhere.py",
    "--train.agent_func_path nowhere.py",
    "--data.prompt_dataset nowhere.jsonl",
    "--actor.model_name_or_path ./nowhere",
    "--data.max_len 100000",
    "--data.label_key nowhere",
)


def main(folder: str) -> None:
    flags = f"""--actor.model_name_or_path {folder}/model --data.prompt_dataset {folder}/prompts.jsonl
        --data.input_key input --data.label_key label --data.max_len 32 --reward.remote_url {REWARD}
        --advantage_estimator group_norm --rollout.n_samples_per_prompt 8 --algo.kl.init_coef 0
        --actor.num_gpus_per_node 2 --vllm.num_engines 1""".split()
    print(f"{'clock':>7} {'CPU':>6}  mistake and answer")
    for mistake in MISTAKES:
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "openrlhf_stare.train_ray", *flags, *mistake.split()]
        done = subprocess.run(command, env={**os.environ, "RAY_ADDRESS": "local"}, capture_output=True, text=True)
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert done.returncode == 2, done.stderr
        print(f"{seconds:6.1f}s {used:5.1f}s  {mistake}: {done.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main(sys.argv[1])
