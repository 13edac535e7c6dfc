#!/usr/bin/env bash
# Trains on the task of this folder: launch/own_task/train.sh [flags of train_ray, which win]
# To make a task of your own, copy the folder to another place below launch/ and change reward.py, make.py and the values
# that are marked CHANGE here. docs/own_task.md goes through it.
# STEPS=200 are the training steps, MODEL a model of yours, a folder or a name on the Hugging Face Hub.
set -euo pipefail
task=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$task/../.."
source launch/run_job.sh
export RAY_ADDRESS=${RAY_ADDRESS:-local} # a Ray of its own, unless you name a running one

steps=${STEPS:-200} prompts_per_step=16
home=$PWD/runs/${task##*/}
run=$home/$(date +%Y%m%d-%H%M%S)
mkdir -p "$run"

# A step takes --rollout.batch_size prompts, so the file needs steps × prompts_per_step lines. With fewer, raise
# --train.num_episodes: the passes over the file.
make=("$PWD/.venv/bin/python" "$task/make.py" "$home" --prompts $((steps * prompts_per_step)))
if [[ -n ${MODEL:-} ]]; then "${make[@]}" --only-prompts prompts.jsonl; else "${make[@]}"; fi
cp "$home/prompts.jsonl" "$run/prompts.jsonl"

flags=(
    --actor.model_name_or_path "${MODEL:-$home/model}"
    --data.prompt_dataset "$run/prompts.jsonl" --data.input_key input --data.label_key label
    --reward.remote_url "$task/reward.py"

    # CHANGE: the longest prompt plus the longest response, and the longest response alone, in tokens.
    --data.max_len 32 --rollout.max_new_tokens 8
    # OpenRLHF's default, 1, forbids the end token in the first place, and the policy is never told.
    --rollout.min_new_tokens 0
    # CHANGE: 3e-4 suits a model of some 100,000 parameters; 1e-6, OpenRLHF's default, teaches it nothing and suits 7B.
    --actor.adam.lr 3e-4 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0

    # 16 prompts with 8 responses each, which are compared with one another, and one optimizer step on all 128.
    --rollout.batch_size "$prompts_per_step" --rollout.n_samples_per_prompt 8 --train.batch_size 128
    --rollout.micro_batch_size 64 --train.micro_batch_size 64
    --advantage_estimator group_norm --algo.kl.init_coef 0

    # Half of the entropy that the model starts with is held. No value of another task is needed.
    --policy_loss stare --entropy.schedule pi --entropy.target 50%

    # Two actors and one engine: three GPUs, or none.
    --actor.num_gpus_per_node 2 --vllm.num_engines 1 --ds.zero_stage 3 --ds.param_dtype bf16
    --logger.tensorboard_dir "$run/tensorboard" --logger.wandb.run_name run
    --ckpt.path "$run/checkpoints" --ckpt.output_dir "$run/model" --console compact
)
run_job "$PWD/.venv/bin/python" -m openrlhf_stare.train_ray "${flags[@]}" "$@"
if [[ ! -d $run/tensorboard ]]; then exit; fi # nothing was trained, as with --look
"$PWD/.venv/bin/python" -m openrlhf_stare.report "$run" -o "$run/report.html"
echo "report: $run/report.html; trained model: $run/model"
