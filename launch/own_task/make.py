"""Makes prompts and, unless you bring one, a model for your own task: python launch/own_task/make.py OUT_DIR

OUT_DIR/prompts.jsonl holds lines like {"input": "bdf=", "label": ""}; OUT_DIR/model is a small Qwen2 that has seen
answers of which some are wrong. --prompts N, --seed N. With --only-prompts prompts.jsonl no model is made.
"""

import sys
from itertools import combinations
from pathlib import Path

import torch

from openrlhf_stare.quickstart.small_model import Task, WarmUp, integer, main, shuffled_rounds

sys.path.insert(0, str(Path(__file__).parent))  # finds the reward.py beside this file, wherever it was copied to
from reward import END, GIVEN, LETTERS, WANTED, score  # noqa: E402

QUESTIONS = ["".join(letters) for letters in combinations(LETTERS, GIVEN)]  # 120


def example(draw: torch.Generator, wrong: float) -> str:
    """For the small model's warm-up: a prompt and one of its right answers with its end, or, as often as `wrong` says,
    with a letter that was drawn blindly. So it knows the form of an answer, and is unsure of the rest."""
    given = QUESTIONS[integer(len(QUESTIONS), draw)]
    others = [letter for letter in LETTERS if letter not in given]
    added = [others.pop(integer(len(others), draw)) for _ in range(WANTED - GIVEN)]
    answer = sorted([*given, *added])
    if torch.rand((), generator=draw) < wrong:
        answer[integer(WANTED, draw)] = LETTERS[integer(len(LETTERS), draw)]
    return f"{given}={''.join(answer)}{END}"


def make_prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` prompts: all questions in a shuffled order, then all of them in another order, and so on."""
    return [{"input": f"{question}=", "label": ""} for question in shuffled_rounds(QUESTIONS, count, seed)]


TASK = Task(
    name="own_task",
    characters=f"={LETTERS}",  # a token for each
    warm_up=WarmUp(steps=200, wrong=0.6),
    example=example,
    prompts=[f"{question}=" for question in QUESTIONS],  # all of one length
    samples=8,
    longest_answer=8,
    score=score,
)

if __name__ == "__main__":
    main(TASK, make_prompts, __doc__)
