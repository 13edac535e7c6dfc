"""Responses for which OpenRLHF's agent got no reward."""

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from advantage_step import dealing_args
from flag_parser import parse

from openrlhf_stare import worker
from openrlhf_stare.rollout.failing_rewards import RewardsFail

worker.install()
ppo_trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
SamplesGenerator = importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator").SamplesGenerator


def response(reward, **extra_logs: float) -> dict:
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
        **vars(dealing_args(prompts=1, k=2, train=2)),
        policy_loss="stare",
        eval_top_p=None,
        vllm=SimpleNamespace(enable_sleep=False),
    )
    generator.eval_dataloader = []
    return generator


def test_no_reward_is_nan_and_with_a_reward_model_it_is_still_to_come(generator):
    lost = generator._process_response_into_experience(response(None), max_len=8)
    assert lost.rewards.isnan().all() and lost.scores.tolist() == [0] and lost.info["reward"].isnan().all()
    generator.args.reward.remote_url = None
    assert generator._process_response_into_experience(response(None), max_len=8).rewards is None


@pytest.mark.parametrize(
    ("reward", "scores", "score"),
    [
        (torch.tensor([math.nan]), torch.tensor([math.nan]), 0),  # OpenRLHF takes the reward where no score is given
        (math.inf, math.inf, 0),
        (1.0, math.nan, 0),
        (1.0, torch.tensor([0.5]), 0.5),
    ],
)
def test_a_score_that_is_not_finite_does_not_cost_its_group(generator, reward, scores, score):
    made = generator._process_response_into_experience({**response(reward), "scores": scores}, max_len=8)
    assert made.scores.tolist() == [score] and made.rewards.tolist() == pytest.approx([float(reward)], nan_ok=True)


def test_a_reward_stays_what_it_is(generator):
    given = generator._process_response_into_experience(response(0.5, odd=1.0), max_len=8)
    assert given.rewards.tolist() == given.scores.tolist() == [0.5] and given.info["odd"].tolist() == [1]


@pytest.mark.parametrize(
    "answer",
    [[0.5], [[0.5]], (0.5,), torch.tensor([0.5]), torch.tensor([[0.5]]), torch.tensor(0.5)]
    + [np.array([0.5]), np.array([[0.5]]), np.array(0.5), np.float64(0.5)],
    ids=repr,
)
def test_the_only_number_may_be_in_a_list_or_array(generator, answer):
    given = generator._process_response_into_experience(response(answer), max_len=8)
    assert given.rewards.tolist() == given.scores.tolist() == given.info["reward"].tolist() == [0.5]


@pytest.mark.parametrize(
    "answer",
    [[0.5, 1.0, 0.0], [], "0.5", ["0.5"], {"reward": 1}, [None], torch.zeros(3), torch.zeros(0), np.zeros(2)],
    ids=repr,
)
def test_what_is_no_single_number_is_no_reward(generator, answer):
    lost = generator._process_response_into_experience(response(answer), max_len=8)
    assert lost.rewards.isnan().all() and lost.rewards.shape == (1,) and lost.scores.tolist() == [0]


def test_a_score_that_is_no_number_is_0_and_none_stays_none(generator):
    for score, expected in ((None, None), ([1.0, 2.0], [0.0]), ([0.25], [0.25])):
        given = generator._process_response_into_experience({**response(1.0), "scores": score}, max_len=8)
        assert given.rewards.tolist() == [1.0]
        assert (given.scores if score is None else given.scores.tolist()) == expected


@pytest.mark.parametrize("extra_logs", [{"a": [3.0], "b": np.ones(1), "c": "text", "d": torch.ones(0)}, None, [1]])
def test_an_agents_figures_are_numbers_and_what_is_none_does_not_end_the_job(generator, extra_logs):
    made = generator._process_response_into_experience({**response(1.0), "extra_logs": extra_logs}, max_len=8)
    expected = {"a": [3.0], "b": [1.0]} if isinstance(extra_logs, dict) else {}
    found = {name: value.tolist() for name, value in made.info.items() if name in {"a", "b", "c", "d"}}
    assert found == expected


