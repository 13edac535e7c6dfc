#!/usr/bin/env bash
# Any task: STARE under PI to half of the first entropy, with the same flags on five tasks, beside GRPO, all else equal.
# The flags are --policy_loss stare --entropy.schedule pi --entropy.target 50% and nothing more of STARE's. Their defaults
# come from the studies of the addends task; nothing was tuned on own_task, routes and sorting.
#
# Written before the runs. Expected, for each seed:
#   1. addends, reversal, own_task and routes have several right answers or are long in learning: of the steps of the second
#      half in which authority is 20 % or more, 90 % are within 25 % of the target; or, where most have less authority, the
#      verdict says so.
#   2. sorting has one right answer: the reward of the second half is within 0.01 of GRPO's, and the verdict is "no
#      authority", solved.
# It is refuted where a run of 1 has enough authority in most steps and less than 90 % of them in band, whatever its
# verdict, or where sorting loses more than 0.01 or has another verdict. GRPO's own entropy shows whether there was
# anything to hold: a task on which GRPO stays within the band shows nothing, and the table says so.
# launch/any_task_study.sh trains them all. Started again, it goes on with the runs that are missing or whose flags have
# changed since. The results are in runs/any_task_study: report.html and table.md. It ends with status 1 if a claim does
# not hold.
# STEPS=200 SEEDS="0 1 2" JOBS=2 are the steps of a run, the seeds and how many runs go on at a time.
# ARMS="routes-stare" are some of the arms only. launch/any_task_study.sh ARM SEED is one of them, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=(${ARMS:-{addends,reversal,own_task,routes,sorting}-{stare,grpo}})
steps=${STEPS:-200} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-2}
positive STEPS "$steps"
positive JOBS "$jobs"
home=$PWD/runs/any_task_study

if (($# == 0)); then
    train_all
    "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/any_task.py "${runs[@]}" --table "$home/table.md"
fi

(($# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
task=${arm%-*}
run=$home/$arm-seed$seed inputs=$home/inputs-$task-seed$seed
[[ -f launch/$task/make.py ]] || { say "$arm has no task in launch/$task" >&2; exit 2; }

# A seed decides on the model and its warm-up, on the prompts and on OpenRLHF's and vLLM's own random numbers. The longest
# answer, of the reversal task, has 8 tokens with its end.
addends_job "$inputs/model" "$inputs/prompts.jsonl" "$run"
job+=(--train.seed "$seed" --reward.remote_url "$PWD/launch/$task/reward.py" --rollout.max_new_tokens 10)
case $arm in
    *-grpo) job+=(--policy_loss openrlhf) ;;
    *-stare) job+=(--policy_loss stare --entropy.schedule pi --entropy.target 50%) ;;
    *) say "$arm ends with neither -stare nor -grpo" >&2; exit 2 ;;
esac

begin_run
# One at a time, since runs beside each other share the inputs of their task and seed.
flock "$home" "$python" "launch/$task/make.py" "$inputs" --seed "$seed" --prompts $((steps * prompts_per_step))
train
end_run
