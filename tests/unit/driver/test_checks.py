"""What is refused or warned of by the flags alone, before anything starts."""

import dataclasses

import pytest
from flag_parser import parse

from openrlhf_stare import EntropyControl, StareOptions, tools
from openrlhf_stare.driver import checks

FIELDS = dataclasses.fields(StareOptions)
DEFAULTS = {field.name: field.default for field in FIELDS}

# As little as TPO asks for: OpenRLHF's own defaults are the gae estimator, a KL penalty and one response a prompt.
TPO = """--policy_loss tpo --advantage_estimator group_norm --algo.kl.init_coef 0 --actor.num_gpus_per_node 2
    --rollout.n_samples_per_prompt 4 --rollout.batch_size 16 --rollout.micro_batch_size 8
    --train.batch_size 32 --train.micro_batch_size 2""".split()


EVALUATION = "--eval.dataset eval.jsonl --eval.steps 10"


def refusal(*words: str) -> str:
    with pytest.raises(checks.UsageError) as caught:
        checks.check(parse(*words))
    return str(caught.value)


# What is refused


@pytest.mark.parametrize(
    "flag, value, remedy, others",
    [
        ("--stare.variant", "X1", "O1, C2", ""),
        ("--stare.variant", "o1", "O1, C2", ""),
        ("--entropy.schedule", "linear", "open, gate, adaptive, pi", ""),
        ("--entropy.schedule", "fixed", "open, gate, adaptive, pi", ""),
        ("--entropy.measure", "none", "exact, sampled", ""),
        ("--kl_cov.share", "0", "give", ""),
        ("--kl_cov.coefficient", "-1", "give", "--policy_loss kl_cov"),
        ("--clip_cov.high", "0.5", "give a range", ""),
        ("--entropy.schedule", "pi", "give open", "--policy_loss ce_gppo"),
        ("--kl_cov.coefficient", "2", "leave it out", "--policy_loss kl_cov --entropy.schedule pi"),
        ("--clip_cov.share", "0.2", "another bound", "--policy_loss clip_cov --entropy.schedule adaptive"),
        ("--actor.entropy_coef", "0.01", "--entropy_bonus.coefficient", "--policy_loss entropy_bonus"),
        ("--actor.policy_loss_type", "gspo", "use ppo", "--policy_loss ce_gppo"),
        ("--entropy.measure", "sampled", "give exact", "--policy_loss high_entropy"),
        ("--entropy.anneal_rollouts", "0", "such as 200", "--entropy.target_end 0.1"),
        ("--stare.top_p_ratio", "1.5", "give", ""),
        ("--stare.top_p_ratio", "-0.1", "give", ""),
        ("--stare.top_p_ratio", "nan", "give", ""),
        ("--stare.reweight_w", "0.9", "give", ""),
        ("--stare.reweight_w", "inf", "give", ""),
        ("--stare.reweight_m", "1.2", "give", ""),
        ("--stare.reweight_m", "0", "give", ""),
        ("--entropy.target", "0", "give", ""),
        ("--entropy.target", "-0.3", "give", ""),
        ("--entropy.step", "-0.01", "give", ""),
        ("--entropy.stop_after", "0", "give", ""),
        ("--entropy.record_tokens", "-1", "give", ""),
        ("--stare.reweight_w", "1.3", "another bound", "--entropy.schedule adaptive --stare.w_max 1.2"),
        (
            "--stare.reweight_m",
            "0.7",
            "another bound",
            "--entropy.schedule adaptive --stare.variant C2 --stare.m_min 0.8",
        ),
        ("--reward.remote_url", "rewards/math", "which ends in .py", ""),
        ("--reward.remote_url", "localhost:5000/score", "http://", ""),
        ("--reward.remote_url", "http://host:1/score,reward.py", "give one or the other", ""),
        ("--reward.remote_url", "http://host:1/score,", "give one or the other", ""),
        ("--reward.remote_url", "reward.py,other.py", "give one file", ""),
        ("--reward.remote_url", "reward.py,http://host:1/score", "give one file", ""),
        ("--reward.remote_url", "reward.py,other.py", "give one file", f"--train.agent_func_path {tools.AGENT}"),
        ("--critic.freezing_steps", "0", "leave it out", "--advantage_estimator reinforce"),
        (
            "--critic.freezing_steps",
            "5",
            "leave it out",
            "--advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2",
        ),
        ("--ckpt.best_metric_key", "pass1", "eval_default_pass1", EVALUATION),
        ("--ckpt.best_metric_key", "eval_default_pass8", "eval_default_pass4", EVALUATION),
        ("--ckpt.best_metric_key", "eval_default_pass1", "give --eval.dataset and --eval.steps", ""),
        ("--ckpt.best_metric_key", "eval_default_pass1", "or leave it out", "--eval.dataset eval.jsonl"),
        ("--reward.remote_url", "rewards/math", "give", f"--train.agent_func_path {tools.AGENT}"),
        ("--tool.seconds", "0", "give", ""),
        ("--tool.output_chars", "-1", "give", ""),
        ("--policy_loss", "grpo", "stare, openrlhf", ""),
        ("--policy_loss", "own.py", "the path of a Python file", ""),
        ("--stare.reweight_w", "2", "leave it out", "--entropy.schedule pi"),
        ("--stare.reweight_w", str(DEFAULTS["reweight_w"]), "leave it out", "--entropy.schedule pi"),
        ("--stare.reweight_m", str(DEFAULTS["reweight_m"]), "leave it out", "--entropy.schedule pi"),
        ("--stare.reweight_m", "0.8", "leave it out", "--entropy.schedule pi --policy_loss repo+stare"),
        ("--entropy.target", "0%", "give one, such as 50%", ""),
        ("--entropy.target", "half", "give one, such as 50%", ""),
        ("--entropy.sides", "both", "give --entropy.schedule pi", ""),
        ("--entropy.sides", "both", "give below, or another", "--entropy.schedule pi --policy_loss kl_cov"),
        ("--entropy.sides", "both", "give below, or another", "--entropy.schedule pi --policy_loss clip_higher"),
        ("--policy_loss", "stare+stare", "name each once", ""),
        ("--actor.entropy_coef", "0.01", "--entropy_bonus.coefficient", "--policy_loss stare+entropy_bonus"),
        ("--actor.policy_loss_type", "gspo", "use ppo", "--policy_loss stare+ce_gppo"),
        ("--actor.policy_loss_type", "gspo", "use ppo", "--policy_loss stare+kl_cov"),
        ("--stare.reweight_w", "2.0", "another bound", "--entropy.schedule adaptive --policy_loss repo+stare"),
        ("--clip_higher.eps_high", "0.28", "lower the second", "--policy_loss clip_higher --actor.eps_clip 0.4"),
        (
            "--clip_higher.bound",
            "0.3",
            "lower",
            "--policy_loss clip_higher --entropy.schedule adaptive --clip_higher.eps_high 0.4 --actor.eps_clip 0.31",
        ),
        (
            "--clip_higher.eps_high",
            "0.28",
            "raise the first",
            "--policy_loss clip_higher --actor.eps_clip_low_high 0.2 0.28",
        ),
        (
            "--clip_higher.bound",
            "0.4",
            "raise the first",
            "--policy_loss clip_higher --entropy.schedule pi --clip_higher.bound 0.4 --clip_higher.eps_high 0.4 "
            "--actor.eps_clip 0.4",
        ),
        ("--policy_loss", "high_entropy+ce_gppo", "leave one of the two out", "--train.max_epochs 2"),
        ("--policy_loss", "stare+kl_cov+ce_gppo", "leave one of the two out", "--train.max_epochs 2"),
        ("--data.max_images_per_prompt", "1", "leave those out", "--train.dynamic_batch_enable --ds.zero_stage 3"),
        ("--data.max_images_per_prompt", "1", "leave those out", "--ds.packing_samples"),
        ("--policy_loss", "stare+tpo", "names tpo, which goes with no other: give it alone", ""),
        ("--clip_cov.seed", "4294967296", "give", "--policy_loss clip_cov"),
        ("--entropy.k_p", "8", "goes with --entropy.schedule pi, and this job has gate: give that, or", ""),
        ("--entropy.k_i", "0.1", "this job has adaptive", "--entropy.schedule adaptive"),
        ("--entropy.step", "0.1", "goes with --entropy.schedule adaptive", "--entropy.schedule pi"),
        ("--ckpt.max_num", "1", "at least 2", "--ckpt.save_steps 5"),
        ("--ckpt.max_num", "0", "at least 2", "--ckpt.save_steps 5 --policy_loss openrlhf"),
        ("--ds.tensor_parallel_size", "2", "leave one of the two out", "--actor.fused_head"),
        ("--sr_grpo.tau", "0.0", "give one", ""),
        ("--sr_grpo.tau", "nan", "give one", ""),
        ("--rollout.n_samples_per_prompt", "1", "at least 2", "--advantage_estimator sr_grpo"),
        ("--tpo.eta", "0", "give", ""),
        ("--tpo.eta", "-1", "give", ""),
        ("--tpo.eta", "nan", "give", ""),
        ("--ds.lora.rank", "8", "merge", ""),
        ("--ds.param_dtype", "fp16", "give bf16", ""),
        ("--vllm.num_engines", "3", "make them equal", "--train.colocate_all --actor.num_gpus_per_node 4"),
        ("--actor.num_nodes", "2", "make them equal", "--train.colocate_all"),
        ("--ref.num_gpus_per_node", "4", "make them equal", "--train.colocate_actor_ref"),
        ("--reward.num_nodes", "2", "make them equal", "--train.colocate_critic_reward"),
        ("--actor.num_nodes", "0", "give 1 or more", ""),
        ("--actor.num_gpus_per_node", "0", "give 1 or more", ""),
        ("--ds.ring_attn_size", "0", "give 1 or more", ""),
        ("--ds.tensor_parallel_size", "0", "give 1 or more", ""),
        ("--vllm.tensor_parallel_size", "0", "give 1 or more", ""),
        ("--rollout.batch_size", "0", "give 1 or more", ""),
        ("--rollout.n_samples_per_prompt", "0", "give 1 or more", ""),
        ("--rollout.micro_batch_size", "0", "give 1 or more", ""),
        ("--rollout.vllm_generate_batch_size", "-1", "leave it out for --rollout.batch_size", ""),
        ("--data.max_samples", "0", "give 1 or more", ""),
        ("--algo.kl.horizon", "0", "such as 10000", "--algo.kl.target 6"),
        ("--algo.kl.horizon", "-5", "such as 10000", "--algo.kl.target 6 --algo.kl.init_coef 0"),
        ("--ds.zero_stage", "4", "give 0, 1, 2 or 3", ""),
        ("--ds.zero_stage", "-1", "give 0, 1, 2 or 3", ""),
        ("--train.batch_size", "0", "give 1 or more", ""),
        ("--train.micro_batch_size", "0", "give 1 or more", ""),
        ("--train.max_epochs", "0", "give 1 or more", ""),
        ("--train.num_episodes", "0", "give 1 or more", ""),
        ("--train.micro_batch_size", "0", "give 1 or more", "--policy_loss tpo"),
        ("--ckpt.save_steps", "0", "give -1 for never", ""),
        ("--eval.steps", "0", "give -1 for never", ""),
        ("--rollout.temperature", "0", "give 1", ""),
        ("--rollout.temperature", "-0.5", "give 1", ""),
        ("--rollout.temperature", "2.01", "give 1", ""),
        ("--rollout.temperature", "nan", "give 1", ""),
        ("--rollout.top_p", "0", "give 1 to sample", ""),
        ("--rollout.top_p", "1.01", "give 1 to sample", "--entropy.measure sampled"),
        ("--rollout.max_new_tokens", "0", "give 1 or more", ""),
        ("--rollout.max_new_tokens", "-1", "give 1 or more", "--rollout.min_new_tokens 0"),
        ("--eval.temperature", "2.01", "such as 0.6", EVALUATION),
        ("--eval.temperature", "-0.1", "such as 0.6", EVALUATION),
        ("--eval.n_samples_per_prompt", "0", "give 1 or more", EVALUATION),
        ("--reward.overlong_buffer_len", "257", "--rollout.max_new_tokens 256", "--rollout.max_new_tokens 256"),
        ("--reward.overlong_buffer_len", "2049", "more than --data.max_len 2048", ""),
        ("--reward.stop_properly_penalty_coef", "1.01", "from 0 to 1", ""),
        ("--reward.clip_range", "10 -10", "the lowest before", ""),
        ("--actor.dual_clip", "1", "such as 3", ""),
        ("--algo.advantage.is_correction_mode", "clip", "give mask", "--algo.advantage.is_correction_level seq"),
        ("--algo.advantage.is_correction_mode", "clip", "give mask", "--algo.advantage.is_correction_gating tv"),
        ("--algo.advantage.is_correction_threshold", "5 0.5", "swap", "--algo.advantage.is_correction_level token"),
        (
            "--algo.advantage.is_correction_threshold",
            "0.5 5",
            "give that one number",
            "--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating binary_kl",
        ),
        ("--ckpt.save_steps", "5", "add --ckpt.save_hf", "--ckpt.disable_ds"),
        ("--data.prompt_probs", "0.5,0.5", "1 in all", "--data.prompt_dataset a.jsonl"),
        ("--data.prompt_probs", "1", "2 in all", "--data.prompt_dataset a.jsonl,b.jsonl"),
        ("--data.prompt_probs", "0.333,0.333,0.333", "a sum of 1", "--data.prompt_dataset a.jsonl,b.jsonl,c.jsonl"),
        ("--data.prompt_probs", "0,1", "above 0", "--data.prompt_dataset a.jsonl,b.jsonl"),
        ("--data.prompt_probs", "half,half", "give such numbers", "--data.prompt_dataset a.jsonl,b.jsonl"),
        ("--train.async_queue_size", "0", "give 1 or more", "--train.async_enable"),
        ("--actor.lr_scheduler", "no_such", "one of linear, cosine,", ""),
        ("--critic.lr_scheduler", "warmup_stable_decay", "one of linear, cosine,", "--advantage_estimator gae"),
        ("--logger.logging_steps", "0", "give 1 for every step", ""),
        ("--rollout.max_new_tokens", "2049", "raise --data.max_len", ""),
        ("--rollout.max_new_tokens", "300", "raise --data.max_len", "--data.max_len 256"),
        ("--rollout.min_new_tokens", "-1", "0 or more: give 0", ""),
        ("--rollout.min_new_tokens", "9", "between 0 and --rollout.max_new_tokens 8", "--rollout.max_new_tokens 8"),
        ("--eval_top_p", "0", "give", ""),
        ("--eval_top_p", "1.5", "give", ""),
        ("--wait_for_resources", "-1", "give seconds", ""),
        ("--rollout.top_p", "0.9", "exact", "--entropy.measure sampled"),
        ("--entropy.measure", "sampled", "--rollout.top_p 1", "--rollout.top_p 0.9"),
        ("--entropy.measure", "sampled", "--rollout.top_p 1", "--rollout.top_p 0.9 --policy_loss openrlhf"),
    ],
)
def test_a_bad_value_is_refused_with_the_flag_the_value_and_the_remedy(flag, value, remedy, others):
    sentence = refusal(flag, *value.split(), *others.split())
    assert f"{flag} {value}" in sentence and sentence.startswith("--")
    assert flag != "--policy_loss" or sentence.startswith(f"{flag} {value}")
    assert remedy in sentence
    assert "\n" not in sentence


