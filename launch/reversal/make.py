"""Makes model and prompts of the reversal task: python launch/reversal/make.py OUT_DIR [--seed 0] [--prompts N]

OUT_DIR/model is an ordinary Hugging Face checkpoint, a 2-layer Qwen2 with a character tokenizer. Supervised training
on reversals that are partly wrong gives RL a sparse reward to start from: a few per cent of the sampled answers are
right as a whole. OUT_DIR/prompts.jsonl holds lines like {"input": "3141592=", "label": "2951413"}.
"""

import random
import sys
from pathlib import Path

import torch

from openrlhf_stare.quickstart.small_model import Task, WarmUp, integer, main

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # launch/ is not a package, and the tests load this file by its path
from reversal.reward import END, LENGTH, score  # noqa: E402


def example(draw: torch.Generator, wrong: float) -> str:
    """Random digits, and their reversal in which, as often as `wrong` says, a digit is the one of the prompt's order.

    So a policy that has learned this knows both orders, and about as often as the right digit it takes the other.
    """
    prompt = [integer(10, draw) for _ in range(LENGTH)]
    pairs = zip(prompt, reversed(prompt), strict=True)
    answer = [in_order if torch.rand((), generator=draw) < wrong else right for in_order, right in pairs]
    return "".join(map(str, prompt)) + "=" + "".join(map(str, answer)) + END


def make_prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` prompts of random digits."""
    draw = random.Random(seed)
    digits = ["".join(draw.choices("0123456789", k=LENGTH)) for _ in range(count)]
    return [{"input": f"{prompt}=", "label": prompt[::-1]} for prompt in digits]


TASK = Task(
    name="reversal",
    characters="=0123456789",
    warm_up=WarmUp(steps=200, wrong=0.4),
    example=example,
    prompts=[prompt["input"] for prompt in make_prompts(256, seed=1)],
    samples=4,
    longest_answer=LENGTH + 3,  # room to miss the end
    score=score,
)

if __name__ == "__main__":
    main(TASK, make_prompts, __doc__)
