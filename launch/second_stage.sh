#!/usr/bin/env bash
# What held entropy is good for: a model that was trained on one rule is trained on under another one.
# Stage 1 is a run of launch/entropy_study.sh, by GRPO or by STARE with PI: any two digits with the right sum are right,
# for 400 steps. Stage 2 goes on from its final model for 200 steps, by GRPO or by STARE with PI to the target 0.15, and
# of the right pairs only the one with the smallest first addend is right: launch/second_stage/smallest.py.
# launch/second_stage.sh runs all four combinations with three seeds. Started again, it goes on with the runs that are
# missing or whose flags have changed since. The results are in runs/second_stage: report.html, curves.png and table.md.
# It ends with status 1 unless STARE after STARE ends at 0.95 or more, and 0.15 or more above GRPO after GRPO, on every
# seed: fixed before the runs, as everything here.
# RULE=closest takes launch/second_stage/closest.py instead. FIRST_STEPS=400 STEPS=200 SEEDS="0 1 2" JOBS=1 are the steps
# of the stages, the seeds and how many runs go on at a time.
# launch/second_stage.sh ARM SEED is one of the runs, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=(grpo-grpo pi-grpo grpo-pi pi-pi) # stage 1, stage 2
first_steps=${FIRST_STEPS:-400} steps=${STEPS:-200} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-1} rule=${RULE:-smallest}
positive FIRST_STEPS "$first_steps"
positive STEPS "$steps"
positive JOBS "$jobs"
reward=$PWD/launch/second_stage/$rule.py
[[ -f $reward ]] || { say "RULE=$rule is neither smallest nor closest" >&2; exit 2; }
first_home=$PWD/runs/entropy_study
home=$PWD/runs/second_stage
[[ $rule == smallest ]] || home=$home-$rule

if (($# == 0)); then
    train_all
    "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/second_stage.py "${runs[@]}" --first "$first_home" --table "$home/table.md" \
        --png "$home/curves.png"
fi

(($# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
first=${arm%-*}
run=$home/$arm-seed$seed inputs=$home/inputs-seed$seed
mkdir -p "$home"

addends_job "$first_home/$first-seed$seed/model" "$inputs/prompts.jsonl" "$run"
job+=(--train.seed "$seed" --reward.remote_url "$reward" --entropy.record_tokens 4)
case ${arm#*-} in
    grpo) job+=(--policy_loss openrlhf) ;;
    pi) pi_job 0.15 ;;
    *) say "$arm is not one of ${arms[*]}" >&2; exit 2 ;;
esac

# Two runs of stage 2 share a run of stage 1, which is trained once.
STEPS=$first_steps flock "$home/$first-seed$seed.lock" bash launch/entropy_study.sh "$first" "$seed"
begin_run
"$python" launch/addends/make.py "$inputs" --seed "$((seed + 100))" --only-prompts prompts.jsonl --prompts $((steps * prompts_per_step))
train
end_run
