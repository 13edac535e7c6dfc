#!/usr/bin/env bash
# Trains a small language model with STARE on OpenRLHF, with or without GPUs: launch/quickstart.sh [flags]
# The flags are those of train_ray; they come after the defaults, so they win.
# launch/quickstart.sh --policy_loss openrlhf shows what happens without STARE.
# STEPS=50 launch/quickstart.sh trains for 50 steps. OPENRLHF_STARE_CPU=1 trains on the CPU, whatever GPUs there are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source launch/addends/job.sh

default_steps=200
steps=${STEPS:-$default_steps}
positive STEPS "$steps"

gpus=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU) || true
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then # of which Ray sees no others
    visible=$(tr -cd , <<<"$CUDA_VISIBLE_DEVICES" | wc -c)
    if [[ -z $CUDA_VISIBLE_DEVICES ]]; then visible=0; else visible=$((visible + 1)); fi
    gpus=$((visible < gpus ? visible : gpus))
fi
if [[ ${OPENRLHF_STARE_CPU:-0} == 1 ]] || ((gpus == 0)); then
    gpus=0
    export OPENRLHF_STARE_CPU=1
fi
bash launch/install.sh

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

addends_job "$home/model" "$run/prompts.jsonl" "$run"
job+=(--entropy.target 50%) # of what the policy starts with
# For so small a model vLLM needs little memory; with more of it, it would take half a minute to divide it into blocks.
if ((gpus > 0)); then job+=(--vllm.gpu_memory_utilization 0.2 --vllm.enforce_eager); fi
case $gpus in
0) machine="the CPU" ;;
1) # actor and engine take turns on it
    machine="one GPU"
    job+=(--actor.num_gpus_per_node 1 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep)
    ;;
2) # one for each
    machine="two GPUs"
    job+=(--actor.num_gpus_per_node 1)
    ;;
*) machine="three GPUs" ;;
esac
if [[ " $* " != *" --policy_loss"* ]]; then job+=(--entropy.schedule pi); fi

say "$steps steps on $machine"
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
# With --ckpt.load_enable and nothing to resume from.
sed -n 's/^openrlhf-stare: \(no checkpoint in .*\)/\1/p' "$run/checkpoints/output.log" 2>/dev/null | tail -n 1 || :
"$python" -m openrlhf_stare.report "$run" -o "$run/report.html"
say "report: ${run#"$PWD/"}/report.html"
say "curves: .venv/bin/tensorboard --logdir ${home#"$PWD/"}"
say "trained model: ${run#"$PWD/"}/model"
exit "$status"
