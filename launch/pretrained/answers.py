"""Samples answers of a model and scores them: python launch/pretrained/answers.py MODEL PROMPTS REWARD -o FILE

It samples 16 answers to each of the first 16 prompts at temperature 1, from the whole distribution, with plain
transformers. FILE is JSON, with means over the prompts and with the first two answers to each:
reward           mean reward of the answers
right            share of the answers with a reward of 1
distinct         how many different texts are among a prompt's answers
distinct_right   how many different right ones
python launch/pretrained/answers.py --show FILE prints them, with ten answers to read.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path
from statistics import fmean

import torch

from openrlhf_stare import runtime
from openrlhf_stare.rewards.responses import without_special_tokens
from openrlhf_stare.rollout.reward_answers import as_wanted

PROMPTS = 16  # at most
SAMPLES = 16  # of each prompt
SEED = 0
AT_ONCE = 4  # prompts
SHOWN = 10
SHOWN_OF_A_PROMPT = 2


@torch.no_grad()
def sample(model_dir: Path, questions: list[str], tokens: int) -> list[tuple[str, list[str]]]:
    """Each question as the model sees it, and SAMPLES answers to it with the special tokens at their end."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = "cpu" if runtime.on_cpu() else "cuda"
    # In the type in which RL computed it here: a model may have been saved elsewhere, in another one.
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=runtime.dtype()).to(device)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    torch.manual_seed(SEED)
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    texts: list[str] = []
    for place in range(0, len(prompts), AT_ONCE):
        repeated = [prompt for prompt in prompts[place : place + AT_ONCE] for _ in range(SAMPLES)]
        inputs = tokenizer(
            repeated, return_tensors="pt", add_special_tokens=False, padding=True, padding_side="left"
        ).to(device)
        sequences_BT = model.generate(
            **inputs,
            max_new_tokens=tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=tokenizer.pad_token_id,
        )
        for answer in sequences_BT[:, inputs["input_ids"].shape[1] :].tolist():
            end = next((place for place, token in enumerate(answer, 1) if token in ends), len(answer))
            texts.append(tokenizer.decode(answer[:end]))  # without the padding, as in training
    return [(prompt, texts[SAMPLES * n : SAMPLES * (n + 1)]) for n, prompt in enumerate(prompts)]


def load_reward(path: Path):
    """The `reward_func` of a file, loaded as OpenRLHF does."""
    spec = importlib.util.spec_from_file_location("reward_func", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reward_func


def score(reward_func, prompt: str, text: str, label: str) -> float:
    """An answer's score, or its reward where there is none; 0 where that is not finite or missing too, or fails."""
    try:
        given = as_wanted(reward_func([prompt + text], [prompt], [label])) or {}
    except Exception as error:  # in training, too, it costs this response only
        print(f"answers: the reward function raised {error!r} for the answer {text!r:.100}", file=sys.stderr)
        return 0.0
    found = [float(given[name]) for name in ("scores", "rewards") if given.get(name) is not None]
    return found[0] if found and math.isfinite(found[0]) else 0.0


def measure(answers: list[list[str]], rewards: list[list[float]]) -> dict[str, float]:
    """The figures of the answers and their rewards, a list for each prompt."""
    right = [
        [text for text, reward in zip(texts, of_prompt, strict=True) if reward == 1]
        for texts, of_prompt in zip(answers, rewards, strict=True)
    ]
    return {
        "reward": fmean(reward for of_prompt in rewards for reward in of_prompt),
        "right": fmean(len(of_prompt) / len(texts) for of_prompt, texts in zip(right, answers, strict=True)),
        "distinct": fmean(len(set(texts)) for texts in answers),
        "distinct_right": fmean(len(set(of_prompt)) for of_prompt in right),
    }


def show(record: dict) -> str:
    """The figures of a file on one line, and ten answers, one to a prompt as far as there are so many."""
    figures = (
        f"{record['samples']} answers to each of {record['prompts']} held-out prompts: {100 * record['right']:.0f} % "
        f"right, {record['distinct']:.1f} different ones a prompt, {record['distinct_right']:.1f} different right ones"
    )
    rows = sorted(record["answers"], key=lambda row: row["place"])[:SHOWN]
    lines = [f"  {row['reward']:g}  {row['question']!r:.100}\n     {row['answer']!r}" for row in rows]
    return "\n".join([figures, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", nargs="?", type=Path)
    parser.add_argument("prompts", nargs="?", type=Path)
    parser.add_argument("reward", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answer")
    parser.add_argument("--show", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return 0
    if not (args.reward and args.output):
        parser.error("give a model, prompts, a reward file and -o FILE, or --show FILE")

    rows = [json.loads(line) for line in args.prompts.read_text().strip().split("\n")][:PROMPTS]
    reward_func = load_reward(args.reward)
    answers, rewards, shown = [], [], []
    sampled = sample(args.model_dir, [row["input"] for row in rows], args.tokens)
    for row, (prompt, texts) in zip(rows, sampled, strict=True):
        rewards.append([score(reward_func, prompt, text, row["label"]) for text in texts])
        answers.append([without_special_tokens(text).strip() for text in texts])
        for place in range(SHOWN_OF_A_PROMPT):
            answer = {"question": row["input"], "answer": answers[-1][place], "reward": rewards[-1][place]}
            shown.append({"place": place, **answer})
    record = {"prompts": len(rows), "samples": SAMPLES, **measure(answers, rewards), "answers": shown}
    half_written = args.output.with_suffix(".part")
    half_written.write_text(json.dumps(record, indent=2) + "\n")
    half_written.rename(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
