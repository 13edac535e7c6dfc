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
# launch/any_task_study.sh trains them all. Each finished run becomes a line of docs/results/any_task.jsonl (of other steps,
# in bfloat16 or on a GPU one of another file there), and is not trained again, on whatever machine it was. The table is made
# from the lines; it and the report of the runs that are here are in runs/any_task_study. It ends with status 1 if a claim
# does not hold.
# STEPS=200 SEEDS="0 1 2" JOBS=2 are the steps of a run, the seeds and how many runs go on at a time.
# ARMS="routes-stare" are some of the arms only. An arm is TASK-METHOD, with -lr1e-4 behind it for another learning rate;
# launch/one_setting_study.sh has more methods, and strong_bonus, STARE with a bonus that may go to 1 instead of 0.2, was
# tried on reversal afterwards, since no other held it. `train` as the only argument: without table, report and claims.
# launch/any_task_study.sh ARM SEED is one of the runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

arms=({addends,reversal,own_task,routes,sorting}-{stare,grpo})
arms_of_the_user
usual_steps=200
steps=${STEPS:-$usual_steps} seeds=${SEEDS:-0 1 2} jobs=${JOBS:-2}
positive STEPS "$steps"
positive JOBS "$jobs"
home=$PWD/runs/any_task_study
entering=(--evaluate)
[[ ${1:-} != *-cost ]] || usual_steps=$steps # of a few steps, for their time
mkdir -p "$home"

if (($# == 0)) || [[ $* == train ]]; then
    train_all
    (($# == 0)) || exit 0
    results_of any_task
    ((${#runs[@]} == 0)) || "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/any_task.py "$results" --table "$home/table.md"
fi

(($# == 2)) || { say "give no arguments, train, or an arm and a seed" >&2; exit 2; }
arm=$1 seed=$2
IFS=- read -r task method variant <<<"$arm"
run=$home/$arm-seed$seed inputs=$home/inputs-$task-seed$seed
[[ -f launch/$task/make.py ]] || { say "$arm has no task in launch/$task" >&2; exit 2; }

# A seed decides on the model and its warm-up, on the prompts and on OpenRLHF's and vLLM's own random numbers. The longest
# answer, of the reversal task, has 8 tokens with its end.
addends_job "$inputs/model" "$inputs/prompts.jsonl" "$run"
job+=(--train.seed "$seed" --reward.remote_url "$PWD/launch/$task/reward.py" --rollout.max_new_tokens 10)
case $method in
    grpo) job+=(--policy_loss openrlhf) ;;
    bonus_*) bonus_job "${method#bonus_}" && job+=(--entropy.target 50%) ;; # logged, and not pursued
    stare | entropy_bonus | stare+entropy_bonus | repo)
        job+=(--policy_loss "$method" --entropy.schedule pi --entropy.target 50%)
        ;;
    strong_bonus)
        job+=(--policy_loss stare+entropy_bonus --entropy.schedule pi --entropy.target 50% --entropy_bonus.bound 1)
        ;;
    *) say "$arm has no method, such as grpo or stare" >&2; exit 2 ;;
esac
case $variant in
    "" | cost) ;; # a short run for its step time
    lr*) job+=(--actor.adam.lr "${variant#lr}") ;;
    *) say "$arm ends with neither a learning rate, such as -lr1e-4, nor -cost" >&2; exit 2 ;;
esac

results_of any_task
begin_run
"$python" "launch/$task/make.py" "$inputs" --seed "$seed" --prompts $((steps * prompts_per_step))
train
end_run