def test_what_does_not_go_with_the_fused_head_is_refused():
    assert "--ds.deepcompile does not go with --actor.fused_head" in refusal("--ds.deepcompile", "--actor.fused_head")


def test_weights_of_4_bits_are_refused():
    assert refusal("--ds.load_in_4bit").startswith("--ds.load_in_4bit cannot train with vLLM")


def test_tpo_takes_no_advantages():
    sentence = refusal(*TPO, "--advantage_estimator", "sr_grpo")
    assert "--policy_loss tpo, since tpo takes rewards, not advantages: use" in sentence


@pytest.mark.parametrize(
    "flag, value, remedy, others",
    [
        ("--rollout.n_samples_per_prompt", "1", "give at least 2", ""),
        ("--algo.advantage.estimator", "gae", "--advantage_estimator group_norm", ""),
        ("--algo.kl.init_coef", "0.01", "--algo.kl.use_loss", ""),
        ("--algo.advantage.is_correction_level", "token", "give off", ""),
        ("--actor.policy_loss_type", "gspo", "leave it out", ""),
        ("--actor.dual_clip", "3.0", "leave it out", ""),
        ("--actor.loss_agg_mode", "seq-mean-token-mean", "leave it out", ""),
        ("--ds.zero_stage", "2", "give --ds.zero_stage 3", "--train.dynamic_batch_enable"),
        ("--train.batch_size", "12", "a multiple of 8", ""),  # 1.5 groups for each of two ranks
        ("--train.micro_batch_size", "3", "a divisor", ""),
        ("--rollout.batch_size", "12", "a multiple of 8", ""),  # 48 responses, 1.5 optimizer steps
        ("--rollout.batch_size", "16", "a multiple of 24", "--rollout.micro_batch_size 6"),
    ],
)
def test_what_would_change_tpo_s_objective_is_refused(flag, value, remedy, others):
    sentence = refusal(*TPO, flag, value, *others.split())
    assert f"{flag} {value} cannot go with --policy_loss tpo" in sentence
    assert remedy in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--train.micro_batch_size 16",
        "--algo.kl.init_coef 0.01 --algo.kl.use_loss",
        "--actor.entropy_coef 0.01",
        "--train.dynamic_batch_enable --train.micro_batch_size 3 --ds.zero_stage 3",
        "--train.async_enable --train.partial_rollout_enable",
        "--algo.dynamic_filtering_enable",
        "--reward.overlong_buffer_len 4 --reward.stop_properly_penalty_coef 0.5",
        "--train.max_epochs 4",
        "--tpo.eta 0.5 --tpo.no_length_normalize",
    ],
)
def test_what_goes_with_tpo(words):
    assert checks.check(parse(*TPO, *words.split())) == []


