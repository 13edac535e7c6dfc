#!/usr/bin/env bash
# Two targets in one run: PI holds 0.6 nats for half of the steps and, started again from its checkpoint, 0.4.
# launch/two_targets.sh [flags]: about 9 minutes on 2 CPU cores; the flags are those of train_ray, for both halves.
# STEPS=400 are the steps of both halves together. The results are in runs/two_targets: report.html and report.png.
# It ends with status 1 unless the entropy follows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/addends/job.sh

steps=${STEPS:-400}
positive STEPS "$steps"
((steps % 2 == 0)) || { say "STEPS=$steps is not even" >&2; exit 2; }

home=$PWD/runs/two_targets
run=$home/run
mkdir -p "$home"
exec 9>"$run.lock" # this script and its jobs have it, until the last of them has ended
alone_in 9 || { say "another process is at it" >&2; exit 1; }
run_job bash launch/install.sh
rm -rf "$run"
mkdir "$run"
"$python" launch/addends/make.py "$home" --prompts $((steps / 2 * prompts_per_step))

# The prompts are those of one half, an episode of OpenRLHF's. The checkpoint at the end of the first episode is where
# the second start goes on, with one episode more.
addends_job "$home/model" "$home/prompts.jsonl" "$run"
# Gains that go together with this ceiling of W; those of the other studies go with the default of 60.
job+=(--entropy.schedule pi --entropy.k_p 4.7 --entropy.k_i 0.059 --stare.w_max 30 --ckpt.save_steps $((steps / 2)))
say "$((steps / 2)) steps with the target 0.6"
run_job "$python" -m openrlhf_stare.train_ray "${job[@]}" "$@" --entropy.target 0.6
say "$((steps / 2)) steps with the target 0.4"
run_job "$python" -m openrlhf_stare.train_ray "${job[@]}" "$@" --entropy.target 0.4 --ckpt.load_enable \
    --train.num_episodes 2

"$python" -m openrlhf_stare.report "$run" -o "$home/report.html" --png "$home/report.png"
"$python" launch/study/two_targets.py "$run"
