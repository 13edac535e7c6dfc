"""What the tasks share, the quickstart's and those under launch/: a 2-layer Qwen2 with a character tokenizer.

It is warmed up on answers of which some are wrong, so that RL starts from a policy that is unsure. A task's own file
says what its prompts and answers are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from openrlhf_stare import runtime
from openrlhf_stare.quickstart.locking import alone_at

Prompts = list[dict[str, str]]  # each with an input and a label
Question = TypeVar("Question")
PAD, END, START, UNKNOWN = "<pad>", "<eos>", "<bos>", "<unk>"
EXAMPLES_COMPARED = 64


@dataclass(frozen=True)
class WarmUp:
    """Supervised training with AdamW; `wrong` is how much of the answers is drawn at random."""

    steps: int
    wrong: float
    learning_rate: float = 2e-3
    batch: int = 128


@dataclass(frozen=True)
class Task:
    """A task on texts of single characters; prompts are all of one length."""

    name: str  # the file beside the model that says how it was made is NAME.json
    characters: str
    warm_up: WarmUp
    example: Callable[[torch.Generator, float], str]  # draws a prompt and an answer with its end, `wrong` as in WarmUp
    prompts: list[str]  # those that a model is measured on
    samples: int  # answers to each of them
    longest_answer: int  # tokens, its end included
    score: Callable[[str], float]  # prompt and answer -> reward

    @property
    def vocabulary(self) -> list[str]:
        return [PAD, END, START, UNKNOWN, *self.characters]


def integer(below: int, draw: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=draw))


def shuffled_rounds(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """`count` questions: all of them in a shuffled order, then all in another order, and so on."""
    shuffler = random.Random(seed)
    drawn: list[Question] = []
    while len(drawn) < count:
        of_round = list(questions)
        shuffler.shuffle(of_round)
        drawn += of_round
    return drawn[:count]


def make_tokenizer(vocabulary: list[str]) -> Qwen2Tokenizer:
    """One token per character, four special tokens, nothing added to the text.

    It is Qwen2's own tokenizer without merges: AutoTokenizer loads that class for every Qwen2 checkpoint, whatever
    the checkpoint says, so any other one would come back changed.
    """
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        bos_token=START,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Qwen2Tokenizer, seed: int, longest: int = 64) -> Qwen2ForCausalLM:
    """A Qwen2 of 0.3 million parameters with random weights, for texts of up to `longest` tokens."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # heads of 32: vLLM's CPU attention takes only some sizes
        num_key_value_heads=2,
        max_position_embeddings=longest,
        # Untied, so that the output layer is one more weight whose way to vLLM is watched.
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def warm_up(task: Task, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, recipe: WarmUp, seed: int) -> None:
    """Supervised training on the answers alone, not on the prompts."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    prompt_length = len(task.prompts[0])
    model.train()
    for _ in range(recipe.steps):
        examples = [task.example(draw, recipe.wrong) for _ in range(recipe.batch)]
        sequences_BT = tokenizer(examples, return_tensors="pt").input_ids
        logits_BTV = model(input_ids=sequences_BT).logits
        answer_logits_BAV, answers_BA = logits_BTV[:, prompt_length - 1 : -1], sequences_BT[:, prompt_length:]
        loss = F.cross_entropy(answer_logits_BAV.flatten(0, 1), answers_BA.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


@torch.no_grad()
def measure(task: Task, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, seed: int) -> dict[str, float]:
    """Rewards of greedy and of sampled answers to the prompts, and the policy's mean entropy per sampled token."""
    draw = torch.Generator().manual_seed(seed)

    def answer(prompts: list[str], greedy: bool) -> tuple[float, float]:
        sequences_BT = tokenizer(prompts, return_tensors="pt").input_ids
        running_B = torch.ones(len(prompts), dtype=torch.bool)
        entropy_sum, tokens = 0.0, 0
        for _ in range(task.longest_answer):
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
        return sum(map(task.score, texts)) / len(texts), entropy_sum / tokens

    greedy_reward, _ = answer(task.prompts, greedy=True)
    sampled_reward, entropy = answer(task.prompts * task.samples, greedy=False)
    return {"greedy_reward": greedy_reward, "sampled_reward": sampled_reward, "entropy": entropy}


