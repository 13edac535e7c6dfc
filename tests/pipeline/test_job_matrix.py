"""STARE together with OpenRLHF's other features: a few jobs of a few steps, each of which carries several of them."""

import json
import re

import pytest
import torch
from jobs import CONTROL_FIGURES, OFF_POLICY_KL, ON_POLICY_KL, ROOT, assert_figures, assert_sound, job_flags, run_job
from safetensors.torch import load_file

ALWAYS = ["--entropy.target", "3"]  # no policy over 16 tokens has as much, so the gate is on
TIME_LIMIT = 480  # seconds for a job that takes about 45 on two free cores


def test_colocated_with_several_optimizer_steps_two_epochs_clip_higher_dual_clip_and_adaptive_c2(addends, tmp_path):
    """Each rollout of 32 responses is trained on twice, in optimizer steps of 16."""
    flags = [*job_flags(addends, tmp_path, micro_batch=8), *ALWAYS, "--data.max_samples", "8"]
    flags += ["--train.colocate_all", "--vllm.num_engines", "2", "--train.batch_size", "16", "--train.max_epochs", "2"]
    flags += ["--actor.eps_clip_low_high", "0.2", "0.28", "--actor.dual_clip", "3", "--actor.lr_scheduler", "linear"]
    flags += ["--stare.variant", "C2", "--entropy.schedule", "adaptive", "--entropy.step", "0.1"]
    job = run_job(flags, tmp_path, timeout=TIME_LIMIT)
    assert_sound(job, steps=2)
    assert_figures(job, rollouts=2, variant="C2")
    # The rate falls linearly over 2 rollouts × 2 epochs × 2 optimizer steps: all eight were taken.
    assert job.scalars["actor_lr"] == pytest.approx([1.5e-4, 0])
    assert all(kl != 0 for kl in job.scalars["ppo_kl"])  # the policy moves away from the rollout's within a fit
    assert job.scalars["entropy/gate_on"] == [1, 1]
    assert job.scalars["stare/reweight_w"] == pytest.approx([1.2, 1.3])
    assert job.scalars["stare/reweight_m"] == pytest.approx([0.8, 0.7])
    # A cache for as many sequences as an engine may generate at a time, and not for all that a GiB holds.
    cached = re.findall(r"Maximum concurrency for 32 tokens per request: ([\d.]+)x", job.output)
    assert len(cached) == 2 and all(64 < float(sequences) < 1024 for sequences in cached)


def test_clip_cov_sr_grpo_and_adaptive_in_partial_rollouts_with_dynamic_batches_packing_and_token_clip(
    addends, tmp_path, cluster
):
    """Rewards are 0 or 1, so without a baseline no token has a negative advantage."""
    flags = [*job_flags(addends, tmp_path), *ALWAYS, "--data.max_samples", "12", "--advantage_estimator", "sr_grpo"]
    flags += "--policy_loss clip_cov --clip_cov.share 0.1 --clip_cov.low 1e-6 --clip_cov.high 100".split()
    flags += "--entropy.schedule adaptive --entropy.step 0.1 --clip_cov.bound 0.9".split()
    flags += ["--train.async_enable", "--train.partial_rollout_enable"]
    flags += ["--train.dynamic_batch_enable", "--ds.packing_samples"]
    flags += ["--train.max_tokens_per_gpu", "64", "--rollout.max_tokens_per_gpu", "64"]
    flags += ["--algo.advantage.is_correction_mode", "clip", "--algo.advantage.is_correction_threshold", "0.5", "2"]
    flags += ["--rollout.temperature", "1.5"]  # for answers of different lengths
    job = run_job(
        [*flags, "--entropy.record_tokens", "2", "--console", "compact"], tmp_path, timeout=TIME_LIMIT, cluster=cluster
    )
    assert any(line.startswith("step 3/3 ") for line in job.output.splitlines()), job.output
    assert_sound(job, steps=3, vllm_kl=OFF_POLICY_KL)
    assert abs(job.scalars["vllm_kl"][0]) < ON_POLICY_KL  # sampled before any step
    assert CONTROL_FIGURES <= job.scalars.keys()
    assert job.scalars["entropy/gate_on"] == [1, 1, 1]
    assert job.scalars["clip_cov/share"] == pytest.approx([0.2, 0.3, 0.4])
    # No covariance is positive in a rollout whose groups have one advantage.
    drawn = list(zip(*(job.scalars[f"clip_cov/{name}_ratio"] for name in ("dropped", "band")), strict=True))
    assert any(band > 0 for _, band in drawn)
    assert all(0 < dropped <= band < 1 or dropped == band == 0 for dropped, band in drawn)
    assert all(dropped <= share for (dropped, _), share in zip(drawn, job.scalars["clip_cov/share"], strict=True))
    assert all(0 <= ratio < 0.1 for ratio in job.scalars["is_filter_ratio"])
    assert any(length != 4 for length in job.scalars["response_length"])  # that of a well-formed answer
    # This mode's own trainer tells the ranks the step that is logged.
    record = [json.loads(line) for line in (tmp_path / "tensorboard/run/tokens.jsonl").read_text().splitlines()]
    assert [line["step"] for line in record] == [1, 1, 2, 2, 3, 3]
    assert all(advantage >= 0 for line in record for advantage in line["advantage"])
    for step, reward_mean in enumerate(job.scalars["rollout/reward_mean"]):
        assert job.scalars["entropy/zero_variance_groups"][step] in range(4 + 1)
        mean, std = job.scalars["soft_advantage_mean"][step], job.scalars["soft_advantage_std"][step]
        # A soft reward is above its group's mean, and all alike make no spread.
        assert reward_mean < mean <= 1 and 0 <= std <= 0.5
        # The same number in OpenRLHF's own output.
        assert f"'soft_advantage_mean': {mean}," in (tmp_path / "checkpoints/output.log").read_text()


