"""Two answers to one question: after a wrong first one a tool repeats the question, after a right one it writes `=`.

`12=5+9<eos>` `12=` `5+7<eos>`: the part in the middle is not the policy's, and the action mask is 0 there.
"""

import re

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

ANSWER = re.compile(r"([0-9])\+([0-9])")  # vLLM's text ends before the end token


class SecondTry(AgentInstanceBase):
    def __init__(self):
        self.turns = 0

    async def step(self, state_dict, **kwargs):
        self.turns += 1
        answer, label = ANSWER.fullmatch(state_dict["action_text"]), state_dict["label"]
        right = answer is not None and sum(map(int, answer.groups())) == int(label)
        feedback = "=" if right else f"{label}="
        done = self.turns == 2
        return {
            "rewards": torch.tensor(float(right)),
            "environment_feedback": "" if done else feedback,
            "done": done,
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """Logs how many tokens of a response the policy and the tool wrote, and the sum of the engine's log-probs of the
    policy's."""

    def __init__(self):
        super().__init__(SecondTry)

    async def execute(self, *args, **kwargs):
        response = await super().execute(*args, **kwargs)
        turns = response["action_ranges"]
        log_probs = [value for start, end in turns for value in response["rollout_log_probs"][start:end]]
        response["extra_logs"] = {
            "sampled_tokens": float(len(log_probs)),
            "tool_tokens": float(turns[-1][0] - turns[0][1]) if len(turns) == 2 else 0.0,
            "sampled_log_prob": sum(log_probs),
        }
        return response
