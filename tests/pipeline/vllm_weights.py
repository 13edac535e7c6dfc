"""The program of test_vllm_weights.py: `python vllm_weights.py MODEL OUTPUT [plugin|no_work_around]`.

Changes every weight of a vLLM CPU engine by the way a weight sync takes, and compares its log-probs with those of
transformers; then withholds single weights after a small change. In float32. A program of its own, because the engine
is to meet our plugin as in a job: loaded by vLLM itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openrlhf_stare import replacing, runtime

TIME_LIMIT = 240  # seconds for one engine: a hang is a failure
TOKENS = [5, 7, 6, 9, 4, 11, 8, 13, 15, 10, 12, 14, 1]
PROMPT, RESPONSES, LONGEST = [5, 7, 6], 128, 8  # as many tokens as in a small rollout
ADAM_STEP = 3e-4  # what the first optimizer step at this learning rate changes each weight by
WORKER_EXTENSION = "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"

WITHHELD = ["model.layers.0.self_attn.v_proj.bias", "model.layers.1.input_layernorm.weight", "lm_head.weight"]

# At the top, for vLLM's worker too: it is spawned, and imports this file.
if sys.argv[-1] == "no_work_around":
    replacing.TABLE = tuple(row for row in replacing.TABLE if row.name != "dispatch_cpu_unquantized_gemm")


def main(folder: str, output: str, work_around: str) -> None:
    faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
    os.environ.update(runtime.environment(), HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    # As in a job's Ray actors. Outside of them vLLM forks its worker, threads and all that they have locked.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

    import torch
    import vllm
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    llm = vllm.LLM(
        folder, dtype="float32", enforce_eager=True, worker_extension_cls=WORKER_EXTENSION, max_model_len=32
    )

    def gap() -> float:
        """The largest difference between the log-probs of the engine and those of the model."""
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0, :-1].float()
        expected = logits.log_softmax(dim=-1).gather(1, torch.tensor(TOKENS[1:])[:, None])[:, 0]
        sampling = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0)
        read = llm.generate({"prompt_token_ids": TOKENS}, sampling, use_tqdm=False)[0].prompt_logprobs
        pairs = zip(TOKENS[1:], read[1:], strict=True)
        return (torch.tensor([position[token].logprob for token, position in pairs]) - expected).abs().max().item()

    def vllm_kl() -> float:
        """What a job logs under this name: the mean of the engine's log-probs of what it samples, less the model's."""
        sampling = vllm.SamplingParams(max_tokens=LONGEST, logprobs=0, n=RESPONSES, seed=0)
        differences = []
        for response in llm.generate({"prompt_token_ids": PROMPT}, sampling, use_tqdm=False)[0].outputs:
            tokens = torch.tensor([[*PROMPT, *response.token_ids]])
            with torch.no_grad():
                log_probs = model(tokens).logits[0, len(PROMPT) - 1 : -1].log_softmax(dim=-1)
            sampled = zip(response.token_ids, response.logprobs, log_probs, strict=True)
            differences += [position[token].logprob - row[token].item() for token, position, row in sampled]
        return sum(differences) / len(differences)

    # A weight sync: the first actor rank, played by a thread, broadcasts, and the engine's worker receives and loads.
    from openrlhf.utils.distributed_util import stateless_init_process_group

    actor, port = ThreadPoolExecutor(1), free_port()
    group = actor.submit(stateless_init_process_group, "127.0.0.1", port, 0, 2, None)
    llm.collective_rpc("init_process_group", args=("127.0.0.1", port, 1, 2, "sync", "gloo"))
    group = group.result()

    def send(name: str) -> str:
        """Send one weight; the error that the engine answers with, if any."""
        weight = model.get_parameter(name).data
        sent = actor.submit(group.broadcast, weight, 0)
        try:
            llm.collective_rpc("update_weight", args=(name, weight.dtype, weight.shape))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            sent.result()
        return ""

    random = torch.Generator().manual_seed(0)

    def change(names: list[str]) -> dict:
        """Change the weights of the model noticeably, send them to the engine, and compare before and after that."""
        for name in names:
            weight = model.get_parameter(name).data
            noise = torch.randn(weight.shape, generator=random) * weight.float().std().clamp_min(0.05)
            weight += noise.to(weight.dtype)
        gap_before = gap()
        errors = {name: send(name) for name in names}
        errors = {name: error for name, error in errors.items() if error}
        return {"gap_before_sync": gap_before, "errors": errors, "gap_after_sync": gap()}

    def withhold(name: str) -> dict:
        """Change one weight as an optimizer step does; vllm_kl before the engine is sent it and after that."""
        weight = model.get_parameter(name).data
        weight += ADAM_STEP * torch.randn(weight.shape, generator=random).sign()
        stale = vllm_kl()
        return {"error": send(name), "stale": stale, "sent": vllm_kl()}

    found = {
        "fresh": vllm_kl(),
        "withheld": {name: withhold(name) for name in WITHHELD},
        "repacked": llm.collective_rpc("repacked_layers")[0],
        "gap": gap(),
        "lm_head": change(["lm_head.weight"]),
        "all": change([name for name, _ in model.named_parameters()]),
    }
    Path(output).write_text(json.dumps(found))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