def test_filtering_reference_model_kl_loss_zero2_offload_ema_entropy_bonus_checkpointing_pi_fused_head(
    addends, tmp_path, cluster
):
    prompts = (addends / "prompts.jsonl").read_text().splitlines()[:30]
    odd = sum(int(json.loads(line)["label"]) % 2 for line in prompts)
    assert odd == 14  # three rollouts of four prompts; the last two prompts fill none
    flags = [*job_flags(addends, tmp_path), "--data.max_samples", "30", "--algo.dynamic_filtering_enable"]
    flags += ["--reward.remote_url", str(ROOT / "tests/pipeline/rewards/odd_totals.py"), "--ds.zero_stage", "2"]
    flags += ["--ds.adam_offload", "--ref.num_gpus_per_node", "1", "--algo.kl.init_coef", "0.01", "--algo.kl.use_loss"]
    flags += ["--algo.kl.estimator", "k3", "--train.enable_ema", "--train.ema_beta", "0.5"]
    flags += ["--actor.gradient_checkpointing_enable", "--actor.entropy_coef", "0.001", "--actor.fused_head"]
    flags += ["--algo.advantage.is_correction_level", "seq"]
    flags += ["--entropy.schedule", "pi", "--entropy.target", "1.2", "--stare.w_max", "20"]
    job = run_job(flags, tmp_path, timeout=TIME_LIMIT, cluster=cluster)
    assert_sound(job, steps=3)
    assert_figures(job, rollouts=3, variant="C2", top_p_ratio=0.05)
    assert abs(job.scalars["kl"][0]) < 1e-4 < job.last("kl")  # the policy starts as the reference and leaves it
    # One optimizer step a rollout: OpenRLHF's entropy while training is that of our log-prob pass.
    assert job.scalars["entropy_loss"] == pytest.approx(job.scalars["entropy/mean"], rel=0.02)
    integral = 0.0
    for figures in job.rollouts:
        error = (1.2 - figures["entropy/mean"]) / 1.2
        integral = min(max(0.0, integral + 0.05 * error), 1.0)
        effort = min(max(0.0, 3.9 * error + integral), 1.0)
        assert figures["entropy/effort"] == pytest.approx(effort, rel=1e-5)
        assert figures["stare/reweight_w"] == pytest.approx(20**effort, rel=1e-5)
        assert figures["stare/reweight_m"] == pytest.approx(0.3**effort, rel=1e-5)
    assert changed(tmp_path / "model", addends / "model")
    assert "Rollout of 16 responses: 16 left out, 0 kept" in job.output
    assert job.scalars["odd_total"] == [1, 1, 1]  # the even totals were generated, and filtered
    consumed = [round(32 / rate * 100) for rate in job.scalars["dynamic_filtering_pass_rate"]]
    assert 12 < sum(consumed) <= 30


