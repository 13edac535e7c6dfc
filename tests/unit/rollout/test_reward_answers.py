"""What a reward function returns and raises, and the end of a job whose reward mostly fails."""

import asyncio
import importlib
import math
import socket
from pathlib import Path

import numpy as np
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


def test_a_function_that_exits_fails_for_its_response_alone(tmp_path, told):
    """`sys.exit` in a thread would end the event loop of the engine, and with it every answer to come."""
    source = "import sys; labels[0] == '2' and sys.exit('no label')"
    assert [str(error) for error in asked(tmp_path, source, times=2)] == ["sys.exit('no label')"] * 2
    assert len(told) == 1 and f"sys.exit('no label') ({tmp_path}/reward.py, line 3)" in told[0]


def test_an_answer_without_a_reward_is_told(tmp_path, told):
    [error] = asked(tmp_path, "return {'reward': 1.0}")
    assert isinstance(error, ValueError) and "a dict without \"rewards\" (it has 'reward'): OpenRLHF" in told[0]


def test_figures_that_are_no_numbers_are_told_and_not_logged(tmp_path, told):
    answer = "{'rewards': 0.5, 'extra_logs': {'a': 1, 'text': '42', 'none': None, 'two': torch.ones(2)}}"
    [[taken]] = asked(tmp_path, f"return {answer}")
    assert taken["extra_logs"] == {"a": 1, "two": 1} and taken["rewards"].tolist() == [0.5]
    assert told == ["A response has \"extra_logs\" with 'text' as a str and no number, which is not logged"]
    assert asked(tmp_path, "return {'rewards': 0.5, 'extra_logs': [1]}")[0][0]["extra_logs"] == {}


def test_a_figure_with_the_name_of_another_in_the_log_gets_a_name_of_its_own(tmp_path, told):
    answer = "{'rewards': 0.5, 'extra_logs': {'score': 7, 'a': 1, 'entropy/mean': 8, 'rollout/b': 9}}"
    [[taken]] = asked(tmp_path, f"return {answer}")
    others = {"extra_logs/score": 7, "extra_logs/entropy/mean": 8, "extra_logs/rollout/b": 9}
    assert taken["extra_logs"] == {"a": 1, **others}
    assert told == [
        "A response has \"extra_logs\" with 'score', a name that is in the log already: "
        "it is logged as extra_logs/score"
    ]
    assert reward_answers.figures(taken["extra_logs"]) == taken["extra_logs"]  # which are looked at once more


def test_the_names_in_the_log_are_openrlhfs():
    trainer = Path(agent.__file__).parents[1] / "trainer"
    source = "".join(file.read_text() for file in trainer.rglob("*.py"))
    missing = [name for name in reward_answers.OPENRLHFS if f'"{name}"' not in source and f"{name}: " not in source]
    missing += [name for name in reward_answers.TAKEN if name != "entropy/" and f'"{name}' not in source]
    assert missing == []


@pytest.mark.parametrize(
    "value",
    [3, [3], (3.0,), np.array([3]), np.array([[3.0]]), np.float32(3), [np.array(3)], torch.tensor([3])],
)
def test_a_figure_may_be_a_number_in_any_form(told, value):
    found = reward_answers.figures({"a": value})
    assert found == {"a": 3} and type(found["a"]) is float and told == []


@pytest.mark.parametrize(
    "value",
    [
        "3",
        b"3",
        None,
        [],
        [1, 2],
        {},
        np.ones(2),
        np.array(["3"]),
        torch.ones(0),
        torch.tensor(1j),
        pytest.param(10**400, id="too large"),
    ],
)
def test_a_figure_that_is_no_number_is_told(told, value):
    assert reward_answers.figures({"a": value, "b": 1}) == {"b": 1}
    assert told == [
        f"A response has \"extra_logs\" with 'a' as a {type(value).__name__} and no number, which is not logged"
    ]


def test_a_server_that_does_not_answer_is_told_with_its_address(told, monkeypatch):
    async def at_once(seconds):
        return None

    monkeypatch.setattr(agent.asyncio, "sleep", at_once)  # between its five requests
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}/score"
        executor = agent.SingleTurnAgentExecutor([f"http://user:HIDDEN@{place}?key=HIDDEN"])
        with pytest.raises(RuntimeError):
            asyncio.run(executor._fetch_rewards_via_http(["1+1=3"], ["1+1="], ["2"]))
    assert len(told) == 1 and "HIDDEN" not in told[0]
    assert told[0].startswith(f"The reward server http://{place} raised RuntimeError: Request error")


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
        (
            {"rewards": torch.zeros(1), "extra_logs": {"answer": "4"}},
            "\"extra_logs\" with 'answer' as a str and no number",
        ),
        ({"rewards": torch.zeros(1), "extra_logs": [1]}, '"extra_logs" as a list and no dict'),
        ({"rewards": torch.zeros(1), "extra_logs": {"a": 1, "b": torch.ones(2), "c": [0.5]}}, None),
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
