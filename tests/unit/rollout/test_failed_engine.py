"""The error of vLLM's own processes, which the engine's actor finds in its log."""

import asyncio
import math
import os
import threading

import pytest
import torch

from openrlhf_stare import worker

worker.install()

import openrlhf.trainer.ray.vllm_engine as vllm_engine  # noqa: E402

from openrlhf_stare.rollout.engine import (  # noqa: E402
    StareRolloutActor,
    first_logged_error,
    own_log,
    scored_by_the_others,
)

LOG = """\
INFO 11-22 10:00:00 [utils.py:1] starting
(EngineCore_DP0 pid=7) INFO 11-22 10:00:01 [core.py:2] loading
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] EngineCore failed to start.
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]   File "core.py", line 1, in run
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]     raise ValueError(text)
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] a.b.ValidationError: 1 validation error for ModelConfig
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]   2048 is more than 64
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]     For further information visit the page
"""
MORE = """\
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] During handling of the above exception, another occurred:
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] RuntimeError: gone
(EngineCore_DP0 pid=7) Process EngineCore_DP0:
"""
WHOLE = """\
a.b.ValidationError: 1 validation error for ModelConfig
  2048 is more than 64
    For further information visit the page"""


def test_the_first_error_is_found_with_all_its_lines():
    assert first_logged_error(LOG) == WHOLE
    assert first_logged_error(LOG + MORE) == WHOLE


def test_a_log_without_an_error():
    assert first_logged_error("INFO 11-22 10:00:00 [utils.py:1] ready\n") is None


@pytest.fixture
def standard_output():
    """File descriptor 1 is another's for a while."""
    saved, opened = os.dup(1), []

    def become(descriptor: int, *others: int) -> None:
        os.dup2(descriptor, 1)
        opened.extend([descriptor, *others])

    yield become
    os.dup2(saved, 1)
    for descriptor in {saved, *opened}:
        os.close(descriptor)


def test_the_log_of_an_actor_is_the_file_that_it_writes_to(standard_output, tmp_path):
    (tmp_path / "worker.out").write_text(LOG)
    standard_output(os.open(tmp_path / "worker.out", os.O_WRONLY | os.O_APPEND))
    assert first_logged_error(own_log()) == WHOLE


def test_a_pipe_has_no_log_to_read_and_is_not_waited_for(standard_output):
    """As under RAY_LOG_TO_STDERR=1: its end, which a reader waits for, comes with the actor's own."""
    reading, writing = os.pipe()
    os.write(writing, LOG.encode())
    standard_output(writing, reading)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(own_log()), daemon=True)
    thread.start()
    thread.join(30)
    assert answers == [""]
    assert os.read(reading, 20) == LOG.encode()[:20], "nothing is taken from whoever reads it"


def test_a_group_is_filtered_by_the_scores_of_those_that_have_a_reward():
    right = [{"reward": 1.0, "scores": 1.0}] * 3
    for lost in ({"reward": None}, {"reward": math.nan, "scores": 0.0}, {"reward": torch.tensor([math.inf])}):
        scored = scored_by_the_others([*right, lost])
        assert [response["scores"] for response in scored] == [1.0] * 4 and scored[:3] == right
        assert scored[3] == {**lost, "scores": 1.0}
        assert scored_by_the_others([lost, lost]) == [lost, lost]
    mixed = [{"reward": 0.0, "scores": torch.tensor([0.0])}, {"reward": 1.0, "scores": [1.0]}, {"reward": None}]
    assert scored_by_the_others(mixed)[2]["scores"] == 0.5
    unscored = [{"reward": 1.0}, {"reward": None}]  # OpenRLHF filters none then
    assert scored_by_the_others(unscored) == unscored and scored_by_the_others(right) == right


AGENT = """
import asyncio
import sys
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    asked = 0

    async def execute(self, prompt, label, **others):
        label == "none" and sys.exit("no label")
        if label == "task":
            await asyncio.gather(self.leave())
        self.asked += 1
        if label == "lost" and self.asked % 3 == 0:
            return {"prompt": prompt, "reward": float("nan"), "scores": 0.0}
        return {"prompt": prompt, "reward": 1.0, "scores": 1.0}

    async def leave(self):
        sys.exit("in a task")
"""
PLAIN = """
import asyncio
import sys
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    def execute(self, prompt, label, **others):
        label == "none" and sys.exit("no label")
        return asyncio.ensure_future(Answer(label))

class Answer:
    def __init__(self, label):
        self.label = label

    def __await__(self):
        yield
        self.label == "task" and sys.exit("in a task")
        return {"prompt": "1+1=", "reward": 1.0, "scores": 1.0}
"""


@pytest.fixture
def asked_engine(tmp_path, monkeypatch):
    """What an engine with this agent answers: to each label, with so many samples."""

    class Llm:
        """In the place of vLLM."""

        async def is_sleeping(self) -> bool:
            return False

    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(vllm_engine.vllm.AsyncLLMEngine, "from_engine_args", lambda of: Llm())
    monkeypatch.setattr(vllm_engine.vllm, "AsyncEngineArgs", lambda **named: named)

    async def answers(labels: dict[str, int]) -> list:
        engine = object.__new__(StareRolloutActor)
        await engine.__init__(agent_func_path=str(tmp_path / "agent.py"), num_gpus=0)
        asked = [engine.generate_responses("1+1=", label, None, 8, None, count) for label, count in labels.items()]
        return await asyncio.gather(*asked, return_exceptions=True)

    def ask(agent: str = AGENT, **labels: int) -> list:
        (tmp_path / "agent.py").write_text(agent)
        return asyncio.run(answers(labels))

    return ask


@pytest.mark.parametrize("agent", [AGENT, PLAIN], ids=["async", "plain"])
def test_an_agent_that_exits_is_an_error_of_its_prompt_and_the_engine_goes_on(asked_engine, agent):
    """It ended the event loop of the engine, for whose answers the job waited for ever."""
    *errors, [response] = asked_engine(agent, none=1, task=1, right=1)
    assert all(isinstance(error, RuntimeError) for error in errors)
    assert [str(error) for error in errors] == ["sys.exit('no label')", "sys.exit('in a task')"]
    assert response["reward"] == 1.0


def test_an_agent_that_exits_when_it_is_made_is_an_error_of_the_engine(asked_engine):
    with pytest.raises(RuntimeError, match=r"sys\.exit\('no key'\)"):
        asked_engine("import sys; sys.exit('no key')", right=1)


def test_the_engine_scores_a_response_without_a_reward_by_the_others(asked_engine):
    [responses] = asked_engine(lost=3)
    assert [response["scores"] for response in responses] == [1.0] * 3 and math.isnan(responses[2]["reward"])