def make_checkpoint(task: Task, folder: Path, seed: int = 0, steps: int | None = None) -> dict:
    """Makes the warmed-up model in `folder` unless it is there, and returns what was measured on it."""
    warm = task.warm_up if steps is None else WarmUp(steps, task.warm_up.wrong)
    dtype = runtime.dtype()  # what RL trains in and vLLM serves
    draw = torch.Generator().manual_seed(seed)
    # A task of one's own is edited: what it makes says whether it is another one.
    made = task.characters, task.prompts, [task.example(draw, warm.wrong) for _ in range(EXAMPLES_COMPARED)]
    shown = hashlib.sha256(repr(made).encode()).hexdigest()
    recipe = {**asdict(warm), "seed": seed, "dtype": str(dtype).removeprefix("torch."), "task": shown}
    record_path = folder / f"{task.name}.json"
    with alone_at(folder):
        if record_path.exists():
            record = json.loads(record_path.read_text())
            if record["recipe"] == recipe:
                return record
        return _make_anew(task, folder, warm, dtype, recipe)


def _make_anew(task: Task, folder: Path, warm: WarmUp, dtype: torch.dtype, recipe: dict) -> dict:
    started = time.monotonic()
    tokenizer = make_tokenizer(task.vocabulary)
    model = make_model(tokenizer, recipe["seed"])
    # A second thread gains nothing on so small a model, and on a busy machine waiting for it costs minutes.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    warm_up(task, model, tokenizer, warm, recipe["seed"])
    model.to(dtype)
    measured = measure(task, model, tokenizer, recipe["seed"])
    torch.set_num_threads(threads)
    record = {"recipe": recipe, **measured, "seconds": time.monotonic() - started}

    # Made beside its place and then moved there, so that an interruption never leaves half a model.
    half_made = folder.with_name(f"{folder.name}.{os.getpid()}")
    save(model, half_made)
    tokenizer.save_pretrained(half_made)
    (half_made / f"{task.name}.json").write_text(json.dumps(record, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    half_made.rename(folder)
    return record


def save(model: Qwen2ForCausalLM, folder: Path) -> None:
    """What `model.save_pretrained` writes; that imports DeepSpeed first, which takes seconds."""
    folder.mkdir()
    model.config.architectures, model.config.dtype = [type(model).__name__], model.dtype
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def write_prompts(path: Path, prompts: Prompts) -> None:
    half_made = path.with_name(f"{path.name}.{os.getpid()}")
    half_made.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    half_made.rename(path)


def make(task: Task, folder: Path, seed: int = 0, steps: int | None = None) -> None:
    """Makes the warmed-up model in `folder` unless it is there, and prints what was measured on it."""
    disable_progress_bar()
    record = make_checkpoint(task, folder, seed, steps)
    print(
        f"{folder}: {record['recipe']['steps']} warm-up steps in {record['seconds']:.1f} s; "
        f"reward {record['greedy_reward']:.2f} greedy, {record['sampled_reward']:.3f} sampled; "
        f"entropy {record['entropy']:.2f} nats per token"
    )


def main(task: Task, prompts: Callable[[int, int], Prompts], description: str) -> None:
    """The command of a task's make.py; `prompts` draws so many lines of prompts.jsonl from a seed."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=3200, help="lines in prompts.jsonl")
    parser.add_argument("--warm-up", type=int, default=task.warm_up.steps, help="steps of supervised training")
    parser.add_argument("--only-prompts", metavar="NAME", help="write the prompts to OUT_DIR/NAME, and make no model")
    args = parser.parse_args()

    args.out_dir.mkdir(parents=True, exist_ok=True)
    made = prompts(args.prompts, args.seed)  # first, since it may fail, and the model takes a while
    if not args.only_prompts:
        make(task, args.out_dir / "model", args.seed, args.warm_up)
    # Last, so that a folder with prompts is complete.
    write_prompts(args.out_dir / (args.only_prompts or "prompts.jsonl"), made)
