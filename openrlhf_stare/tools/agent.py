"""The agent for `--train.agent_func_path`: a model that may write Python programs on its way to an answer.

A turn that ends in a Python block runs it, and the next turn goes on below what the program printed:

    ```python
    print(12 - 5)
    ```
    ```output
    7
    ```

The policy wrote the first block and the tool the second, whose tokens are no actions: `action_mask` is 0 there, so
they have no part in the loss or in STARE's statistics. A turn that the model ends in another way ends the response,
and so does one more program than it may run. Then the reward function of `--reward.remote_url` scores the whole text.

An exception in an agent ends OpenRLHF's whole job. So a failure of the tool is told to the model as the program's
output, and a failure of the reward function costs its response: the reward is NaN, and
`rollout/experience_maker.py` leaves it out of training.

What a program prints is data to the policy. Control tokens of the chat format and fences in it are broken, in the form
that the tokenizer's normalizer gives it, so that it can neither end its block nor the turn.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

from openrlhf_stare.notices import notice
from openrlhf_stare.tools import SETTINGS, cores, sandbox
from openrlhf_stare.tools.config import ToolConfig

FENCE = "```"
# Where generation pauses: the fence below a block. A Python block's first fence is another, as its line goes on.
END_OF_BLOCK = "\n```\n"
WITHHELD = "[the output is withheld: the tokenizer would read control tokens in it]"
# A Python block at the end of a turn, perhaps with the end token of a model that stops there by itself.
PROGRAM = re.compile(r"```python\n((?:(?!```).)*\n)```(?:\s*<[^<>\s]+>)?\Z", re.DOTALL)


class PythonTool(AgentInstanceBase):
    """The environment of one response. `control` are the strings that its tokenizer makes control tokens of, and
    `normalize` is what it makes of a text first."""

    def __init__(
        self,
        config: ToolConfig,
        pool: ThreadPoolExecutor,
        control: Iterable[str] = (),
        normalize: Callable[[str], str] = str,
    ) -> None:
        self.config, self.pool, self.control, self.normalize = config, pool, control, normalize
        self.calls = self.failures = 0

    async def step(self, state_dict: dict, **kwargs) -> dict:
        """OpenRLHF's interface: the text of a turn -> what comes below it, and whether the response is done."""
        text = state_dict["action_text"]
        program = PROGRAM.search(text.rstrip())
        if program and self.calls < self.config.max_calls:
            done, feedback = False, await self._run(program[1])
            if not text.endswith("\n"):
                feedback = "\n" + feedback
        else:
            # After a block in another language the model goes on as if it had not been interrupted.
            done, feedback = program is not None or not text.endswith(END_OF_BLOCK), ""
        return {
            "rewards": torch.tensor(0.0),  # the executor scores the whole response
            "environment_feedback": feedback,
            "done": done,
            "extra_logs": {"tool/calls": float(self.calls), "tool/failures": float(self.failures)},
        }

    async def _run(self, program: str) -> str:
        """The output block for the program."""
        self.calls += 1
        try:
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self.pool, sandbox.run, program, self.config)
        except Exception as error:
            notice(f"The Python tool could not run a program: {error!r}")
            traceback.print_exc()
            outcome = sandbox.Outcome(f"[the tool could not run this: {error!r}]\n", failed=True)
        self.failures += outcome.failed
        output = outcome.output or "[no output: print what you want to see]"
        output = harmless(output, self.control, self.normalize)
        return f"```output\n{output.removesuffix(chr(10))}{END_OF_BLOCK}"


