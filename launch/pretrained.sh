#!/usr/bin/env bash
# Trains a pretrained language model on a task, with or without GPUs, and without a Hub: launch/pretrained.sh [flags]
# The flags are those of train_ray; they come after the defaults, so they win. launch/pretrained.sh --policy_loss openrlhf
# shows what happens without STARE.
# TASK=sums, chain_sum, countdown or sentences, or any task of reasoning-gym with a colon and its settings behind it.
# STEPS=30 are the training steps. MODEL=… is an instruction-tuned model of your own, a folder or a name on the Hub. RUN=…
# is the run's folder; by default each combination of these and the flags has its own. Started again after an
# interruption, the same command goes on from the run's newest checkpoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source launch/addends/job.sh
source launch/pretrained/job.sh
source launch/python.sh

task=${TASK:-sums} steps=${STEPS:-30}
positive STEPS "$steps"
look_at "$task"
home=$PWD/runs/pretrained
name=$(folder_name "$task" "$steps" "$@")
run=${RUN:-$home/$name}
begun=$name
[[ ! -f $run/begun ]] || begun=$(<"$run/begun")
if [[ $begun != "$name" ]]; then
    for made in checkpoints/_actor tensorboard model; do
        [[ ! -d $run/$made ]] ||
            { say "RUN=$run has a run of other settings, $begun: give another folder for $name" >&2; exit 2; }
    done
    rm -rf "$run/prompts" # there was only a --look, say
fi

# What the task lacks is told before gigabytes are fetched. Without any Python that fits the next line ends the script.
first=$(first_python)
[[ -z $gym || -x $python || -z $first ]] || "$first" launch/pretrained/install_tasks.py --check
run_job bash launch/install.sh
gpus=$(visible_gpus)
if ((gpus == 0)); then export OPENRLHF_STARE_CPU=1; fi
[[ -z $gym ]] || "$python" launch/pretrained/install_tasks.py
mkdir -p "$run"
echo "$name" >"$run/begun"

say "model and prompts"
[[ -z ${MODEL:-} ]] || unset HF_HUB_OFFLINE
model=$("$python" launch/pretrained/model.py "$home" ${MODEL:+--model "$MODEL"})
# A run that goes on has its own prompts, in their order.
[[ -f $run/prompts/eval.jsonl ]] || make_prompts "$run/prompts" $((steps * prompts_per_step)) 0

pretrained_job "$model" "$run/prompts/train.jsonl" "$run"
# Half of the entropy that the policy starts with, at a rate at which 30 steps show what becomes of it.
job+=(--entropy.target 50% --actor.adam.lr 2e-5)
case $gpus in
0) machine="the CPU" ;;
1) machine="one GPU" ;;
*) machine="two GPUs" ;;
esac
if [[ " $* " != *" --policy_loss"* ]]; then job+=(--policy_loss stare --entropy.schedule pi); fi

if [[ -f $run/answers.json ]]; then
    say "${run#"$PWD/"} is complete: these are its results; RUN=FOLDER trains in another folder"
else
    say "$steps steps on $machine, in ${run#"$PWD/"}"
    run_job "$python" -m openrlhf_stare.train_ray "${job[@]}" "$@"
    [[ -d $run/model ]] || exit 0 # --help, say
    say "ten answers, and sixteen to each held-out prompt"
    scorer=$(last_value --reward.remote_url "$reward" "$@")
    [[ $scorer == *.py ]] || scorer=$reward # a server is not asked
    run_job "$python" launch/pretrained/answers.py "$run/model" "$run/prompts/eval.jsonl" "$scorer" \
        --tokens "$(last_value --rollout.max_new_tokens "$max_new_tokens" "$@")" -o "$run/answers.json"
fi

say "done:"
"$python" -m openrlhf_stare.quickstart.table "$run/tensorboard"
"$python" launch/pretrained/answers.py --show "$run/answers.json"
"$python" -m openrlhf_stare.report "$run" -o "$run/report.html"
folder=${run#"$PWD/"}
say "report: $folder/report.html; trained model: $folder/model"
say "checkpoints, of no more use: $folder/checkpoints/_actor"
