# What all recipes share: the published settings of STARE (arXiv 2606.19236) as flags of train_ray. A recipe sets what
# is its own, in small letters, and sources this file, which prints the command and runs it.
#
# Every value below can be set in the environment. Arguments of a recipe are flags of train_ray; they come last and win.
#   METHOD=kl_cov launch/recipes/short_cot_7b.sh             the same with another method and its published values
#   BASELINE=1 launch/recipes/short_cot_7b.sh                the same with OpenRLHF's own loss: GRPO, dynamic sampling
#   launch/recipes/short_cot_7b.sh --preflight --dry-run     only look whether the job could start
#   SUBMIT=1 launch/recipes/short_cot_7b.sh                  as a job of a running Ray cluster, with this checkout
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# A submitted job runs in a copy of this checkout, where paths are relative.
if [[ ${SUBMIT:-0} == 1 ]]; then here=.; else here=$root; fi

# Cluster: 2 nodes with 8 GPUs each; actor and engines take turns on them.
: "${NODES:=2}" "${GPUS_PER_NODE:=8}" "${TENSOR_PARALLEL:=${tensor_parallel:-1}}" "${COLOCATE:=1}"
: "${ENGINES:=$((NODES * GPUS_PER_NODE / TENSOR_PARALLEL))}" "${GPU_MEMORY:=0.6}"

