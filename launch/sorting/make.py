"""Makes model and prompts of the sorting task: python launch/sorting/make.py OUT_DIR [--seed 0] [--prompts N]

OUT_DIR/model is an ordinary Hugging Face checkpoint, a 2-layer Qwen2 with a character tokenizer, trained a little on
answers of which some are wrong. OUT_DIR/prompts.jsonl holds lines like {"input": "315=", "label": "135"}.
"""

import random
import sys
from pathlib import Path

import torch

from openrlhf_stare.quickstart.small_model import Task, WarmUp, integer, main

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # launch/ is not a package, and the tests load this file by its path
from sorting.reward import END, LENGTH, score  # noqa: E402


def example(draw: torch.Generator, wrong: float) -> str:
    """Random digits and the same in order, of which, as often as `wrong` says, one is another digit."""
    prompt = [integer(10, draw) for _ in range(LENGTH)]
    answer = sorted(prompt)
    if torch.rand((), generator=draw) < wrong:
        answer[integer(LENGTH, draw)] = integer(10, draw)
    return "".join(map(str, prompt)) + "=" + "".join(map(str, answer)) + END


def make_prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` prompts of random digits."""
    draw = random.Random(seed)
    digits = ["".join(draw.choices("0123456789", k=LENGTH)) for _ in range(count)]
    return [{"input": f"{prompt}=", "label": "".join(sorted(prompt))} for prompt in digits]


TASK = Task(
    name="sorting",
    characters="=0123456789",
    warm_up=WarmUp(steps=200, wrong=0.5),
    example=example,
    prompts=[prompt["input"] for prompt in make_prompts(256, seed=1)],
    samples=4,
    longest_answer=LENGTH + 3,  # room to miss the end
    score=score,
)

if __name__ == "__main__":
    main(TASK, make_prompts, __doc__)