class AgentExecutor(MultiTurnAgentExecutor):
    """Runs responses with the tool and scores them; one for each vLLM engine.

    Raises:
        SandboxMissing: there is no sandbox on this machine.
    """

    def __init__(self) -> None:
        super().__init__(PythonTool)
        options = json.loads(os.environ[SETTINGS])
        self.scorer = SingleTurnAgentExecutor(options.pop("reward").split(","))
        engines, gpus_of_each = options.pop("engines"), options.pop("gpus_of_each")
        self.config = ToolConfig(**options)
        sandbox.check(self.config)
        # A program's time runs from its start, so one that waits for a thread loses nothing.
        self.pool = ThreadPoolExecutor(cores.programs_at_a_time(engines, gpus_of_each))

    async def execute(
        self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None
    ) -> dict:
        """OpenRLHF's interface: one response to the prompt, with its tokens, the ranges of its actions, its reward."""
        # OpenRLHF makes an instance for each response and hands it no tokenizer.
        self.agent_instance_cls = partial(
            PythonTool, self.config, self.pool, control_strings(hf_tokenizer), normalizer(hf_tokenizer)
        )
        sampling_params = deepcopy(sampling_params)
        sampling_params.stop, sampling_params.include_stop_str_in_output = [END_OF_BLOCK], True
        response = await super().execute(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=images
        )
        tokens, turns = response["observation_tokens"], response["action_ranges"]
        actions = sum(end - start for start, end in turns)
        # OpenRLHF cuts off what the last output has beyond max_length.
        kept = tokens[:max_length]
        prompt_length = turns[0][0] if turns else len(kept)  # a prompt that leaves no room has no turn
        response["extra_logs"]["tool/tokens"] = float(len(kept) - prompt_length - actions)
        text = hf_tokenizer.decode(kept, skip_special_tokens=False)
        response["reward"], response["scores"] = await self._score(text, prompt, label)
        return response

    async def _score(self, text: str, prompt: str, label: str) -> tuple[float, float]:
        """Reward and score of a whole response: (NaN, 0) if the reward function failed."""
        fetch = self.scorer._fetch_rewards_via_func if self.scorer.reward_func else self.scorer._fetch_rewards_via_http
        try:
            (result,) = await fetch([text], [prompt], [label])
            reward = float(result["rewards"])
            score = reward if result.get("scores") is None else float(result["scores"])
            # Dynamic filtering takes the mean of a group's scores.
            return reward, score if math.isfinite(score) else 0.0
        except Exception:  # the first is told in rollout/reward_answers.py, and None is no reward on purpose
            return math.nan, 0.0


def control_strings(tokenizer) -> list[str]:
    """The texts that a tokenizer, or that of a processor, makes special or added tokens of.

    An added token of letters, digits and blanks alone is a word and controls nothing.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    added = [text for text in tokenizer.get_added_vocab() if not re.fullmatch(r"[\w\s]*", text)]
    return sorted({*tokenizer.all_special_tokens, *added})


def normalizer(tokenizer) -> Callable[[str], str]:
    """What a tokenizer, or that of a processor, makes of a text before it looks for tokens, such as a Unicode form."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    of_its_own = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return str if of_its_own is None else of_its_own.normalize_str


def harmless(output: str, control: Iterable[str], normalize: Callable[[str], str] = str) -> str:
    """The output, normalized, with a mark after the first character of each fence and control string: none is left.

    Where the tokenizer's normalizer gives another text each time, as one that puts a mark at the start does, Unicode's
    form of compatibility stands in for it, and an output that holds such a string even so is withheld.
    """
    strings = {FENCE, *filter(None, control)}
    strings |= {text for text in map(normalize, strings) if text.strip()}
    normal = normalize(output)
    output = normal if normalize(normal) == normal else unicodedata.normalize("NFKC", output)
    # With a character that is in none of them no new one comes about.
    marks = map(chr, range(ord(" "), sys.maxunicode))
    mark = next(mark for mark in marks if not any(mark in text for text in strings))
    # Looking ahead finds those too that overlap.
    starts = re.compile(f"(?={'|'.join(map(re.escape, strings))})(.)", re.DOTALL)
    broken = starts.sub(lambda start: mark if start[1] in strings else start[1] + mark, output)
    return WITHHELD if starts.search(normalize(broken)) else broken
