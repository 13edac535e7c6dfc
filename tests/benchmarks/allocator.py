"""What it saves that freed memory stays with the process: python tests/benchmarks/allocator.py

Training steps of a Qwen2 with random weights in float32, as wide as SmolLM2-135M and with as many words, but 6
layers, in processes with and without the variables MALLOC_… of `openrlhf_stare/cpu/__init__.py`, in turns. For either:
the median step, the kernel's share of the processor's time, page faults a step, the most memory that a process had,
and the last loss.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from openrlhf_stare import cpu

TURNS, STEPS, WARM_UP = 3, 3, 1
LAYERS, SEQUENCES, TOKENS = 6, 8, 64


def train() -> dict[str, float]:
    """Of this process, after a warm-up: seconds a step, the kernel's share, page faults a step, GiB at most."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = Qwen2Config(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(config.vocab_size, (SEQUENCES, TOKENS))
    seconds = []
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    kernel, user = after.ru_stime - before.ru_stime, after.ru_utime - before.ru_utime
    return {
        "seconds": statistics.median(seconds[WARM_UP:]),
        "kernel": kernel / (kernel + user),
        "faults": (after.ru_minflt - before.ru_minflt) / STEPS,
        "GiB": after.ru_maxrss / 2**20,
        "loss": loss.item(),
    }


def main() -> None:
    variables = {name: value for name, value in cpu.environment().items() if name.startswith("MALLOC_")}
    without = {name: value for name, value in os.environ.items() if name not in variables}
    taken: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for turn in range(2 * TURNS):
        kind, environment = (("without", without), ("with", without | variables))[turn % 2]
        done = subprocess.run([sys.executable, __file__, "train"], env=environment, stdout=subprocess.PIPE, check=True)
        taken[kind].append(json.loads(done.stdout.splitlines()[-1]))
    print("         s a step  kernel  faults a step    GiB  last loss")
    for kind, runs in taken.items():
        of = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        figures = f"{of['seconds']:8.2f}  {of['kernel']:6.1%}  {of['faults']:13,.0f}  {of['GiB']:5.2f}"
        print(f"{kind:7}  {figures}  {of['loss']!r}")
    ratios = [
        after["seconds"] / before["seconds"] for before, after in zip(taken["without"], taken["with"], strict=True)
    ]
    print("with / without:", ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    print(json.dumps(train())) if sys.argv[1:] == ["train"] else main()
