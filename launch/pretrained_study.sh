#!/usr/bin/env bash
# A pretrained model: what entropy to hold, on three tasks. SmolLM2-135M-Instruct (launch/pretrained/model.py) is trained
# by GRPO, by STARE under PI at 50 % and at 20 % of its first entropy and from 50 % to 20 % over the first two thirds of the
# run, by the entropy bonus under PI at 20 %, and with a constant bonus of 0.01. The tasks:
#   chain_sum  two or three terms of one digit, with plus and minus: one right answer
#   countdown  three numbers, plus and minus, after 40 steps of supervised training on right expressions: several
#   sentences  a sentence with two given words: any number of them
# Then each arm's model of the sentences goes on by GRPO under another rule, launch/sentences/reversed.py: the words the
# other way round, for 20 steps. Two seeds, a learning rate of 2e-5: at 1e-5 30 steps of chain_sum had not brought the
# entropy down to half. All of this was fixed before the runs.
# A first part, seed 0 of the sentences and of the other rule, was computed in bfloat16. GRPO's entropy took 26 of its 40
# steps to fall to 20 %, and STARE at 20 % acted in two steps and could not be judged. In float32, with seed 1, it took 16:
# rounding to bfloat16 slows the learning. Since that run the study computes in float32 where there is no GPU. The arms of
# the sentences with seed 1 are trained in the order GRPO, annealed, 50 %, 20 %, the constant bonus; then those with seed 0:
# GRPO, 20 %, 50 %, annealed, the constant bonus; then those of chain_sum in the same order; then those of countdown: GRPO,
# 50 %, 20 %, the constant bonus, annealed; then the others. (Countdown was to come before seed 0 of the sentences and was put
# behind it, and then behind chain_sum, each time before its first step on a CPU: its prompts have 128 tokens where those of
# the sentences have 50. So was the bonus under PI on chain_sum with seed 0 put before countdown, which needs two hours.
# On countdown GRPO's entropy was below half in one step of 40, so its further arms come after all others.)
#
# Claims, for each seed, over the last third of the steps:
#   1. held: STARE at 50 % and at 20 % are within 25 % of their target in 90 % of the steps with an authority of 20 % or
#      more, on countdown and sentences.
#   2. what it costs: of the three STARE arms at least one loses at most 0.05 of GRPO's reward on all tasks; that with the
#      highest target among them is the one to recommend.
#   3. what it is good for: that arm's model has at least 1.25 times as many different right answers to a prompt, of 16,
#      as GRPO's, on countdown and sentences.
#   4. and afterwards: under the other rule, the mean reward of the last third from that arm's model is at least 0.05
#      higher than from GRPO's.
# They are refuted where one of them does not hold; the table says which.
#
# launch/pretrained_study.sh trains them all, one at a time, which takes more than a day of two cores: first a seed's
# sentences, then the other rule, then the other tasks. Each finished run becomes a line, with ten answers, of
# docs/results/pretrained_40_float32.jsonl, and is not trained again, on whatever machine it was; one that was interrupted
# here goes on from its newest checkpoint. The results are in runs/pretrained_study/float32: table.md and curves.png of all
# lines, report.html of the runs that are here. It ends with status 1 if a claim does not hold.
# STEPS=40 AGAIN_STEPS=20 SEEDS="0 1" are the steps of the stages and the seeds, OPENRLHF_STARE_CPU_DTYPE=bfloat16 is the
# other type; the file of results is named by steps and type, or the GPUs. ARMS="sentences-grpo" are some of the arms only.
# launch/pretrained_study.sh ARM SEED is one of them, without the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh
source launch/pretrained/job.sh
source launch/python.sh

