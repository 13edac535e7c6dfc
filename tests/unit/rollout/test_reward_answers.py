"""What a reward function returns and raises, and the end of a job whose reward mostly fails."""

import asyncio
import importlib
import math

import pytest
import torch

from openrlhf_stare import worker
from openrlhf_stare.rollout import failing_rewards, reward_answers

worker.install()
agent = importlib.import_module("openrlhf.utils.agent")


def asked(tmp_path, source: str, times: int = 1) -> list:
    """What OpenRLHF's executor gets from a reward file, or the exceptions that it logs."""
    file = tmp_path / "reward.py"
    file.write_text(f"import torch\ndef reward_func(queries, prompts, labels):\n    {source}\n")
    executor = agent.SingleTurnAgentExecutor([str(file)])

    async def ask():
        asking = [executor._fetch_rewards_via_func(["1+1=3"], ["1+1="], ["2"]) for _ in range(times)]
        return await asyncio.gather(*asking, return_exceptions=True)

    return asyncio.run(ask())


@pytest.fixture
def told(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(reward_answers, "notice", said.append)
    monkeypatch.setattr(reward_answers, "_told", set())
    return said


@pytest.mark.parametrize(
    "answer", ["[0.5]", "0.5", "torch.tensor(0.5)", "{'rewards': [0.5]}", "{'rewards': 0.5, 'scores': [0.5]}"]
)
def test_one_number_is_taken_in_any_form(tmp_path, told, answer):
    [[taken]] = asked(tmp_path, f"return {answer}")
    assert taken["rewards"].tolist() == [0.5] and taken.get("scores", taken["rewards"]).shape == (1,)
    assert told == []


def test_what_openrlhf_wants_stays_as_it_is(tmp_path, told):
    [[taken]] = asked(tmp_path, "return {'rewards': torch.tensor([2], dtype=torch.int32), 'extra_logs': {'a': 1}}")
    assert taken["rewards"].dtype == torch.int32 and taken["extra_logs"] == {"a": 1}
    assert asked(tmp_path, "return None") == [[None]] and told == []


def test_the_first_exception_is_told_with_its_place_and_its_prompt(tmp_path, told):
    first, second = asked(tmp_path, "return 1 / len(labels[0][1:])", times=2)
    assert isinstance(first, ZeroDivisionError) and isinstance(second, ZeroDivisionError)
    [said] = told
    assert "raised ZeroDivisionError: division by zero" in said and f"{tmp_path}/reward.py, line 3" in said
    assert "for the prompt '1+1='" in said


def test_several_numbers_for_one_response_are_told_as_well(tmp_path, told):
    [error] = asked(tmp_path, "return {'rewards': torch.zeros(3)}")
    assert isinstance(error, ValueError) and "has the shape (3,): OpenRLHF wants" in told[0]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([0.5], "a list and no dict"),
        (0.5, "a float and no dict"),
        ({"reward": 1.0}, "a dict without \"rewards\" (it has 'reward')"),
        ({"rewards": torch.zeros(1, 2)}, '"rewards" of the shape (1, 2)'),
        ({"rewards": [0.5]}, '"rewards" as a list'),
        ({"rewards": torch.zeros(1), "scores": "good"}, '"scores" as a str'),
        ({"rewards": torch.zeros(1), "scores": None}, None),
        ({"rewards": torch.tensor([math.nan])}, None),
        (None, None),
    ],
)
def test_what_is_wrong_with_an_answer(answer, named):
    assert reward_answers.problem(answer) == named


def test_a_reward_that_mostly_fails_ends_the_job_after_so_many_rollouts_in_a_row():
    watch = failing_rewards.RewardWatch(failing_rewards.FailedRewards(stop_after=3))
    for without in (5, 5, 4, 8, 8):  # half of 8 is not most
        watch.count(without, 8)
    with pytest.raises(failing_rewards.RewardsFail, match="In 3 rollouts in a row .* in the last one 5 of 8: fix"):
        watch.count(5, 8)


def test_the_end_can_be_switched_off():
    watch = failing_rewards.RewardWatch(failing_rewards.FailedRewards(stop_after=0))
    for _ in range(50):
        watch.count(8, 8)
    assert failing_rewards.FailedRewards().stop_after == 10
