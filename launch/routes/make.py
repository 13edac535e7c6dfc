"""Makes model and prompts of the routes task: python launch/routes/make.py OUT_DIR [--seed 0] [--prompts N]

OUT_DIR/model is an ordinary Hugging Face checkpoint, a 2-layer Qwen2 with a character tokenizer, trained a little on
ways of which some have a wrong node. OUT_DIR/prompts.jsonl holds lines like {"input": "a>k=", "label": ""}.
"""

import sys
from pathlib import Path

import torch

from openrlhf_stare.quickstart.small_model import Task, WarmUp, integer, main, shuffled_rounds

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # launch/ is not a package, and the tests load this file by its path
from routes.reward import END, MOST_STEPS, NODES, routes, score  # noqa: E402

# Pairs that two steps join, with all their ways of two and of three steps.
WAYS = {
    f"{start}>{end}=": [*two, *routes(start, end, 3)]
    for start in NODES
    for end in NODES
    if start != end and (two := routes(start, end, 2))
}
QUESTIONS = list(WAYS)


def example(draw: torch.Generator, wrong: float) -> str:
    """One of the ways, in which, as often as `wrong` says, a node is any other."""
    question = QUESTIONS[integer(len(QUESTIONS), draw)]
    way = list(WAYS[question][integer(len(WAYS[question]), draw)])
    if torch.rand((), generator=draw) < wrong:
        way[integer(len(way), draw)] = NODES[integer(len(NODES), draw)]
    # One length for all, as the warm-up wants; what follows the end is never read.
    return question + "".join(way) + END * (4 - len(way))


def make_prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` prompts: all questions in a shuffled order, then all of them in another order, and so on."""
    return [{"input": question, "label": ""} for question in shuffled_rounds(QUESTIONS, count, seed)]


TASK = Task(
    name="routes",
    characters=f">={NODES}",
    warm_up=WarmUp(steps=600, wrong=0.3),
    example=example,
    prompts=QUESTIONS[::4],
    samples=4,
    longest_answer=MOST_STEPS + 2,
    score=score,
)

if __name__ == "__main__":
    main(TASK, make_prompts, __doc__)