NUMBERS = [
    f"{part}.{field.name}"
    for part, of in (("stare", StareOptions), ("entropy", EntropyControl))
    for field in dataclasses.fields(of)
    if isinstance(field.default, float)
]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_option_takes_a_number_that_is_not_finite(name, value):
    assert f"--{name} {value}" in refusal(f"--{name}={value}")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--reward.remote_url reward.py,",
        "--reward.remote_url http://host:1/score,HTTPS://other/score",
        "--train.agent_func_path agent.py",
        f"--reward.remote_url {__file__} --train.agent_func_path {tools.AGENT}",  # which asks for it
        "--critic.freezing_steps 0 --advantage_estimator gae",
        f"{EVALUATION} --eval.steps 1 --ckpt.best_metric_key none",
        f"{EVALUATION} --ckpt.best_metric_key eval_default_pass4",
        f"{EVALUATION} --ckpt.best_metric_key eval_aime_24_pass8 --eval.n_samples_per_prompt 8",
        f"{EVALUATION} --ckpt.best_metric_key eval_truncated_rate",
        "--stare.w_max 1.2 --stare.reweight_w 1.3",  # only the adaptive schedule reads w_max and m_min
        "--stare.m_min 0.8 --stare.reweight_m 0.7",
        "--stare.top_p_ratio 0",
        "--stare.top_p_ratio 1",
        "--stare.reweight_w 1",
        "--stare.reweight_m 1",
        "--entropy.schedule adaptive --entropy.step 0",
        "--entropy.measure sampled",
        "--entropy.schedule pi",
        "--ckpt.max_num 2 --ckpt.save_steps 5",
        "--ckpt.max_num 1",  # no checkpoint is written
        "--ckpt.max_num 1 --ckpt.save_steps 5 --ckpt.disable_ds --ckpt.save_hf",
        "--actor.dual_clip 1.1 --reward.clip_range -1 1",
        "--algo.advantage.is_correction_level token --algo.advantage.is_correction_mode clip",
        "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating tv "
        "--algo.advantage.is_correction_threshold 0.1",
        "--actor.optim muon --actor.max_norm 0",
        "--critic.optim muon --advantage_estimator reinforce",  # there is no critic
        "--algo.advantage.no_std_norm --advantage_estimator reinforce",
        "--algo.kl.target 6 --algo.kl.horizon 1",
        "--algo.kl.horizon 0",  # which only the adaptive coefficient reads
        "--rollout.vllm_generate_batch_size 0 --data.max_samples 1 --ds.zero_stage 0",  # the first: as many as usual
        "--eval.dataset eval.jsonl --eval.steps 5",
        "--rollout.top_p 0.9",
        "--rollout.temperature 2 --rollout.top_p 1e-3 --rollout.max_new_tokens 1",
        "--rollout.temperature 0.01",
        f"{EVALUATION} --eval.temperature 2 --eval.n_samples_per_prompt 1",
        f"{EVALUATION} --eval.temperature 0",
        "--eval.temperature 3 --eval.n_samples_per_prompt 0",  # there is no evaluation
        "--reward.overlong_buffer_len 256 --rollout.max_new_tokens 256 --reward.stop_properly_penalty_coef 1",
        "--reward.overlong_buffer_len 2048 --reward.stop_properly_penalty_coef -0.5",
        "--data.prompt_dataset a.jsonl --data.prompt_probs 1",
        "--data.prompt_dataset a.jsonl,b.jsonl,c.jsonl --data.prompt_probs 0.33333333,0.33333333,0.33333333",
        "--train.async_queue_size 0",
        "--train.async_enable --train.async_queue_size 1",
        "--critic.lr_scheduler no_such --advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2",
        *(f"--actor.lr_scheduler {name} --critic.lr_scheduler {name}" for name in checks.SCHEDULERS),
        "--policy_loss openrlhf",
        "--policy_loss openrlhf --entropy.target 0.4 --entropy.schedule open",
        "--policy_loss openrlhf --entropy.record_tokens 4",
        "--policy_loss entropy_bonus --entropy.schedule gate --entropy_bonus.coefficient 0.01",
        "--policy_loss entropy_bonus --entropy.schedule pi",
        "--policy_loss ce_gppo --train.max_epochs 2",
        "--policy_loss kl_cov --entropy.schedule pi --train.max_epochs 2",
        "--policy_loss high_entropy",
        "--policy_loss entropy_bonus",
        "--policy_loss stare --entropy.schedule pi --entropy.target 50%",
        "--entropy.target 50% --entropy.target_end 25% --entropy.anneal_rollouts 9 --entropy.stop_above 150%",
        "--policy_loss stare+entropy_bonus --entropy.schedule pi --entropy.sides both",
        "--policy_loss entropy_bonus+clip_higher --actor.policy_loss_type gspo --train.max_epochs 2",
        "--policy_loss clip_higher --train.max_epochs 2 --entropy.schedule pi --actor.eps_clip_low_high 0.2 0.3",
        "--policy_loss clip_higher --train.max_epochs 2 --entropy.schedule pi --entropy.sides both "
        "--actor.eps_clip_low_high 0.2 0.25",
        "--advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2 --sr_grpo.tau 1e-3",
        "--advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2 --policy_loss openrlhf",
        "--advantage_estimator group_norm --rollout.n_samples_per_prompt 2 --algo.kl.init_coef 0",
        "--advantage_estimator group_norm --rollout.n_samples_per_prompt 2 --algo.kl.use_loss",
        "--advantage_estimator group_norm --rollout.n_samples_per_prompt 2 --policy_loss openrlhf",
    ],
)
def test_what_is_just_inside_is_accepted_without_a_warning(words):
    assert checks.check(parse(*words.split())) == []


