#!/usr/bin/env bash
# A sparse reward: TPO against GRPO with and without a KL penalty on the reversal task, all else equal.
# launch/reversal_study.sh trains them all. Started again, it goes on with the runs that are missing or whose flags have
# changed since. The results are in runs/reversal_study: report.html, curves.png and table.md.
# STEPS=300 SEEDS="0 1 2" JOBS=1 are the steps of a run, the seeds and how many runs go on at a time.
# launch/reversal_study.sh ARM SEED is one of the runs, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=(tpo grpo grpo_kl)
(($# > 0)) || no_arms_of_the_user
steps=${STEPS:-300} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-1}
positive STEPS "$steps"
positive JOBS "$jobs"
home=$PWD/runs/reversal_study
prompts_per_step=32

if (($# == 0)); then
    train_all
    "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/reversal_results.py "${runs[@]}" --table "$home/table.md" --png "$home/curves.png"
fi

(($# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
run=$home/$arm-seed$seed inputs=$home/inputs-seed$seed

# What differs from a job of the addends task: 32 prompts with 8 responses each, trained on four times, with one
# optimizer step on all 256 each time. A seed decides on the model and its warm-up, on the prompts and on OpenRLHF's and
# vLLM's own random numbers.
addends_job "$inputs/model" "$inputs/prompts.jsonl" "$run"
job+=(
    --reward.remote_url "$PWD/launch/reversal/reward.py" --rollout.max_new_tokens 10
    --train.batch_size 256 --train.micro_batch_size 128 --train.max_epochs 4
    --algo.advantage.is_correction_level off --actor.adam.lr 1e-4 --train.seed "$seed"
)
case $arm in
    tpo) job+=(--policy_loss tpo --tpo.no_length_normalize) ;;
    grpo) job+=(--policy_loss openrlhf) ;;
    # GRPO's own penalty: k3 in the loss, with its coefficient.
    grpo_kl)
        job+=(--policy_loss openrlhf --algo.kl.init_coef 0.04 --algo.kl.use_loss --algo.kl.estimator k3)
        job+=(--ref.num_gpus_per_node 1)
        ;;
    *) say "$arm is not one of ${arms[*]}" >&2; exit 2 ;;
esac

begin_run
"$python" launch/reversal/make.py "$inputs" --seed "$seed" --prompts $((steps * prompts_per_step))
train
end_run
