"""Evaluates a trained model of the addends task: python launch/addends/evaluate.py MODEL_DIR -o FILE

It samples 32 answers to each prompt (`02=` to `16=`) at temperature 1, from the whole distribution, with plain
transformers on the CPU: one batch of 480 sequences, which takes seconds. FILE is JSON, with means over the prompts:
distinct_right  how many different right answers are among a prompt's samples
pass@1          share of the samples that are right
pass@32         1 where any of a prompt's samples is right, else 0
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from openrlhf_stare import runtime

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package
from make import LONGEST_ANSWER  # noqa: E402
from reward import END, LARGEST, SMALLEST, score  # noqa: E402

SAMPLES = 32  # of each prompt


@torch.no_grad()
def sample_answers(model_dir: Path, seed: int) -> list[list[str]]:
    """SAMPLES answers to each prompt, each with its prompt and up to its end, the totals in their order."""
    # As RL computed it: saved models may have been rounded, and not every CPU has units for bfloat16.
    dtype = torch.float32 if runtime.float32() else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompts = [f"{total:02}=" for total in range(SMALLEST, LARGEST + 1) for _ in range(SAMPLES)]
    torch.manual_seed(seed)
    sequences_BT = model.generate(
        **tokenizer(prompts, return_tensors="pt"),
        max_new_tokens=LONGEST_ANSWER,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    # Only the padding after the end is taken off: a pad token inside an answer makes it wrong.
    parts = [text.partition(END) for text in tokenizer.batch_decode(sequences_BT)]
    texts = [before + end for before, end, _ in parts]
    return [texts[place : place + SAMPLES] for place in range(0, len(texts), SAMPLES)]


def measure(answers: list[list[str]]) -> dict[str, float]:
    """The figures of the answers, a list of SAMPLES for each prompt."""
    right = [[answer for answer in of_prompt if score(answer)] for of_prompt in answers]
    return {
        "distinct_right": fmean(len(set(of_prompt)) for of_prompt in right),
        "pass@1": fmean(len(of_prompt) / SAMPLES for of_prompt in right),
        f"pass@{SAMPLES}": fmean(bool(of_prompt) for of_prompt in right),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    args = parser.parse_args()

    disable_progress_bar()
    half_written = args.output.with_suffix(".part")
    half_written.write_text(json.dumps(measure(sample_answers(args.model_dir, args.seed)), indent=2) + "\n")
    half_written.rename(args.output)


if __name__ == "__main__":
    main()
