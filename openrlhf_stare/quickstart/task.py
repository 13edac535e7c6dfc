"""Model and prompts of the addends task: python -m openrlhf_stare.quickstart.task OUT_DIR [--seed 0] [--prompts N]

OUT_DIR/model is an ordinary Hugging Face checkpoint, a 2-layer Qwen2 with a character tokenizer. A few seconds of
supervised training on answers of which some are wrong give RL a start with a high entropy and a reward of about 0.3.
OUT_DIR/prompts.jsonl holds lines like {"input": "12=", "label": "12"}. What is already there is not made again.
"""

from __future__ import annotations

import torch

from openrlhf_stare.quickstart import small_model
from openrlhf_stare.quickstart.reward import END, LARGEST, SMALLEST, right_pairs, score
from openrlhf_stare.quickstart.small_model import Task, WarmUp, integer, shuffled_rounds

TOTALS = range(SMALLEST, LARGEST + 1)
LONGEST_ANSWER = 8  # tokens; a right answer has four: digit, plus, digit, end


def example(draw: torch.Generator, wrong: float) -> str:
    """An answer drawn evenly from the right ones, or, as often as `wrong` says, with a random second digit."""
    total = TOTALS[integer(len(TOTALS), draw)]
    pairs = right_pairs(total)
    first, second = pairs[integer(len(pairs), draw)]
    if torch.rand((), generator=draw) < wrong:
        second = integer(10, draw)
    return f"{total:02}={first}+{second}{END}"


def make_prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` prompts: all totals in a shuffled order, then all of them in another order, and so on."""
    return [{"input": f"{total:02}=", "label": f"{total:02}"} for total in shuffled_rounds(TOTALS, count, seed)]


TASK = Task(
    name="addends",
    characters="+=0123456789",
    # Stopping this early leaves the policy unsure of the arithmetic, which is what RL then has to sharpen.
    warm_up=WarmUp(steps=200, wrong=0.35),
    example=example,
    prompts=[f"{total:02}=" for total in TOTALS],
    samples=64,
    longest_answer=LONGEST_ANSWER,
    score=score,
)


def main() -> None:
    small_model.main(TASK, make_prompts, __doc__ or "")


if __name__ == "__main__":
    main()