@pytest.mark.parametrize(
    "flag, value, others",
    [
        ("--kl_cov.share", "0.002", ""),
        ("--kl_cov.share", "0.002", "--policy_loss openrlhf"),
        ("--stare.w_max", "20.0", "--policy_loss openrlhf"),
        ("--stare.variant", "C2", "--policy_loss kl_cov --train.max_epochs 2"),
        ("--tpo.eta", "0.5", ""),
        ("--tpo.length_normalize", "False", "--tpo.no_length_normalize"),
        ("--sr_grpo.tau", "0.1", "--advantage_estimator group_norm"),
        ("--entropy.schedule", "pi", "--policy_loss openrlhf"),
        ("--entropy.schedule", "gate", " ".join(TPO)),
        ("--entropy.step", "0.2", "--policy_loss openrlhf"),
    ],
)
def test_a_flag_of_what_was_not_chosen_is_refused(flag, value, others):
    words = [] if value == "False" else [flag, value]
    sentence = refusal(*words, *others.split())
    assert sentence.startswith(f"{flag} {value} goes with ") and sentence.endswith(": leave it out")
    assert "\n" not in sentence


def test_an_average_that_would_not_be_saved_is_refused():
    sentence = refusal("--train.enable_ema", "--ds.zero_stage", "3")
    assert sentence.startswith(
        "--train.enable_ema with --ds.zero_stage 3 would save the model that the job started with"
    )


