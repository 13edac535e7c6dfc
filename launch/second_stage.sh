#!/usr/bin/env bash
# What held entropy is good for: a model that was trained on one rule is trained on under another one.
# Stage 1 is a run of launch/entropy_study.sh, where any two digits with the right sum are right, for 400 steps: by GRPO, by
# STARE under PI with the target 0.4, or with the constant entropy bonus that launch/one_setting_study.sh chose. Stage 2
# goes on from its final model for 200 steps, by GRPO or by STARE under PI with the target 0.15, under one of two rules:
#   smallest  of the right pairs only the one with the smallest first addend: launch/second_stage/smallest.py
#   closest   only those that differ by at most 1: launch/second_stage/closest.py
# Five pairs of stages, grpo-grpo, stare-grpo, grpo-stare, stare-stare and bonus-grpo, and three seeds. All of it was
# written before the runs, and the seeds 3, 4 and 5 are new: the rule `smallest` was reported on the seeds 0, 1 and 2.
#
# Claims, for each rule; an end is the mean reward of the last 20 steps. The first two are those of the earlier runs, of
# which the first was not held there.
#   1. STARE → STARE ends at 0.95 or more on every seed.
#   2. STARE → STARE ends 0.15 or more above GRPO → GRPO on every seed.
#   3. Held entropy is what counts: STARE → GRPO ends above GRPO → GRPO on every seed, and 0.10 or more in the mean.
#   4. STARE in stage 2 is neither needed then nor of help without: STARE → STARE and STARE → GRPO are within 0.05 of one
#      another in the mean, and GRPO → STARE ends 0.10 or more below STARE → GRPO.
#   5. How it was held does not count: bonus → GRPO ends within 0.05 of STARE → GRPO in the mean.
#
# launch/second_stage.sh runs them all. Each finished run becomes a line of docs/results/second_stage.jsonl, with its
# stage 1 (of other steps, in bfloat16 or on a GPU one of another file there); a run whose line is there is not trained
# again, on whatever machine it was. Otherwise stage 1 is trained first, if its model is not here. The results are in
# runs/second_stage: curves.png, table.md, and report.html of the runs that are here. It ends with status 1 if a claim
# does not hold.
# ARMS="closest-grpo-grpo" are some of the arms only. FIRST_STEPS=400 STEPS=200 SEEDS="3 4 5" JOBS=1 are the steps of the
# stages, the seeds and how many runs go on at a time. launch/second_stage.sh ARM SEED is one of the runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=({smallest,closest}-{grpo-grpo,stare-grpo,grpo-stare,stare-stare,bonus-grpo}) # rule, stage 1, stage 2
(($# > 0)) || some_arms_of_the_user # a run alone is checked against all
usual_first_steps=400 usual_steps=200
first_steps=${FIRST_STEPS:-$usual_first_steps} steps=${STEPS:-$usual_steps} seeds=${SEEDS:-3 4 5} jobs=${JOBS:-1}
positive FIRST_STEPS "$first_steps"
positive STEPS "$steps"
positive JOBS "$jobs"
first_home=$PWD/runs/entropy_study
home=$PWD/runs/second_stage
((first_steps == usual_first_steps)) || model_steps=$first_steps
mkdir -p "$home"

if (($# == 0)); then
    train_all
    ((${#runs[@]} == 0)) || "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    results_of second_stage
    exec "$python" launch/study/second_stage.py "$results" --table "$home/table.md" --png "$home/curves.png"
fi

(($# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
IFS=- read -r rule before after <<<"$arm"
check_arms "$arm"
reward=$PWD/launch/second_stage/$rule.py
[[ -f $reward ]] || { say "$arm has no rule in launch/second_stage, such as smallest or closest" >&2; exit 2; }
case $before in
    grpo) first=grpo ;;
    stare) first=pi ;;
    bonus) first=bonus_$(chosen_bonus) ;;
esac
run=$home/$arm-seed$seed inputs=$home/inputs-seed$seed
entering=(--after "$first_home/$first-seed$seed")

addends_job "$first_home/$first-seed$seed/model" "$inputs/prompts.jsonl" "$run"
job+=(--train.seed "$seed" --reward.remote_url "$reward" --entropy.record_tokens 4)
case $after in
    grpo) job+=(--policy_loss openrlhf) ;;
    stare) pi_job 0.15 ;;
esac

results_of second_stage
begin_run
# Several runs of stage 2 share a run of stage 1, which is trained once.
exec 8>"$home/$first-seed$seed.lock"
run_job flock 8 || true # fails on a file system without locks alone
STEPS=$first_steps run_job bash launch/entropy_study.sh "$first" "$seed"
exec 8>&-
"$python" launch/addends/make.py "$inputs" --seed "$((seed + 100))" --only-prompts prompts.jsonl \
    --prompts $((steps * prompts_per_step))
train
end_run
