# What the launch scripts that train small models share; sourced by them, in the repository's root.

export HF_HUB_OFFLINE=1                  # model and data are made here; nothing is fetched
export RAY_ADDRESS=${RAY_ADDRESS:-local} # a Ray of its own, unless you name a running one

script=${0##*/}
script=${script%.sh}
python=$PWD/.venv/bin/python
prompts_per_step=16

say() { printf '%s: %s\n' "$script" "$*"; }

# positive NAME VALUE: ends the script unless the value is a positive number.
positive() {
    [[ $2 =~ ^[1-9][0-9]*$ ]] || { say "$1=$2 is not a positive number" >&2; exit 2; }
}

# addends_job MODEL PROMPTS RUN: sets `job`, the flags of train_ray for a run that logs and saves under RUN.
addends_job() {
    job=(
        # Two actors and one engine; without a reference model, since there is no KL penalty.
        --actor.num_gpus_per_node 2 --vllm.num_engines 1 --algo.kl.init_coef 0
        --ds.zero_stage 3 --ds.param_dtype bf16

        --actor.model_name_or_path "$1"
        --data.prompt_dataset "$2" --data.input_key input --data.label_key label --data.max_len 32
        --reward.remote_url "$PWD/launch/addends/reward.py"

        # 16 prompts with 8 responses each, and one optimizer step on all 128: 64 for each of the two actors.
        --rollout.batch_size "$prompts_per_step" --rollout.n_samples_per_prompt 8
        --rollout.min_new_tokens 0 --rollout.max_new_tokens 8
        --rollout.micro_batch_size 64 --train.batch_size 128 --train.micro_batch_size 64
        --actor.adam.lr 3e-4 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0

        # The token-level correction logs vllm_kl, which stays near 0 while vLLM has the actor's weights.
        --advantage_estimator group_norm --algo.advantage.is_correction_level token

        --logger.tensorboard_dir "$3/tensorboard" --logger.wandb.run_name "${3##*/}"
        --ckpt.path "$3/checkpoints" --ckpt.output_dir "$3/model" --console compact
    )
}

# pi_job TARGET: adds STARE under PI to `job`. Control of entropy by PI is EntroPIC's (arXiv 2511.15248).
pi_job() {
    job+=(--policy_loss stare --entropy.schedule pi --entropy.target "$1")
}

# train_all: runs this script for each of `arms` with each of `seeds`, `jobs` at a time; sets `runs`, the folders in `home`.
train_all() {
    bash launch/install.sh
    # xargs waits for all of them, and fails if one has failed.
    for seed in $seeds; do printf '%s '"$seed"'\n' "${arms[@]}"; done |
        STEPS=$steps xargs -P "$jobs" -L 1 bash "launch/$script.sh"
    runs=()
    for seed in $seeds; do runs+=("${arms[@]/%/-seed$seed}"); done
    runs=("${runs[@]/#/$home/}")
}

# begin_run: ends the script if this run is complete and its flags are the same still; otherwise starts it anew.
begin_run() {
    recipe=$(printf '%s\n' "$steps steps" "${job[@]}")
    if [[ -f $run/recipe && $(<"$run/recipe") == "$recipe" ]]; then
        say "$arm, seed $seed: done before"
        exit
    fi
    rm -rf "$run"
    mkdir -p "$run"
    say "$arm, seed $seed: starts, with its console in $run/output.log"
}

# train: trains with the flags of `job`.
train() {
    "$python" -m openrlhf_stare.train_ray "${job[@]}" &>"$run/output.log" ||
        { say "$arm, seed $seed: failed" >&2; exit 1; }
}

# end_run: the recipe is written last, so a run that has it is complete.
end_run() {
    echo "$recipe" >"$run/recipe"
    say "$arm, seed $seed: $steps steps in $SECONDS s"
}