def test_the_schedules_are_those_that_run_without_a_metric_and_without_further_steps():
    import torch
    from transformers.trainer import get_scheduler
    from transformers.trainer_utils import SchedulerType

    def runs(name: str) -> bool:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        try:
            schedule = get_scheduler(name, optimizer, 3, 10, {"min_lr_rate": 0.1} if "min_lr" in name else {})
            optimizer.step()
            schedule.step()
        except TypeError:
            return False
        return True

    assert {of.value for of in SchedulerType if runs(of.value)} == set(checks.SCHEDULERS)


@pytest.mark.parametrize("schedule", ["gate", "open"])
def test_a_bonus_that_stays_0_is_refused(schedule):
    sentence = refusal("--policy_loss", "entropy_bonus", "--entropy.schedule", schedule)
    assert sentence.startswith(f"--entropy.schedule {schedule} leaves --entropy_bonus.coefficient at its start of 0")
    assert "give --entropy_bonus.coefficient one above 0" in sentence


# What is warned of


@pytest.mark.parametrize(
    "words, named",
    [
        ("--actor.policy_loss_type gspo", "--actor.policy_loss_type gspo"),
        ("--train.enable_ema", "--train.enable_ema"),
        ("--eval.dataset eval.jsonl", "--eval.dataset eval.jsonl is not used, since --eval.steps -1 is never"),
        ("--rollout.temperature 0.009", "--rollout.temperature 0.009 is 0.01 for vLLM"),
        ("--reward.remote_url none --train.agent_func_path agent.py", "--reward.remote_url none is not used"),
        (
            "--reward.remote_url reward.py --reward.model_name_or_path model",
            "--reward.model_name_or_path model is not used, since --reward.remote_url gives the rewards",
        ),
        (
            "--train.agent_func_path agent.py --reward.model_name_or_path model",
            "--reward.model_name_or_path model is not used, since the agent gives the rewards",
        ),
        (
            "--algo.advantage.no_std_norm --advantage_estimator rloo --rollout.n_samples_per_prompt 2 "
            "--algo.kl.init_coef 0",
            "--algo.advantage.no_std_norm does nothing with --advantage_estimator rloo",
        ),
        ("--algo.kl.target 6 --algo.kl.init_coef 0", "--algo.kl.target 6 does nothing"),
        ("--actor.optim muon", "--actor.optim muon with --actor.max_norm 1 takes hardly a step"),
        ("--advantage_estimator group_norm --rollout.n_samples_per_prompt 2", "--algo.kl.init_coef 0.01"),
        ("--actor.policy_loss_type gspo --policy_loss high_entropy", "--policy_loss high_entropy does"),
        (
            "--policy_loss kl_cov --train.batch_size 128 --rollout.batch_size 128 --rollout.n_samples_per_prompt 1",
            "does nothing in the first optimizer step",
        ),
        (
            "--policy_loss stare+clip_higher --train.batch_size 128 --rollout.batch_size 128 "
            "--rollout.n_samples_per_prompt 1",
            "--policy_loss clip_higher does nothing in the first optimizer step",
        ),
        ("--policy_loss repo --entropy.target 50%", "--entropy.target 50% is only shown: --policy_loss repo acts"),
        ("--train.dynamic_batch_enable --ds.zero_stage 2", "--ds.zero_stage 2 trains on the last micro-batch"),
        (f"{EVALUATION} --train.async_enable", "weights of up to --train.async_queue_size 1 steps after the step"),
        ("--entropy.measure sampled --train.async_enable", "--entropy.measure sampled"),
        ("--entropy.measure sampled --train.async_enable --policy_loss openrlhf", "--entropy.measure sampled"),
    ],
)
def test_what_works_otherwise_than_one_may_think_is_warned_of(words, named):
    (warning,) = checks.check(parse(*words.split()))
    assert named in warning


