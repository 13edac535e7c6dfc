r"""Makes a tiny model that uses the Python tool: tool_task.py OUT_DIR [--seed 0] [--prompts 400]

The addends task with a calculator. Asked `12=` the model picks a digit and has the other one computed:

    12=```python
    print(12-7)
    ```
    ```output
    5
    ```
    \boxed{7+5}<eos>

OUT_DIR/model is a 2-layer Qwen2 with one token for each printable character, warmed up on such transcripts and on
answers without the tool; OUT_DIR/prompts.jsonl are the prompts of the addends task, for the
mathematics reward.
"""

import argparse
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.utils.logging import disable_progress_bar

from openrlhf_stare import runtime
from openrlhf_stare.quickstart.reward import LARGEST, SMALLEST, right_pairs
from openrlhf_stare.quickstart.small_model import (
    END,
    PAD,
    START,
    UNKNOWN,
    make_model,
    make_tokenizer,
    save,
    write_prompts,
)
from openrlhf_stare.quickstart.task import make_prompts

# Qwen2's tokenizer writes a space as Ġ and the end of a line as Ċ.
VOCABULARY = [PAD, END, START, UNKNOWN, *map(chr, range(33, 127)), "Ġ", "Ċ"]
STEPS, BATCH, LEARNING_RATE, SHARE_WITH_TOOL = 170, 64, 3e-3, 0.7


def transcript(draw: random.Random) -> list[tuple[str, bool]]:
    """Pieces of one example: the text, and whether the policy writes it."""
    total = draw.randint(SMALLEST, LARGEST)
    first, second = draw.choice(right_pairs(total))
    pieces = [(f"{total:02}=", False)]
    if draw.random() < SHARE_WITH_TOOL:
        pieces.append((f"```python\nprint({total}-{first})\n```\n", True))
        pieces.append((f"```output\n{second}\n```\n", False))
    return [*pieces, (f"\\boxed{{{first}+{second}}}{END}", True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=400)
    args = parser.parse_args()
    disable_progress_bar()
    draw = random.Random(args.seed)

    tokenizer = make_tokenizer(VOCABULARY)
    model = make_model(tokenizer, args.seed, longest=512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        tokens, targets = [], []
        for _ in range(BATCH):
            pieces = [(tokenizer(text).input_ids, is_action) for text, is_action in transcript(draw)]
            tokens.append(torch.tensor([token for ids, _ in pieces for token in ids]))
            targets.append(torch.tensor([token if is_action else -100 for ids, is_action in pieces for token in ids]))
        tokens_BT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=tokenizer.pad_token_id)
        targets_BT = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
        logits_BTV = model(input_ids=tokens_BT).logits
        loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), targets_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    args.out_dir.mkdir(parents=True, exist_ok=True)
    save(model.to(runtime.dtype()), args.out_dir / "model")
    tokenizer.save_pretrained(args.out_dir / "model")
    write_prompts(args.out_dir / "prompts.jsonl", make_prompts(args.prompts, args.seed))
    print(f"{args.out_dir}/model: {STEPS} warm-up steps, loss {loss.item():.2f} nats per token")


if __name__ == "__main__":
    main()
