"""Evaluates a trained model: python launch/study/evaluate.py TASK MODEL_DIR -o FILE

TASK is a folder of launch/ with a make.py, such as addends. 32 answers to each of the prompts that the task is
measured on are sampled at temperature 1, from the whole distribution, with plain transformers on the CPU; it takes
seconds. FILE is JSON, with means over the prompts:
distinct_right  how many different right answers are among a prompt's samples
pass@k          the share of right ones among the samples (k = 1), and how likely one or more of k samples are right,
                as estimated from the 32 without bias (Chen et al., arXiv 2107.03374)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from math import comb
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from openrlhf_stare import runtime
from openrlhf_stare.quickstart.small_model import END, Task

SAMPLES = 32  # of each prompt
AT = (1, 8, 32)
BATCH = 1920  # sequences


def load_task(name: str) -> Task:
    """The TASK of launch/NAME/make.py; launch/ is not a package."""
    path = Path(__file__).parents[1] / name / "make.py"
    spec = importlib.util.spec_from_file_location(f"make_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TASK


@torch.no_grad()
def sample_answers(task: Task, model_dir: Path, seed: int) -> list[list[str]]:
    """SAMPLES answers to each prompt, each with its prompt and up to its end, in the order of the prompts."""
    # In the type in which RL computed it here: a model may have been saved elsewhere, in another one.
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=runtime.dtype())
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompts = [prompt for prompt in task.prompts for _ in range(SAMPLES)]
    torch.manual_seed(seed)
    texts: list[str] = []
    for place in range(0, len(prompts), BATCH):
        sequences_BT = model.generate(
            **tokenizer(prompts[place : place + BATCH], return_tensors="pt"),
            max_new_tokens=task.longest_answer,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
        # Only the padding after the end is taken off: a pad token inside an answer makes it wrong.
        parts = [text.partition(END) for text in tokenizer.batch_decode(sequences_BT)]
        texts += [before + end for before, end, _ in parts]
    return [texts[place : place + SAMPLES] for place in range(0, len(texts), SAMPLES)]


def measure(task: Task, answers: list[list[str]]) -> dict[str, float]:
    """The figures of the answers, a list of SAMPLES for each prompt."""
    right = [[answer for answer in of_prompt if task.score(answer)] for of_prompt in answers]

    def any_right(k: int) -> float:
        return fmean(1 - comb(SAMPLES - len(of_prompt), k) / comb(SAMPLES, k) for of_prompt in right)

    return {
        "distinct_right": fmean(len(set(of_prompt)) for of_prompt in right),
        **{f"pass@{k}": any_right(k) for k in AT},
    }


def evaluate(name: str, model_dir: Path) -> dict[str, float]:
    """The figures of a model of the task of this name."""
    disable_progress_bar()
    task = load_task(name)
    return measure(task, sample_answers(task, model_dir, seed=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    half_written = args.output.with_suffix(".part")
    half_written.write_text(json.dumps(evaluate(args.task, args.model_dir), indent=2) + "\n")
    half_written.rename(args.output)


if __name__ == "__main__":
    main()
