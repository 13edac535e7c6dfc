"""What is refused or warned of by the flags alone, before anything starts."""

import dataclasses

import pytest
from flag_parser import parse

from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.driver import checks

FIELDS = dataclasses.fields(StareConfig)
DEFAULTS = {field.name: field.default for field in FIELDS}

# As little as TPO asks for: OpenRLHF's own defaults are the gae estimator, a KL penalty and one response a prompt.
TPO = """--policy_loss tpo --advantage_estimator group_norm --algo.kl.init_coef 0 --actor.num_gpus_per_node 2
    --rollout.n_samples_per_prompt 4 --rollout.batch_size 16 --rollout.micro_batch_size 8
    --train.batch_size 32 --train.micro_batch_size 2""".split()


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
        ("--stare.schedule", "linear", "fixed, adaptive", ""),
        ("--stare.entropy", "none", "exact, sampled", ""),
        ("--stare.top_p_ratio", "1.5", "give", ""),
        ("--stare.top_p_ratio", "-0.1", "give", ""),
        ("--stare.top_p_ratio", "nan", "give", ""),
        ("--stare.reweight_w", "0.9", "give", ""),
        ("--stare.reweight_w", "inf", "give", ""),
        ("--stare.reweight_m", "1.2", "give", ""),
        ("--stare.reweight_m", "0", "give", ""),
        ("--stare.target_entropy", "0", "give", ""),
        ("--stare.target_entropy", "-0.3", "give", ""),
        ("--stare.alpha", "-0.01", "give", ""),
        ("--stare.record_tokens", "-1", "give", ""),
        ("--stare.w_max", "1.2", "1.3", "--stare.schedule adaptive --stare.reweight_w 1.3"),
        ("--stare.m_min", "0.8", "0.7", "--stare.schedule adaptive --stare.reweight_m 0.7"),
        ("--tool.seconds", "0", "give", ""),
        ("--tool.output_chars", "-1", "give", ""),
        ("--policy_loss", "grpo", "stare, openrlhf", ""),
        ("--stare.reweight_w", "2", "leave it out", "--stare.schedule pi"),
        ("--stare.reweight_w", str(DEFAULTS["reweight_w"]), "leave it out", "--stare.schedule pi"),
        ("--stare.reweight_m", str(DEFAULTS["reweight_m"]), "leave it out", "--stare.schedule pi"),
        ("--ckpt.max_num", "1", "at least 2", "--ckpt.save_steps 5"),
        ("--ckpt.max_num", "0", "at least 2", "--ckpt.save_steps 5 --policy_loss openrlhf"),
        ("--sr_grpo.tau", "0.0", "give one", ""),
        ("--sr_grpo.tau", "nan", "give one", ""),
        ("--rollout.n_samples_per_prompt", "1", "at least 2", "--advantage_estimator sr_grpo"),
        ("--tpo.eta", "0", "give", ""),
        ("--tpo.eta", "-1", "give", ""),
        ("--tpo.eta", "nan", "give", ""),
        ("--ds.lora.rank", "8", "merge", ""),
        ("--vllm.num_engines", "3", "make them equal", "--train.colocate_all --actor.num_gpus_per_node 4"),
        ("--actor.num_nodes", "2", "make them equal", "--train.colocate_all"),
        ("--ref.num_gpus_per_node", "4", "make them equal", "--train.colocate_actor_ref"),
        ("--reward.num_nodes", "2", "make them equal", "--train.colocate_critic_reward"),
        ("--eval_top_p", "0", "give", ""),
        ("--eval_top_p", "1.5", "give", ""),
        ("--wait_for_resources", "-1", "give seconds", ""),
        ("--rollout.top_p", "0.9", "exact", "--stare.entropy sampled"),
        ("--stare.entropy", "sampled", "--rollout.top_p 1", "--rollout.top_p 0.9"),
        ("--stare.entropy", "sampled", "--rollout.top_p 1", "--rollout.top_p 0.9 --policy_loss openrlhf"),
    ],
)
def test_a_bad_value_is_refused_with_the_flag_the_value_and_the_remedy(flag, value, remedy, others):
    sentence = refusal(flag, value, *others.split())
    assert f"{flag} {value}" in sentence
    assert remedy in sentence
    assert "\n" not in sentence


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


NUMBERS = [field.name for field in FIELDS if isinstance(field.default, float)]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_option_takes_a_number_that_is_not_finite(name, value):
    assert f"--stare.{name} {value}" in refusal(f"--stare.{name}={value}")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--stare.w_max 1.2 --stare.reweight_w 1.3",  # only the adaptive schedule reads w_max and m_min
        "--stare.m_min 0.8 --stare.reweight_m 0.7",
        "--stare.top_p_ratio 0",
        "--stare.top_p_ratio 1",
        "--stare.reweight_w 1",
        "--stare.reweight_m 1",
        "--stare.alpha 0",
        "--stare.entropy sampled",
        "--stare.schedule pi",
        "--ckpt.max_num 2 --ckpt.save_steps 5",
        "--ckpt.max_num 1",  # no checkpoint is written
        "--ckpt.max_num 1 --ckpt.save_steps 5 --ckpt.disable_ds",
        "--rollout.top_p 0.9",
        "--policy_loss openrlhf",
        "--advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2 --sr_grpo.tau 1e-3",
        "--advantage_estimator sr_grpo --rollout.n_samples_per_prompt 2 --policy_loss openrlhf",
    ],
)
def test_what_is_just_inside_is_accepted_without_a_warning(words):
    assert checks.check(parse(*words.split())) == []


# What is warned of


@pytest.mark.parametrize(
    "words, named",
    [
        ("--actor.policy_loss_type gspo", "--actor.policy_loss_type gspo"),
        ("--train.dynamic_batch_enable --ds.zero_stage 2", "--ds.zero_stage 2 trains on the last micro-batch"),
        ("--stare.entropy sampled --train.async_enable", "--stare.entropy sampled"),
        ("--stare.entropy sampled --train.async_enable --policy_loss openrlhf", "--stare.entropy sampled"),
    ],
)
def test_what_works_otherwise_than_one_may_think_is_warned_of(words, named):
    (warning,) = checks.check(parse(*words.split()))
    assert named in warning


def test_every_warning_that_applies_is_given():
    words = "--actor.policy_loss_type gspo --stare.entropy sampled --train.async_enable"
    assert len(checks.check(parse(*words.split()))) == 2


def test_what_concerns_the_weights_alone_is_no_matter_for_openrlhfs_loss():
    assert checks.check(parse(*"--policy_loss openrlhf --actor.policy_loss_type gspo".split())) == []
