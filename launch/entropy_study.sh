#!/usr/bin/env bash
# The entropy study: GRPO and STARE fixed, adaptive and PI on the addends task, all else equal.
# launch/entropy_study.sh trains and evaluates them all. Started again, it goes on
# with the runs that are missing or whose flags have changed since. The results are in runs/entropy_study: report.html,
# entropy.png and table.md. It ends with status 1 if a claim about them does not hold.
# STEPS=400 SEEDS="0 1 2" JOBS=1 are the steps of a run, the seeds and how many runs go on at a time. A run takes about
# 8 minutes on 2 CPU cores.
# launch/entropy_study.sh ARM SEED is one of the runs, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=(grpo fixed adaptive pi)
(($# > 0)) || no_arms_of_the_user # a run alone may be another study's first stage
steps=${STEPS:-400} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-1}
positive STEPS "$steps"
positive JOBS "$jobs"
home=$PWD/runs/entropy_study
# As in launch/second_stage.sh, which goes on from these runs, and would train them anew in another type.
export OPENRLHF_STARE_CPU_DTYPE=${OPENRLHF_STARE_CPU_DTYPE:-float32}

if (($# == 0)); then
    train_all
    "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/summary.py "${runs[@]}" --table "$home/table.md" --png "$home/entropy.png"
fi

(($# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
run=$home/$arm-seed$seed inputs=$home/inputs-seed$seed

# A seed decides on the model and its warm-up, on the prompts and on OpenRLHF's and vLLM's own random numbers.
addends_job "$inputs/model" "$inputs/prompts.jsonl" "$run"
job+=(--train.seed "$seed" --entropy.record_tokens 4 --entropy.target 0.4)
# So small a policy needs a far higher ceiling of W than 7B does, and fewer tokens to bear it, or more of the reward is
# lost.
case $arm in
    grpo) job+=(--policy_loss openrlhf) ;;
    fixed) job+=(--entropy.schedule gate --stare.reweight_w 1.1) ;; # the paper's values
    adaptive) job+=(--entropy.schedule adaptive --entropy.step 0.5 --stare.w_max 60 --stare.top_p_ratio 0.05) ;;
    pi) pi_job 0.4 ;;
    bonus_*) bonus_job "${arm#bonus_}" ;; # stage 1 of launch/second_stage.sh
    *) say "$arm is not one of ${arms[*]}" >&2; exit 2 ;;
esac

begin_run
# The model knows more of the arithmetic than the quickstart's: one that has it still to learn learns it slower under a high
# W than under GRPO.
"$python" launch/addends/make.py "$inputs" --seed "$seed" --warm-up 400 \
    --prompts $((steps * prompts_per_step))
train
"$python" launch/study/evaluate.py addends "$run/model" -o "$run/evaluation.json"
end_run
