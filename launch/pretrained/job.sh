# What launch/pretrained.sh and launch/pretrained_study.sh share; sourced by them after launch/addends/job.sh.

prompts_per_step=8

# look_at TASK: sets `reward`, `max_len`, `max_new_tokens` and, for a task of reasoning-gym, `gym`, its name and settings.
look_at() {
    gym="" reward=$PWD/openrlhf_stare/rewards/reasoning_gym_reward.py max_len=160 max_new_tokens=16
    case $1 in
    sentences) reward=$PWD/launch/sentences/reward.py max_new_tokens=24 ;;
    sums) gym=chain_sum:min_terms=2,max_terms=2,min_digits=1,max_digits=1 ;;
    chain_sum) gym=chain_sum:min_terms=2,max_terms=3,min_digits=1,max_digits=1 ;;
    # Two operators, so that a guess with the right numbers is right every few times.
    countdown)
        gym='countdown:min_numbers=3,max_numbers=3,min_value=1,max_value=20,min_target=1,max_target=40,operators=["+","-"]'
        max_len=256
        ;;
    *:*) gym=$1 max_len=512 max_new_tokens=64 ;; # one of your choice
    *) say "TASK=$1 is neither sums, chain_sum, countdown nor sentences, nor a task of reasoning-gym with a colon" >&2; exit 2 ;;
    esac
}

# folder_name TASK STEPS [FLAGS]: prints the name of a run's folder. The hash tells apart what the rest of it does not: it
# is cut, and neither a type nor a key of W&B is in it.
folder_name() {
    local name hash
    name=$(sed -E 's/--logger\.wandb\.key[ =][^ ]+//g; s/[^A-Za-z0-9._]+/-/g' <<<"$1 $2 ${MODEL:-} ${*:3}")
    (($# > 2)) || name+=stare
    name=${name:0:70}
    hash=$(printf '%s\n' "$@" "MODEL=${MODEL:-}" "${OPENRLHF_STARE_CPU_DTYPE:-}" | sha256sum)
    echo "${name%-}-${hash:0:8}"
}

# last_value FLAG DEFAULT [FLAGS]: prints the value that the last of the flags gives it, in either spelling.
last_value() {
    local flag=$1 value=$2
    shift 2
    while (($#)); do
        case $1 in
        "$flag") value=${2:-} ;;
        "$flag="*) value=${1#*=} ;;
        esac
        shift
    done
    printf '%s\n' "$value"
}

# make_prompts FOLDER PROMPTS SEED: writes FOLDER/train.jsonl and FOLDER/eval.jsonl of the task that was looked at.
make_prompts() {
    if [[ -n $gym ]]; then
        "$python" -W ignore -m openrlhf_stare.data.reasoning "$gym" --out "$1" --size "$2" --held-out 16 --seed "$3"
    else
        "$python" launch/sentences/make.py "$1" --prompts "$2" --held-out 16 --seed "$3"
    fi
}

# pretrained_job MODEL PROMPTS RUN: sets `job`, the flags of train_ray for the task that was looked at, on `gpus` GPUs.
pretrained_job() {
    job=(
        --actor.num_gpus_per_node 1 --vllm.num_engines 1 --algo.kl.init_coef 0
        --ds.zero_stage 2 --ds.param_dtype bf16

        --actor.model_name_or_path "$1" --data.apply_chat_template
        --data.prompt_dataset "$2" --data.input_key input --data.label_key label
        --data.max_len "$max_len" --rollout.max_new_tokens "$max_new_tokens" --rollout.min_new_tokens 0
        --reward.remote_url "$reward"

        # 8 prompts with 8 answers each, and one optimizer step on all 64.
        --rollout.batch_size "$prompts_per_step" --rollout.n_samples_per_prompt 8 --train.batch_size 64
        --rollout.micro_batch_size 8 --train.micro_batch_size 8
        --actor.adam.lr 1e-5 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0
        # The token-level correction logs vllm_kl, which stays near 0 while vLLM has the actor's weights.
        --advantage_estimator group_norm --algo.advantage.is_correction_level token

        # A checkpoint has 1.9 GB; two are kept, and a run that was interrupted goes on from the newest.
        --ckpt.path "$3/checkpoints" --ckpt.output_dir "$3/model" --ckpt.save_steps 5 --ckpt.max_num 2 --ckpt.load_enable
        --logger.tensorboard_dir "$3/tensorboard" --logger.wandb.run_name "${3##*/}" --console compact
        --entropy.record_tokens 8 # answers of each step, for the report
    )
    # On two cores a step took 30 s with it and 35 s without.
    [[ ${OPENRLHF_STARE_CPU:-} != 1 ]] || job+=(--actor.fused_head)
    # Actor and engine take turns on it.
    ((gpus != 1)) || job+=(--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.4)
}
