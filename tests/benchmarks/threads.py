"""What a second thread saves: python tests/benchmarks/threads.py

Forward passes of Qwen2 models with random weights in float32, with 1 and 2 threads in turns; the fastest of each. A
decoding step, 32 sequences by one token, is what an engine does; a pass over 32 sequences of 32 tokens is what a rank
does in the log-prob pass. `openrlhf_stare/cpu/threads.py` gives models below its `SMALL` one thread.
"""

from __future__ import annotations

import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

# Hidden size, layers, words -> weights from 1 to 300 MiB.
SIZES = [(128, 2, 16), (256, 4, 4096), (384, 6, 8192), (512, 8, 16384), (576, 12, 49152)]
TURNS = 10
SHAPES = {"decoding step": (32, 1), "pass": (32, 32)}


def seconds(model: Qwen2ForCausalLM, tokens: torch.Tensor, threads: int) -> float:
    torch.set_num_threads(threads)
    start = time.perf_counter()
    model(tokens)
    return time.perf_counter() - start


@torch.no_grad()
def main() -> None:
    print(f"{'weights':>10}  {'':14}  1 thread  2 threads")
    for hidden, layers, words in SIZES:
        config = Qwen2Config(
            vocab_size=words,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            max_position_embeddings=64,
        )
        model = Qwen2ForCausalLM(config).eval()
        mib = 4 * sum(parameter.numel() for parameter in model.parameters()) / 2**20
        for name, shape in SHAPES.items():
            tokens = torch.randint(words, shape)
            taken = {threads: [] for threads in (1, 2)}
            for turn in range(2 * TURNS):
                threads = 1 + turn % 2
                seconds(model, tokens, threads)  # the other's threads go to sleep
                taken[threads].append(seconds(model, tokens, threads))
            best = [1000 * min(taken[threads]) for threads in (1, 2)]
            print(f"{mib:6.1f} MiB  {name:14}  {best[0]:5.1f} ms  {best[1]:6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
