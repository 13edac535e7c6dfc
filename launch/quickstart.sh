#!/usr/bin/env bash
# Trains a small language model with STARE on OpenRLHF, with three GPUs or none: launch/quickstart.sh [flags]
# The flags are those of train_ray; they come after the defaults, so they win.
# launch/quickstart.sh --policy_loss openrlhf shows what happens without STARE.
# STEPS=50 launch/quickstart.sh trains for 50 steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_steps=200
steps=${STEPS:-$default_steps}
[[ $steps =~ ^[1-9][0-9]*$ ]] || { echo "quickstart: STEPS=$steps is not a positive number" >&2; exit 2; }
prompts_per_step=16

export HF_HUB_OFFLINE=1                  # model and data are made here; nothing is fetched
export RAY_ADDRESS=${RAY_ADDRESS:-local} # a Ray of its own, unless you name a running one

say() { printf 'quickstart: %s\n' "$*"; }

bash launch/install.sh
python=$PWD/.venv/bin/python

# Every run has a folder of its own, named after the time and the flags.
home=$PWD/runs/quickstart
flags=$(tr -cs 'A-Za-z0-9._' '-' <<<"${*:-stare}")
flags=${flags#-}
name=$(date +%Y%m%d-%H%M%S)-${flags:0:60}
name=${name%-}
run=$home/$name
mkdir -p "$home"
mkdir "$run"

say "model and prompts"
"$python" launch/addends/make.py "$home" --prompts $((steps * prompts_per_step))
# A copy, because a run beside this one may want another number of prompts.
cp "$home/prompts.jsonl" "$run/prompts.jsonl"

job=(
    # Two actors and one engine; without a reference model, since there is no KL penalty.
    --actor.num_gpus_per_node 2 --vllm.num_engines 1 --algo.kl.init_coef 0
    --ds.zero_stage 3 --ds.param_dtype bf16

    --actor.model_name_or_path "$home/model"
    --data.prompt_dataset "$run/prompts.jsonl" --data.input_key input --data.label_key label --data.max_len 32
    --reward.remote_url "$PWD/launch/addends/reward.py"

    # 16 prompts with 8 responses each, and one optimizer step on all 128: 64 for each of the two actors.
    --rollout.batch_size "$prompts_per_step" --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 8
    --rollout.micro_batch_size 64 --train.batch_size 128 --train.micro_batch_size 64
    --actor.adam.lr 3e-4 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0

    # The token-level correction logs vllm_kl, which stays near 0 while vLLM has the actor's weights.
    --advantage_estimator group_norm --algo.advantage.is_correction_level token

    # So small a policy collapses fast: W needs larger steps and a higher ceiling than the defaults, which suit 7B.
    --stare.entropy exact --stare.target_entropy 0.4
    --stare.schedule adaptive --stare.alpha 0.2 --stare.w_max 20

    --logger.tensorboard_dir "$run/tensorboard" --logger.wandb.run_name "$name"
    --ckpt.path "$run/checkpoints" --ckpt.output_dir "$run/model"
)

say "$steps steps; the first one takes up to two minutes to come"
"$python" -m openrlhf_stare.train_ray "${job[@]}" "$@"

if [[ ! -d $run/tensorboard ]]; then
    (($# > 0)) || { echo "quickstart: the run left no logs in $run/tensorboard" >&2; exit 1; }
    say "no logs in $run/tensorboard, so no table" # --help, say, or logs that the flags sent elsewhere
    exit 0
fi

say "done; $name:"
# Only the run that the figures are known for is held to them: no flag changed, and long enough.
check=()
if (($# == 0 && steps >= default_steps)); then check=(--check); fi
status=0
"$python" launch/addends/table.py "$run/tensorboard" "${check[@]}" || status=$?
say "curves: .venv/bin/tensorboard --logdir ${home#"$PWD/"}"
say "trained model: ${run#"$PWD/"}/model"
exit "$status"
