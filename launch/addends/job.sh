# What the launch scripts that train small models share; sourced by them, in the repository's root.

source launch/run_job.sh

export HF_HUB_OFFLINE=1                  # model and data are made here; nothing is fetched
export RAY_ADDRESS=${RAY_ADDRESS:-local} # a Ray of its own, unless you name a running one
export PYTHONUTF8=1                      # files and the console have "→" and "±", whatever the locale
# What importing torch says with a GPU's packages; train_ray does the same for its processes.
export PYTHONWARNINGS=${PYTHONWARNINGS:+$PYTHONWARNINGS,}"ignore:The pynvml package is deprecated:FutureWarning"

script=${0##*/}
script=${script%.sh}
python=$PWD/.venv/bin/python
prompts_per_step=16
model_steps="" # see begin_run
apart=""       # set where the runs of each type have a folder of their own

say() { printf '%s: %s\n' "$script" "$*"; }

# positive NAME VALUE: ends the script unless the value is a positive number.
positive() {
    [[ $2 =~ ^[1-9][0-9]*$ ]] || { say "$1=$2 is not a positive number" >&2; exit 2; }
}

# arms_of_the_user: sets `arms` to the words of ARMS, if it has any.
arms_of_the_user() { [[ -z ${ARMS:-} ]] || read -ra arms <<<"${ARMS//$'\n'/ }"; }

# check_arms ARMS: ends the script unless each is one of `arms`, for a study that has no others.
check_arms() {
    local arm
    for arm in "$@"; do
        [[ " ${arms[*]} " == *" $arm "* ]] || { say "$arm is not one of ${arms[*]}" >&2; exit 2; }
    done
}

# no_arms_of_the_user: ends the script if ARMS has any, for a study that always trains all of its own.
no_arms_of_the_user() {
    [[ -z ${ARMS:-} ]] || { say "ARMS=$ARMS is no choice that this study has: unset it" >&2; exit 2; }
}

# some_arms_of_the_user: sets `arms` to those in ARMS, if it has any, for such a study.
some_arms_of_the_user() {
    check_arms ${ARMS:-}
    arms_of_the_user
}

# check_seeds: ends the script unless the words of `seeds` are numbers. One with a zero in front bash takes as octal.
check_seeds() {
    local seed
    for seed in $seeds; do
        [[ $seed =~ ^(0|[1-9][0-9]{0,8})$ ]] ||
            { say "SEEDS=$seeds: $seed is no seed: give 0, or up to nine digits without a 0 in front" >&2; exit 2; }
    done
}

# computed_in: prints the type that jobs compute in here, float32 or bfloat16, or gpu.
computed_in() {
    "$python" -W ignore -c 'import sys
from openrlhf_stare import options, runtime

try:
    print("gpu" if not runtime.on_cpu() else "float32" if runtime.float32() else "bfloat16")
except options.UsageError as error:
    print(f"{sys.argv[1]}: {error}", file=sys.stderr)
    sys.exit(2)' "$script"
}

# results_of NAME: sets `results`, the study's file of results, once all is installed. Its runs have `usual_steps`, no other
# `model_steps`, and are computed in float32, which is set here; others have a file of their own.
results_of() {
    local type
    export OPENRLHF_STARE_CPU_DTYPE=${OPENRLHF_STARE_CPU_DTYPE:-float32}
    type=$(computed_in)
    results=docs/results/$1
    ((steps == usual_steps)) || results+=_$steps
    [[ -z $model_steps ]] || results+=_after_$model_steps
    [[ $type == float32 ]] || results+=_$type
    results+=.jsonl
}

# visible_gpus: prints how many GPUs a job here may use, 0 for the CPU runtime.
visible_gpus() { "$python" -W ignore -c 'from openrlhf_stare import runtime; print(runtime.gpus())'; }

# addends_job MODEL PROMPTS RUN: sets `job`, the flags of train_ray for a run that logs and saves under RUN.
addends_job() {
    local flags
    flags=$("$python" -m openrlhf_stare.quickstart.flags "$@" --reward "$PWD/launch/addends/reward.py" \
        --prompts-per-step "$prompts_per_step")
    mapfile -t job <<<"$flags"
}

# pi_job TARGET: adds STARE under PI to `job`. Control of entropy by PI is EntroPIC's (arXiv 2511.15248).
pi_job() {
    job+=(--policy_loss stare --entropy.schedule pi --entropy.target "$1")
}

# bonus_job COEFFICIENT: adds a constant entropy bonus to `job`.
bonus_job() {
    job+=(--policy_loss entropy_bonus --entropy.schedule open --entropy_bonus.coefficient "$1")
}

# chosen_bonus [RESULTS]: prints the coefficient that launch/one_setting_study.sh has chosen, or ends the script.
chosen_bonus() {
    "$python" launch/study/one_setting.py "${1:-docs/results/any_task.jsonl}" --choose
}

# train_all: runs this script for each of `arms` with each of `seeds`, `jobs` at a time; sets `runs`, the folders in `home`
# of those that are complete here: those of lines in a file of results need not be.
train_all() {
    local started=() stopped="" failed="" pid
    check_seeds
    run_job bash launch/install.sh
    trap 'stopped=143; kill $(jobs -pr) || true' TERM
    trap 'stopped=130' INT # which all of them get
    for seed in $seeds; do
        for arm in "${arms[@]}"; do
            while [[ -z $stopped ]] && (($(jobs -pr | wc -l) >= jobs)); do wait -n || true; done
            [[ -z $stopped ]] || break 2
            STEPS=$steps in_background bash "launch/$script.sh" "$arm" "$seed"
            started+=($!)
        done
    done
    [[ $stopped != 143 ]] || kill $(jobs -pr) || true # for one that was just starting
    for pid in "${started[@]}"; do wait_for "$pid" || failed=1; done
    trap - TERM INT
    [[ $stopped != 130 ]] || kill -INT $BASHPID
    [[ -z $stopped ]] || exit "$stopped"
    [[ -z $failed ]] || exit 1
    runs=()
    for seed in $seeds; do
        for arm in "${arms[@]}"; do
            [[ ! -f $home/$arm-seed$seed/recipe ]] || runs+=("$home/$arm-seed$seed")
        done
    done
}

# alone_in FD: takes the lock of an open file; fails if another process has it. On a file system without locks nobody has.
alone_in() {
    local status=0
    flock --nonblock "$1" || status=$?
    ((status != 1))
}

# begin_run: ends the script if this run is complete and its flags are the same still, or if `results`, the study's file of
# results where it has one, has a line of it. Otherwise starts it anew, unless `job` resumes and an interrupted run had
# the same flags. `model_steps` are those of the stage whose model it starts from, where they are not the study's.
begin_run() {
    local begun="" status=3 type=float32
    [[ -n $apart ]] || type=$(computed_in)
    recipe=$(printf '%s\n' "$steps steps" "${job[@]}" ${model_steps:+--after "$model_steps steps"})
    [[ $type == float32 ]] || recipe+=$'\n'"--computed-in"$'\n'"$type"
    if [[ -n ${results:-} ]]; then
        status=0
        "$python" launch/study/results.py done "$results" "${run##*/}" <<<"$recipe" || status=$?
    fi
    case $status in
    0) say "$arm, seed $seed: is in $results"; exit ;;
    3) ;; # is not done
    *) exit "$status" ;;
    esac
    if [[ -f $run/recipe && $(<"$run/recipe") == "$recipe" ]]; then
        say "$arm, seed $seed: done before"
        enter_run
        exit
    fi
    mkdir -p "${run%/*}"
    exec 9>"$run.lock" # this script and its job have it, until the last of them has ended
    alone_in 9 || { say "$arm, seed $seed: another process is at it" >&2; exit 1; }
    [[ ! -f $run/begun || " ${job[*]} " != *" --ckpt.load_enable "* ]] || begun=$(<"$run/begun")
    if [[ $begun == "$recipe" ]]; then
        rm -f "$run/recipe"
        say "$arm, seed $seed: goes on, with its console in $run/output.log"
        return
    fi
    rm -rf "$run"
    mkdir -p "$run"
    echo "$recipe" >"$run/begun"
    say "$arm, seed $seed: starts, with its console in $run/output.log"
}

# train: trains with the flags of `job`.
train() {
    run_job "$python" -m openrlhf_stare.train_ray "${job[@]}" &>"$run/output.log" ||
        { say "$arm, seed $seed: failed: $(tail -n 1 "$run/output.log")" >&2; exit 1; }
}

# enter_run: adds a line to `results`, with the options of launch/study/enter.py that are in `entering`.
enter_run() {
    [[ -z ${results:-} ]] || "$python" launch/study/enter.py "$results" --run "$run" "${entering[@]}"
}

# end_run: the recipe is written last, so a run that has it is complete.
end_run() {
    echo "$recipe" >"$run/recipe"
    enter_run
    say "$arm, seed $seed: $steps steps in $SECONDS s"
}
