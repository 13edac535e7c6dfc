"""Supervised training on the answers that come with the prompts, so that RL starts from some that are right.

python launch/pretrained/warm_up.py MODEL PROMPTS.jsonl OUT_DIR [--steps 40]

MODEL is an instruction-tuned model, PROMPTS has entries of reasoning-gym as labels. The loss is on the answers alone,
with their end. OUT_DIR is an ordinary Hugging Face checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

BATCH, LEARNING_RATE, SEED = 8, 2e-5, 0
IGNORED = -100  # a label that takes no part in the loss


def batch(tokenizer, rows: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences of rows with their answers, padded on the right, (B, T), and their labels, (B, T)."""
    sequences, labels = [], []
    for row in rows:
        chat = [{"role": "user", "content": row["input"]}]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer = json.loads(row["label"])["answer"]
        answer_ids = [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        sequences.append(torch.tensor(prompt_ids + answer_ids))
        labels.append(torch.tensor([IGNORED] * len(prompt_ids) + answer_ids))
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(sequences, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(labels, batch_first=True, padding_value=IGNORED),
    )


def train(model, tokenizer, rows: list[dict], steps: int, size: int, learning_rate: float, seed: int) -> list[float]:
    """AdamW in float32; the losses of the steps, in nats per answer token."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    model.train()
    losses = []
    for _ in range(steps):
        sequences_BT, labels_BT = batch(tokenizer, draw.sample(rows, size))
        # Padding is on the right, where causal attention does not see it.
        logits_BTV = model(input_ids=sequences_BT).logits[:, :-1]
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    if args.out_dir.exists():
        print(f"{args.out_dir}: there already")
        return 0

    disable_progress_bar()
    started = time.monotonic()
    rows = [json.loads(line) for line in args.prompts.read_text().strip().split("\n")]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    losses = train(model, tokenizer, rows, args.steps, BATCH, LEARNING_RATE, SEED)
    # Made beside its place and then moved there, so that an interruption never leaves half a model.
    half_made = args.out_dir.with_name(f"{args.out_dir.name}.{os.getpid()}")
    model.to(AutoConfig.from_pretrained(args.model).dtype).save_pretrained(half_made)
    tokenizer.save_pretrained(half_made)
    half_made.rename(args.out_dir)
    seconds = time.monotonic() - started
    print(f"{args.out_dir}: {args.steps} steps in {seconds:.0f} s; loss {losses[0]:.2f}, in the end {losses[-1]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
