"""Makes the model and the prompts of the addends task: python launch/addends/make.py OUT_DIR [--seed 0] [--prompts N]

OUT_DIR/model is an ordinary Hugging Face checkpoint, a 2-layer Qwen2 with a character tokenizer. A few seconds of
supervised training on answers of which some are wrong give RL a start with a high entropy and a reward of about 0.3.
OUT_DIR/prompts.jsonl holds lines like {"input": "12=", "label": "12"}. What is already there is not made again.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

sys.path.insert(0, str(Path(__file__).parent))  # launch/ is not a package, and the tests load this file by its path
from reward import END, LARGEST, SMALLEST, right_pairs, score  # noqa: E402

PAD, START, UNKNOWN = "<pad>", "<bos>", "<unk>"
VOCABULARY = [PAD, END, START, UNKNOWN, "+", "=", *"0123456789"]
LONGEST_ANSWER = 8  # tokens; a right answer has four: digit, plus, digit, end

# Stopping this early leaves the policy unsure of the arithmetic, which is what RL then has to sharpen.
WARM_UP = {"steps": 200, "learning_rate": 2e-3, "batch": 128, "random_second_digit": 0.35}


def make_tokenizer() -> Qwen2Tokenizer:
    """One token per character, four special tokens, nothing added to the text.

    It is Qwen2's own tokenizer without merges: AutoTokenizer loads that class for every Qwen2 checkpoint, whatever
    the checkpoint says, so any other one would come back changed.
    """
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(VOCABULARY)},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        bos_token=START,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 of 0.3 million parameters with random weights."""
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # heads of 32: vLLM's CPU attention takes only some sizes
        num_key_value_heads=2,
        max_position_embeddings=64,
        # Untied, so that the output layer is one more weight whose way to vLLM is watched.
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def warm_up(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, seed: int, steps: int) -> None:
    """Supervised training on answers drawn evenly from the right ones, some of them spoiled by a random digit."""
    draw = torch.Generator().manual_seed(seed)
    totals = range(SMALLEST, LARGEST + 1)
    batch = WARM_UP["batch"]

    def integer(below: int) -> int:
        return int(torch.randint(below, (), generator=draw))

    def example() -> str:
        total = totals[integer(len(totals))]
        pairs = right_pairs(total)
        first, second = pairs[integer(len(pairs))]
        if torch.rand((), generator=draw) < WARM_UP["random_second_digit"]:
            second = integer(10)
        return f"{total:02}={first}+{second}{END}"

    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_UP["learning_rate"])
    prompt_length = len("12=")
    model.train()
    for _ in range(steps):
        sequences_BT = tokenizer([example() for _ in range(batch)], return_tensors="pt").input_ids
        logits_BTV = model(input_ids=sequences_BT).logits
        answer_logits_BAV, answers_BA = logits_BTV[:, prompt_length - 1 : -1], sequences_BT[:, prompt_length:]
        loss = F.cross_entropy(answer_logits_BAV.flatten(0, 1), answers_BA.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


@torch.no_grad()
def measure(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, seed: int, samples: int = 64) -> dict:
    """Rewards of greedy and of sampled answers to every prompt, and the policy's mean entropy per sampled token."""
    draw = torch.Generator().manual_seed(seed)
    prompts = [f"{total:02}=" for total in range(SMALLEST, LARGEST + 1)]

    def answer(prompts: list[str], greedy: bool) -> tuple[float, float]:
        sequences_BT = tokenizer(prompts, return_tensors="pt").input_ids
        running_B = torch.ones(len(prompts), dtype=torch.bool)
        entropy_sum, tokens = 0.0, 0
        for _ in range(LONGEST_ANSWER):
            log_probs_BV = model(input_ids=sequences_BT).logits[:, -1].float().log_softmax(-1)
            probs_BV = log_probs_BV.exp()
            entropy_sum += -(probs_BV * log_probs_BV).sum(-1)[running_B].sum().item()
            tokens += int(running_B.sum())
            next_B = probs_BV.argmax(-1) if greedy else torch.multinomial(probs_BV, 1, generator=draw).squeeze(-1)
            next_B = torch.where(running_B, next_B, tokenizer.pad_token_id)
            sequences_BT = torch.cat([sequences_BT, next_B[:, None]], dim=1)
            running_B = running_B & (next_B != tokenizer.eos_token_id)
        # Only the padding after the end is taken off: a pad token inside an answer makes it wrong.
        texts = [text[: text.find(END) + len(END)] for text in tokenizer.batch_decode(sequences_BT)]
        return sum(map(score, texts)) / len(texts), entropy_sum / tokens

    greedy_reward, _ = answer(prompts, greedy=True)
    sampled_reward, entropy = answer(prompts * samples, greedy=False)
    return {"greedy_reward": greedy_reward, "sampled_reward": sampled_reward, "entropy": entropy}


def make_checkpoint(folder: Path, seed: int = 0, steps: int = WARM_UP["steps"], force: bool = False) -> dict:
    """Makes the warmed-up model in `folder` unless it is there, and returns what was measured on it."""
    recipe = {**WARM_UP, "steps": steps, "seed": seed}
    record_path = folder / "addends.json"
    if record_path.exists() and not force:
        record = json.loads(record_path.read_text())
        if record["recipe"] == recipe:
            return record

    started = time.monotonic()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    # A second thread gains nothing on so small a model, and on a busy machine waiting for it costs minutes.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    warm_up(model, tokenizer, seed, steps)
    model.to(torch.bfloat16)  # what RL trains and vLLM serves, hence what is measured
    measured = measure(model, tokenizer, seed)
    torch.set_num_threads(threads)
    record = {"recipe": recipe, **measured, "seconds": time.monotonic() - started}

    # Made beside its place and then moved there, so that an interruption never leaves half a model.
    half_made = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(half_made)
    tokenizer.save_pretrained(half_made)
    (half_made / "addends.json").write_text(json.dumps(record, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    half_made.rename(folder)
    return record


def make_prompts(path: Path, count: int, seed: int = 0) -> None:
    """Writes `count` prompts: all totals in a shuffled order, then all of them in another order, and so on."""
    shuffler = random.Random(seed)
    lines: list[str] = []
    while len(lines) < count:
        totals = list(range(SMALLEST, LARGEST + 1))
        shuffler.shuffle(totals)
        lines += [json.dumps({"input": f"{total:02}=", "label": f"{total:02}"}) + "\n" for total in totals]
    half_made = path.with_name(f"{path.name}.{os.getpid()}")
    half_made.write_text("".join(lines[:count]))
    half_made.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=3200, help="lines in prompts.jsonl; a training step reads 16")
    parser.add_argument("--force", action="store_true", help="make the model again even if it is there")
    args = parser.parse_args()

    disable_progress_bar()
    args.out_dir.mkdir(parents=True, exist_ok=True)
    model = args.out_dir / "model"
    record = make_checkpoint(model, args.seed, force=args.force)
    make_prompts(args.out_dir / "prompts.jsonl", args.prompts, args.seed)
    print(
        f"{model}: {record['recipe']['steps']} warm-up steps in {record['seconds']:.1f} s; "
        f"reward {record['greedy_reward']:.2f} greedy, {record['sampled_reward']:.2f} sampled; "
        f"entropy {record['entropy']:.2f} nats per token"
    )


if __name__ == "__main__":
    main()
