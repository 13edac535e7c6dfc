#!/usr/bin/env bash
# What of the GPU stack can be tried without a GPU: launch/try_gpu_wheels.sh [FOLDER]
# Copies this checkout into FOLDER, installs the real GPU stack there (9 GB; 4 minutes and more), and looks at the
# table of substitutions, all imports, the optimizer, every recipe's preflight and a job that ends for want of a GPU.
# Without FOLDER it is a new one, which is deleted in the end. PYTHON names the Python, as for launch/install.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${1:-}
if [[ -z $folder ]]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"
cp -r launch openrlhf_stare pyproject.toml README.md LICENSE "$folder"
cd "$folder"
source launch/run_job.sh
run_job bash launch/install.sh gpu

say() { printf 'try_gpu_wheels: %s\n' "$*"; }
export OPENRLHF_STARE_CPU=0 RAY_ADDRESS=local HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=
python=.venv/bin/python
run_job "$python" launch/gpu_wheels.py

say "every recipe's preflight, with a small model in the place of its own"
[[ -f task/prompts.jsonl ]] || "$python" launch/addends/make.py task --prompts 64 >/dev/null
small=(MODEL="$PWD/task/model" DATA="$PWD/task/prompts.jsonl" EVAL_DATA= CHAT_TEMPLATE=0 PROMPT_TOKENS=8 RESPONSE_TOKENS=24)
for recipe in launch/recipes/*_*.sh; do
    run_job env "${small[@]}" RUN="$PWD/task/run" bash "$recipe" --preflight --dry-run >task/preflight.log 2>&1 ||
        { cat task/preflight.log; say "$recipe failed"; exit 1; }
    say "$(basename "$recipe"): $(tail -n 1 task/preflight.log)"
done

say "a job on one GPU, which is not there"
source launch/addends/job.sh
addends_job "$PWD/task/model" "$PWD/task/prompts.jsonl" "$PWD/task/run"
job+=(--actor.num_gpus_per_node 1 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep)
status=0
run_job "$python" -m openrlhf_stare.train_ray "${job[@]}" >task/job.log 2>&1 || status=$?
tail -n 1 task/job.log
[[ $status == 2 && $(tail -n 1 task/job.log) == "train_ray: error: the job needs 1 GPUs "*"but the Ray cluster has 0 GPUs"* ]]
say "all of it went as it should"
