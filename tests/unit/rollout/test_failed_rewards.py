"""Responses for which OpenRLHF's agent got no reward."""

import importlib
from types import SimpleNamespace

import pytest

from openrlhf_stare import worker

worker.install()
SamplesGenerator = importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator").SamplesGenerator


def response(reward: float | None, **extra_logs: float) -> dict:
    """As OpenRLHF's `SingleTurnAgentExecutor` returns it."""
    return {
        "prompt": "1+1=",
        "label": "2",
        "observation_tokens": [4, 5, 6, 7],
        "action_ranges": [(2, 4)],
        "rollout_log_probs": None,
        "truncated": False,
        "reward": reward,
        "scores": reward,
        "extra_logs": extra_logs,
    }


@pytest.fixture
def generator() -> SamplesGenerator:
    generator = SamplesGenerator.__new__(SamplesGenerator)
    generator.args = SimpleNamespace(
        reward=SimpleNamespace(remote_url=["reward.py"]),
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=2, micro_batch_size=1),
        train=SimpleNamespace(batch_size=2, dynamic_batch_enable=False),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        policy_loss="stare",
    )
    return generator


def test_no_reward_is_nan_and_with_a_reward_model_it_is_still_to_come(generator):
    lost = generator._process_response_into_experience(response(None), max_len=8)
    assert lost.rewards.isnan().all() and lost.scores.tolist() == [0] and lost.info["reward"].isnan().all()
    generator.args.reward.remote_url = None
    assert generator._process_response_into_experience(response(None), max_len=8).rewards is None


def test_a_reward_stays_what_it_is(generator):
    given = generator._process_response_into_experience(response(0.5, odd=1.0), max_len=8)
    assert given.rewards.tolist() == given.scores.tolist() == [0.5] and given.info["odd"].tolist() == [1]


def test_all_responses_of_a_rollout_have_the_same_figures(generator):
    made = [
        generator._process_response_into_experience(each, max_len=8)
        for each in (response(None), response(1.0, odd=1.0))
    ]
    generator._sample_buffer, generator._dataloader_iter = made, None
    samples, *_ = generator.generate_samples()
    assert samples[0].info.keys() == samples[1].info.keys()
    assert samples[0].info["odd"].isnan().all() and samples[1].info["odd"].tolist() == [1]