: "${METHOD:=stare}" "${BASELINE:=0}"
((!BASELINE)) || METHOD=openrlhf # or it would have the optimizer steps and the clip range of another method
name=$(basename "$0" .sh)-$( ((BASELINE)) && echo baseline || basename "$METHOD" .py)
# With another of these a run has a folder of its own, or it would go on from the first one's checkpoint. Of a path or an
# address the name has the end, without a password, and a checksum.
for setting in SCHEDULE TARGET_ENTROPY VARIANT TOP_P_RATIO REWEIGHT_W REWEIGHT_M IS_CORRECTION UPDATES LR PROMPTS SAMPLES \
    PROMPT_TOKENS RESPONSE_TOKENS CHAT_TEMPLATE MODEL DATA REWARD AGENT; do
    value=${!setting:-}
    end=${value%%\?*} end=${end##*/}
    [[ $value != */* ]] || value=${end##*@}-$(cksum <<<"$value" | cut -d' ' -f1)
    name+=${value:+-$setting-$value}
done
: "${RUN:=$root/runs/$name}"

# Task: what `python -m openrlhf_stare.data SOURCE … --out runs/data` writes. All paths must be visible from every node.
: "${MODEL:=$model}" "${DATA:=$root/runs/data/train.jsonl}"
: "${EVAL_DATA=$root/runs/data/aime24.jsonl,$root/runs/data/aime25.jsonl}"
: "${REWARD:=$here/openrlhf_stare/rewards/math_reward.py}" "${AGENT:=${agent:+$here/$agent}}" "${CHAT_TEMPLATE:=1}"
((CHAT_TEMPLATE)) || template=

# Rollout: 64 prompts with 8 responses each, sampled from the policy as it is.
: "${PROMPTS:=64}" "${SAMPLES:=8}" "${PROMPT_TOKENS:=1024}" "${RESPONSE_TOKENS:=${response_tokens:-3072}}"
: "${TOKENS_PER_GPU:=${tokens_per_gpu:-$((2 * (PROMPT_TOKENS + RESPONSE_TOKENS)))}}"

# STARE. Another METHOD has a target and a schedule of its own, unless you give them.
: "${REWEIGHT_W:=${reweight_w:-1.1}}" "${REWEIGHT_M:=${reweight_m:-0.9}}" "${TOP_P_RATIO:=0.1}" "${VARIANT:=O1}"
[[ $METHOD != stare ]] || : "${TARGET_ENTROPY:=0.3}" "${SCHEDULE:=gate}"

# The published runs were stopped by hand after some thousand steps. A command that is repeated goes on from the last
# checkpoint.
: "${EPISODES:=100}" "${SAVE_STEPS:=10}" "${EVAL_STEPS:=10}" "${EVAL_SAMPLES:=32}" "${LR:=1e-6}"
: "${IS_CORRECTION:=token}"
# Optimizer steps on a rollout: in the first these methods do nothing.
case $METHOD in kl_cov | ce_gppo | clip_higher) : "${UPDATES:=4}" ;; *) : "${UPDATES:=1}" ;; esac
clip_range=(0.2 0.28)
[[ +$METHOD+ != *+clip_higher+* ]] || clip_range=(0.2 0.2) # which that method widens

flags=(
    --actor.model_name_or_path "$MODEL" --actor.num_nodes "$NODES" --actor.num_gpus_per_node "$GPUS_PER_NODE"
    --actor.gradient_checkpointing_enable --ds.zero_stage 3 --ds.param_dtype bf16 --ds.packing_samples
    --vllm.num_engines "$ENGINES" --vllm.tensor_parallel_size "$TENSOR_PARALLEL"
    --vllm.gpu_memory_utilization "$GPU_MEMORY"

    --data.prompt_dataset "$DATA" --data.input_key input --data.label_key label
    --data.max_len $((PROMPT_TOKENS + RESPONSE_TOKENS)) --reward.remote_url "$REWARD"

    --rollout.batch_size "$PROMPTS" --rollout.n_samples_per_prompt "$SAMPLES"
    --rollout.min_new_tokens 0 --rollout.max_new_tokens "$RESPONSE_TOKENS" --rollout.temperature 1 --rollout.top_p 1
    --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1

    # GRPO on policy: with STARE one optimizer step a rollout, token mean, no KL; the optimizer as in the published code.
    --advantage_estimator group_norm --algo.kl.init_coef 0 --actor.loss_agg_mode token-mean
    --actor.eps_clip_low_high "${clip_range[@]}" --actor.dual_clip 10
    --train.batch_size $((PROMPTS * SAMPLES / UPDATES)) --train.max_epochs 1 --train.num_episodes "$EPISODES"
    --train.dynamic_batch_enable --train.max_tokens_per_gpu "$TOKENS_PER_GPU"
    --rollout.max_tokens_per_gpu $((TOKENS_PER_GPU * 3 / 2))
    --actor.adam.lr "$LR" --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0.01 --actor.max_norm 1
    --actor.lr_scheduler constant --actor.lr_warmup_ratio 0
    --algo.advantage.is_correction_level "$IS_CORRECTION"

    --ckpt.path "$RUN/checkpoints" --ckpt.output_dir "$RUN/model" --ckpt.save_steps "$SAVE_STEPS" --ckpt.load_enable
    --ckpt.save_hf --logger.tensorboard_dir "$RUN/tensorboard" --logger.wandb.run_name "$name"
)
if ((!BASELINE)); then
    flags+=(${TARGET_ENTROPY:+--entropy.target "$TARGET_ENTROPY"} ${SCHEDULE:+--entropy.schedule "$SCHEDULE"})
fi
if [[ +$METHOD+ == *+stare+* ]]; then
    flags+=(--stare.variant "$VARIANT" --stare.top_p_ratio "$TOP_P_RATIO")
    # The PI schedule finds its own.
    if [[ ${SCHEDULE:-} != pi ]]; then flags+=(--stare.reweight_w "$REWEIGHT_W" --stare.reweight_m "$REWEIGHT_M"); fi
fi
if [[ -n $EVAL_DATA ]]; then
    flags+=(--eval.dataset "$EVAL_DATA" --eval.steps "$EVAL_STEPS" --eval.n_samples_per_prompt "$EVAL_SAMPLES")
    flags+=(--eval.temperature 1 --eval_top_p 0.7)
fi
if ((COLOCATE)); then flags+=(--train.colocate_all --vllm.enable_sleep --ds.enable_sleep); fi
# A recipe's template stands for the model's own.
if [[ -n ${template:-} ]]; then
    flags+=(--data.input_template "$template")
elif ((CHAT_TEMPLATE)); then
    flags+=(--data.apply_chat_template)
fi
if [[ -n $AGENT ]]; then flags+=(--train.agent_func_path "$AGENT"); fi
flags+=(--policy_loss "$METHOD")

if [[ ${SUBMIT:-0} == 1 ]]; then
    command=("$root/launch/cluster/submit.sh")
else
    python=$root/.venv/bin/python # launch/install.sh makes it; an image may have the package installed otherwise
    [[ -x $python ]] || python=python
    command=("${TRAIN_PYTHON:-$python}" -m openrlhf_stare.train_ray)
fi
command+=("${flags[@]}" "$@")
printf '%q ' "${command[@]}" | sed -E 's/(--logger\.wandb\.key[ =])[^ ]+/\1KEY/' # it is for W&B only
cat <<'END'


Other than in the published runs:
- OpenRLHF's engines sample in bfloat16, the published code trains and samples in float16. Against the larger gap
  between sampler and trainer the token-level importance correction is on; IS_CORRECTION=off is the published loss.
- Dynamic filtering replaces each all-right or all-wrong group with another prompt's, as OpenRLHF does it; the
  published code samples 192 prompts at a time and takes the first 64 groups that are neither.
END
[[ -z ${differs:-} ]] || printf '%s\n' "- $differs"
exec "${command[@]}"