apart=1
arms=({sentences,again,countdown,chain_sum}-{grpo,stare50,stare20,bonus,anneal,bonus_pi})
(($# > 0)) || some_arms_of_the_user # a run alone is checked against all
usual_steps=40 usual_again_steps=20
steps=${STEPS:-$usual_steps} again_steps=${AGAIN_STEPS:-$usual_again_steps} seeds=${SEEDS:-0 1} jobs=1
positive STEPS "$steps"
positive AGAIN_STEPS "$again_steps"
(($# == 0 || $# == 2)) || { say "give no arguments, or an arm and a seed" >&2; exit 2; }
entering=(--part 3 --answers)
if (($# == 0)); then
    check_seeds
    # What the others' tasks lack is told before gigabytes are fetched.
    tasks=""
    [[ " ${arms[*]}" != *" "@(chain_sum|countdown)-* ]] || tasks=1
    first=$(first_python)
    [[ -z $tasks || -z $first || -x $python ]] || "$first" launch/pretrained/install_tasks.py --check
    run_job bash launch/install.sh
    [[ -z $tasks ]] || "$python" launch/pretrained/install_tasks.py
fi
gpus=$(visible_gpus)
if ((gpus == 0)); then
    export OPENRLHF_STARE_CPU=1 OPENRLHF_STARE_CPU_DTYPE=${OPENRLHF_STARE_CPU_DTYPE:-float32}
    type=$OPENRLHF_STARE_CPU_DTYPE
else
    type=gpu$((gpus > 1 ? 2 : 1)) # for which `job` is not the same
fi
# A run of one type is none of another: their folders and results are apart.
home=$PWD/runs/pretrained_study/$type results=docs/results/pretrained_$steps
((again_steps == usual_again_steps)) || results+=_again_$again_steps
results+=_$type.jsonl
# A first stage whose model a second one needs is trained again if only its line is here.
[[ -z ${FOR_ITS_MODEL:-} ]] || results=""

if (($# == 0)); then
    mkdir -p "$home"
    export AGAIN_STEPS=$again_steps
    train_all
    ((${#runs[@]} == 0)) || "$python" -m openrlhf_stare.report "${runs[@]}" -o "$home/report.html"
    exec "$python" launch/study/pretrained.py "$results" --table "$home/table.md" --png "$home/curves.png"
fi

arm=$1 seed=$2
check_arms "$arm"
task=${arm%%-*} method=${arm#*-}
run=$home/$arm-seed$seed prompts=$home/prompts-$task-seed$seed
mkdir -p "$home"
untrained=$PWD/runs/pretrained/model warmed_up=$home/warmed_up first=$home/sentences-$method-seed$seed

model=$untrained prompts_seed=$seed
look_at "${task/#again/sentences}"
case $task in
    again) # 200 more than the seed of stage 1, so that no pair of words comes again by its seed
        ((steps == usual_steps)) || model_steps=$steps
        model=$first/model reward=$PWD/launch/sentences/reversed.py steps=$again_steps prompts_seed=$((seed + 200))
        ;;
    countdown) model=$warmed_up ;;
esac

pretrained_job "$model" "$prompts/train.jsonl" "$run"
job+=(--train.seed "$seed" --actor.adam.lr 2e-5)
stare=(--policy_loss stare --entropy.schedule pi)
[[ $task != again ]] || method=grpo
case $method in
    grpo) job+=(--policy_loss openrlhf) ;;
    stare50) job+=("${stare[@]}" --entropy.target 50%) ;;
    stare20) job+=("${stare[@]}" --entropy.target 20%) ;;
    anneal) job+=("${stare[@]}" --entropy.target 50% --entropy.target_end 20% --entropy.anneal_rollouts $((2 * steps / 3))) ;;
    bonus_pi) job+=(--policy_loss entropy_bonus --entropy.schedule pi --entropy.target 20%) ;;
    bonus) job+=(--policy_loss entropy_bonus --entropy.schedule open --entropy_bonus.coefficient 0.01) ;;
esac

begin_run
"$python" launch/pretrained/model.py "$PWD/runs/pretrained" >/dev/null
if [[ $task == again ]]; then FOR_ITS_MODEL=1 run_job bash "launch/$script.sh" "sentences-${arm#*-}" "$seed"; fi
if [[ $task == countdown ]]; then
    make_prompts "$home/prompts-warm-up" 320 1000
    run_job "$python" launch/pretrained/warm_up.py "$untrained" "$home/prompts-warm-up/train.jsonl" "$warmed_up"
fi
make_prompts "$prompts" $((steps * prompts_per_step)) "$prompts_seed"
train
run_job "$python" launch/pretrained/answers.py "$run/model" "$prompts/eval.jsonl" "$reward" --tokens "$max_new_tokens" \
    -o "$run/answers.json"
end_run
rm -rf "$run/checkpoints/_actor" # 4 GB