JOB = """--rollout.batch_size 2 --rollout.n_samples_per_prompt 2 --reward.remote_url reward.py
    --algo.dynamic_filtering_enable --failed_rewards.stop_after 3""".split()


@pytest.mark.parametrize("rewards", [(None, None), (math.nan, math.inf), (None, 1.0)], ids=str)
def test_what_dynamic_filtering_drops_counts_towards_the_end_of_the_job(monkeypatch, rewards):
    """It would draw all prompts, and train on none, episode for episode."""
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    monkeypatch.setattr(ray, "wait", lambda refs, **options: (refs[:1], refs[1:]))
    prompts = [(None, [f"{number}="], ["2"], [None]) for number in range(20)]
    generator = SamplesGenerator(SimpleNamespace(args=parse(*JOB)), prompts, prompts, None, [])
    asked = []

    def dispatch(prompts: list, *others, **named) -> list:
        asked.extend(prompts)
        return [[response(reward) for reward in rewards] for _ in prompts]

    monkeypatch.setattr(generator, "_dispatch_prompts_to_vllm", dispatch)
    generator.generate_eval_samples(max_len=8)
    assert len(asked) == 20  # an evaluation is another matter
    if rewards[1] == 1:  # half of them
        generator.generate_samples(max_len=8)
        return
    with pytest.raises(RewardsFail, match="In 3 rollouts in a row more than half .* in the last one 4 of 4"):
        generator.generate_samples(max_len=8)
    assert len(asked) < 20 + 10


def evaluated(generator, monkeypatch, rewards: list, samples_per_prompt: int = 2) -> dict[str, float]:
    """OpenRLHF's figures of an evaluation in which the responses have these rewards."""
    made = [generator._process_response_into_experience(response(each), max_len=8) for each in rewards]
    for place, sample in enumerate(made):
        sample.prompts = [f"prompt {place // samples_per_prompt}"]
    monkeypatch.setattr(generator, "_generate_vllm", lambda **_: (made, len(made), True))
    samples = generator.generate_eval_samples(n_samples_per_prompt=samples_per_prompt)
    return ppo_trainer.compute_eval_metrics([], samples, samples_per_prompt)


@pytest.mark.parametrize("failed", [None, [1.0, 2.0], math.nan, math.inf], ids=str)
def test_an_evaluation_is_that_of_the_responses_that_have_a_reward(generator, monkeypatch, capsys, failed):
    whole = evaluated(generator, monkeypatch, [0.0, 1.0, 0.5, 0.5, 0.25, 0.75])
    assert "Evaluation" not in capsys.readouterr().err
    assert whole["eval_unknown_pass1"] == 0.5
    figures = evaluated(generator, monkeypatch, [failed, 1.0, 0.5, 0.5, failed, failed])
    assert figures["eval_unknown_pass1"] == figures["eval_unknown_pass2"] == 0.75
    assert all(math.isfinite(value) for value in figures.values())
    assert (
        "Evaluation: 3 of 6 responses have no finite reward and count as the mean of the others to their prompt; "
        "prompts without any are left out: 1"
    ) in capsys.readouterr().err


def test_an_evaluation_without_any_reward_has_no_figures(generator, monkeypatch):
    """So no best checkpoint is saved by it, and none has NaN for its metric."""
    assert evaluated(generator, monkeypatch, [None] * 4) == {}


def test_all_responses_of_a_rollout_have_the_same_figures(generator):
    made = [
        generator._process_response_into_experience(each, max_len=8)
        for each in (response(None, even=0.0), response(1.0, odd=1.0, even=0.0, third=3.0))
    ]
    generator._sample_buffer, generator._dataloader_iter = made, None
    samples, *_ = generator.generate_samples()
    assert list(samples[0].info) == list(samples[1].info)
    assert samples[0].info["odd"].isnan().all() and samples[1].info["odd"].tolist() == [1]
