#!/usr/bin/env bash
# Learning on and on: five rules on one policy, 120 steps each, every stage from the final model of the one before.
#   any       two digits with the right sum         3 to 10 right answers to a prompt
#   smallest  with the smallest first addend        1
#   closest   that differ by at most 1              1 or 2
#   largest   with the largest first addend         1
#   even      with an even first addend             1 to 5
# Four ways to train, the same in all stages: grpo; bonus, the constant entropy bonus that launch/one_setting_study.sh
# chose; and stare and stare+entropy_bonus under PI to 0.4 nats, which is about half of the first entropy. The target is in
# nats, because a stage is a job of its own: 50 % would be half of what the stage before left. Three new seeds, 6, 7 and 8,
# of which 6 and 7 come first and are enough for the claims; the model is that of launch/entropy_study.sh, with 400 steps of
# supervised training. All of it was written before the runs. Others claim that policies whose entropy is preserved stay
# trainable in sequence: REPO, arXiv 2603.11682.
#
# Claims; an end is the mean reward of the last 20 steps of a stage, the mean of the seeds, "later" the mean of the stages 2
# to 5, in which the rule has changed:
#   1. GRPO loses: its later ends are 0.10 or more below STARE's.
#   2. STARE learns every rule: each of its ends is 0.80 or more.
#   3. STARE's trainability does not wear out: its end of stage 5 is at most 0.10 below that of stage 2.
#   4. A constant is no better: the later ends of bonus are at most 0.05 above STARE's.
#   5. With the bonus that needs no authority, STARE is no worse: the later ends of stare+entropy_bonus are at most 0.05
#      below STARE's.
#
# launch/sequence_study.sh runs them all. A policy that has gone through all five becomes a line of
# docs/results/sequence.jsonl (of other steps, in bfloat16 or on a GPU one of another file there), and is not trained
# again, on whatever machine it was; one that was interrupted goes on from the last stage whose model is here. The
# results are in runs/sequence_study: curves.png and table.md. It ends with status 1 if a claim does not hold. A policy
# takes 8 to 15 minutes on 2 cores.
# ARMS="stare" are some of the ways only. STEPS=120 SEEDS="6 7 8" JOBS=2 are the steps of a stage, the seeds and how many
# policies go on at a time. launch/sequence_study.sh ARM SEED [STAGE] is one of them, up to the stage of this number.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

rules=(any smallest closest largest even)
arms=(grpo bonus stare stare+entropy_bonus)
(($# > 0)) || some_arms_of_the_user # a run alone is checked against all
usual_steps=120
steps=${STEPS:-$usual_steps} seeds=${SEEDS:-6 7 8} jobs=${JOBS:-2}
positive STEPS "$steps"
positive JOBS "$jobs"
home=$PWD/runs/sequence_study
mkdir -p "$home"

if (($# == 0)); then
    train_all
    results_of sequence
    exec "$python" launch/study/sequence.py "$results" --table "$home/table.md" --png "$home/curves.png"
fi

(($# == 2 || $# == 3)) || { say "give no arguments, or an arm, a seed and, if you like, a stage" >&2; exit 2; }
way=$1 seed=$2 stage=${3:-${#rules[@]}}
[[ $stage =~ ^[1-5]$ ]] || { say "stage $stage is not one of 1 to 5" >&2; exit 2; }
# folder STAGE: of its run.
folder() { echo "$home/${rules[$1 - 1]}-$way-seed$seed"; }
arm=${rules[stage - 1]}-$way
run=$(folder "$stage") inputs=$home/inputs-seed$seed
results_of sequence
if ((stage < ${#rules[@]})); then
    results="" # the last one's line has all stages
else
    entering=(--after)
    for ((before = 1; before < stage; before++)); do entering+=("$(folder $before)"); done
fi

if ((stage == 1)); then
    model=$inputs/model prompts=prompts.jsonl reward=$PWD/launch/addends/reward.py
else
    model=$(folder $((stage - 1)))/model prompts=prompts-$stage.jsonl
    reward=$PWD/launch/second_stage/${rules[stage - 1]}.py
fi
addends_job "$model" "$inputs/$prompts" "$run"
job+=(--train.seed "$seed" --reward.remote_url "$reward" --entropy.record_tokens 4)
case $way in
    grpo) job+=(--policy_loss openrlhf) ;;
    bonus)
        constant=$(chosen_bonus)
        bonus_job "$constant"
        ;;
    stare | stare+entropy_bonus) job+=(--policy_loss "$way" --entropy.schedule pi --entropy.target 0.4) ;;
    *) say "$way is not one of ${arms[*]}" >&2; exit 2 ;;
esac

begin_run
if ((stage > 1)); then run_job bash launch/sequence_study.sh "$way" "$seed" $((stage - 1)); fi
# Each stage has prompts in another order.
make=(launch/addends/make.py "$inputs" --seed $((seed + 100 * (stage - 1))) --prompts $((steps * prompts_per_step)))
if ((stage == 1)); then make+=(--warm-up 400); else make+=(--only-prompts "$prompts"); fi
"$python" "${make[@]}"
train
end_run