def test_multi_turn_agent_with_gspo_sampled_entropy_and_what_a_gpu_without_a_toolkit_has(addends, tmp_path, cluster):
    """The tool's tokens lie in the middle of each response, and take no part in anything. Packed sequences through
    torch's attention, the head without logits and torch's fused Adam."""
    responses = 32
    flags = [*job_flags(addends, tmp_path), *ALWAYS, "--data.max_samples", "8", "--ds.packing_samples"]
    flags += ["--train.agent_func_path", str(ROOT / "tests/pipeline/agents/second_try.py")]
    flags += ["--entropy.measure", "sampled", "--stare.variant", "C2", "--actor.policy_loss_type", "gspo"]
    adam = {"OPENRLHF_STARE_ADAM": "torch"}
    job = run_job([*flags, "--actor.fused_head"], tmp_path, timeout=TIME_LIMIT, cluster=cluster, env=adam)
    assert_sound(job, steps=2, vllm_kl=None)
    assert "the optimizer is torch's fused Adam" in job.output
    assert "--actor.policy_loss_type gspo has one ratio per response" in job.output
    assert_figures(job, rollouts=2, variant="C2")
    for step, figures in enumerate(job.rollouts):
        means = {tag: values[step] for tag, values in job.scalars.items()}
        sampled, tool = means["sampled_tokens"], means["tool_tokens"]
        assert 1 < tool < 3 and means["response_length"] == pytest.approx(sampled + tool)
        # The entropy is that of the sampled tokens and of no other, up to the engine's rounding.
        assert figures["entropy/mean"] == pytest.approx(-means["sampled_log_prob"] / sampled, abs=0.01)
        # And the ratios count whole tokens out of as many.
        for name in ("positive_candidate", "negative_candidate", "positive_reweight", "negative_reweight"):
            count = figures[f"stare/{name}_ratio"] * sampled * responses
            assert count == pytest.approx(round(count), abs=1e-3)


def test_tpo_with_kl_loss_dynamic_batches_packing_and_lost_rewards(addends, tmp_path, cluster):
    """Rollouts of 4 prompts × 8 responses, trained on twice. A step is on all of them and without momentum: so it goes
    down their own gradient, where one on half of them could lead away from the targets of the others."""
    flags = [*job_flags(addends, tmp_path), "--policy_loss", "tpo", "--data.max_samples", "12"]
    flags += ["--algo.advantage.is_correction_level", "off", "--train.max_epochs", "2"]
    flags += ["--actor.adam.betas", "0", "0.95", "--ref.num_gpus_per_node", "1", "--algo.kl.init_coef", "0.01"]
    flags += ["--algo.kl.use_loss", "--algo.kl.estimator", "k3"]
    flags += ["--reward.remote_url", str(ROOT / "tests/pipeline/rewards/sometimes_nan.py")]
    flags += "--train.micro_batch_size 4 --train.dynamic_batch_enable --ds.packing_samples".split()
    flags += "--train.max_tokens_per_gpu 64 --rollout.max_tokens_per_gpu 64".split()
    job = run_job(flags, tmp_path, timeout=TIME_LIMIT, cluster=cluster)
    assert_sound(job, steps=3, vllm_kl=None)
    assert all(tokens > 0 for tokens in job.scalars["entropy/nonfinite_tokens"])
    assert all(0 <= share <= 1 for share in job.scalars["odd"]), "a figure of the reward function, without the lost"
    assert changed(tmp_path / "model", addends / "model")
    assert {tag for tag in job.scalars if tag.startswith(("entropy/", "stare/", "tpo/"))} == {
        *(f"entropy/{name}" for name in ("mean", "authority", "nonfinite_tokens", "seconds")),
        *(f"tpo/{name}" for name in ("target_kl", "fit_kl", "effective_responses", "zero_variance_groups")),
    }
    for target_kl, fit_kl in zip(job.scalars["tpo/target_kl"], job.scalars["tpo/fit_kl"], strict=True):
        assert 0 < fit_kl < target_kl, "the first step on a rollout brings the policy closer to its targets"
    assert all(1 < responses < 8 for responses in job.scalars["tpo/effective_responses"])
    assert all(groups in range(4 + 1) for groups in job.scalars["tpo/zero_variance_groups"])


def changed(model, start) -> bool:
    """Whether the parameters of a saved model differ from those of the one that it started from, in float32."""
    parameters, before = (load_file(folder / "model.safetensors") for folder in (model, start))
    assert parameters.keys() == before.keys()
    # In the type that the job computed in: rounded to that of --ds.param_dtype it can be the model of the start again.
    assert {value.dtype for model in (before, parameters) for value in model.values()} == {torch.float32}
    assert json.loads((model / "config.json").read_text())["dtype"] == "float32"
    return any(not torch.equal(parameters[name], before[name]) for name in parameters)