def test_every_warning_that_applies_is_given():
    words = "--actor.policy_loss_type gspo --entropy.measure sampled --train.async_enable"
    assert len(checks.check(parse(*words.split()))) == 2


def test_what_concerns_the_weights_alone_is_no_matter_for_openrlhfs_loss():
    assert checks.check(parse(*"--policy_loss openrlhf --actor.policy_loss_type gspo".split())) == []


OWN = """
from dataclasses import dataclass
from openrlhf_stare.methods.base import Method
from openrlhf_stare.options import Options, option

@dataclass(frozen=True)
class OwnOptions(Options):
    least: float = option(0.0, "advantages below it do not count", within="[0, 1]")

class Own(Method):
    Options = OwnOptions
"""


def test_a_method_of_ones_own_brings_its_options_as_flags(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    args = parse("--policy_loss", str(file), "--own.least", "0.5")
    assert args.own.least == 0.5 and checks.check(args) == []
    assert "--own.least 2.0 is outside [0, 1]" in refusal("--policy_loss", str(file), "--own.least", "2")
    (tmp_path / "stare.py").write_text(OWN)
    assert "that no method has" in refusal("--policy_loss", str(tmp_path / "stare.py"))
    file.write_text("import nowhere_to_be_found")
    assert "cannot be imported (ModuleNotFoundError" in refusal("--policy_loss", str(file))
    file.write_text("")
    assert "defines 0 subclasses of Method" in refusal("--policy_loss", str(file))
