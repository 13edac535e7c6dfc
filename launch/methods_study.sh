#!/usr/bin/env bash
# The methods side by side: GRPO, each method as published, and each that has a strength under PI to the target 0.4.
# Stage 1 is the addends task for 400 steps. Stage 2 goes on from its final model for 200 steps with the same flags and
# the rule of launch/second_stage/smallest.py; PI's target is 0.15 there, as in launch/second_stage.sh. Each rollout has
# two optimizer steps, since kl_cov and ce_gppo do nothing in the first. All of this was fixed before the runs.
# launch/methods_study.sh trains them all. Started again, it goes on with the runs that are missing or whose flags have
# changed since. The results are in runs/methods_study: report.html, methods.png and table.md.
# The step times in the table can be compared only with JOBS=1 and nothing else on the machine.
# STEPS=400 AGAIN_STEPS=200 SEEDS="0 1 2" JOBS=1 are the steps of the stages, the seeds and how many go on at a time.
# ARMS="grpo stare_pi" are some of the arms only. launch/methods_study.sh ARM SEED is one of them, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

published=(stare kl_cov clip_cov high_entropy entropy_bonus sign_weights ce_gppo)
controlled=(stare_pi kl_cov_pi clip_cov_pi high_entropy_pi entropy_bonus_pi sign_weights_pi)
arms=(${ARMS:-grpo "${published[@]}" "${controlled[@]}"})
usual_steps=400
steps=${STEPS:-$usual_steps} again_steps=${AGAIN_STEPS:-200} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-1}
positive STEPS "$steps"
positive AGAIN_STEPS "$again_steps"
positive JOBS "$jobs"
home=$PWD/runs/methods_study

if (($# == 0)); then
    train_all
    "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/methods.py "${runs[@]}" --table "$home/table.md" --png "$home/methods.png"
fi
if (($# == 2)); then
    run_job bash "launch/$script.sh" "$1" "$2" 1
    exec bash "launch/$script.sh" "$1" "$2" 2
fi

(($# == 3)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2 stage=$3
method=${arm%_pi}
first=$home/$arm-seed$seed inputs=$home/inputs-seed$seed
if ((stage == 1)); then
    run=$first target=0.4
    addends_job "$inputs/model" "$inputs/prompts.jsonl" "$run"
else
    ((steps == usual_steps)) || model_steps=$steps
    run=$home/again/$arm-seed$seed target=0.15 steps=$again_steps
    addends_job "$first/model" "$inputs/prompts-again.jsonl" "$run"
    job+=(--reward.remote_url "$PWD/launch/second_stage/smallest.py")
fi
job+=(--train.seed "$seed" --entropy.record_tokens 4 --train.batch_size 64 --train.micro_batch_size 32)
case $arm in
    grpo) job+=(--policy_loss openrlhf) ;;
    # Under PI each method has its own bound.
    stare_pi) pi_job "$target" ;;
    *_pi) job+=(--policy_loss "$method" --entropy.schedule pi --entropy.k_p 3.9 --entropy.k_i 0.05 --entropy.target "$target") ;;
    # The published constants, which are the defaults; the target of those that have one, too.
    *) job+=(--policy_loss "$method") ;;
esac

begin_run
if ((stage == 1)); then
    "$python" launch/addends/make.py "$inputs" --seed "$seed" --warm-up 400 \
        --prompts $((steps * prompts_per_step))
else
    "$python" launch/addends/make.py "$inputs" --seed $((seed + 100)) \
        --only-prompts prompts-again.jsonl --prompts $((steps * prompts_per_step))
fi
train
((stage == 2)) || "$python" launch/study/evaluate.py addends "$run/model" -o "$run/evaluation.json"
end_run
