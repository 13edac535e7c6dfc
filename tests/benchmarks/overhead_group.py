"""The actor group of the overhead benchmark: OpenRLHF's own steps and STARE's in the same processes."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ray
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))

from harness import ActorGroup, ReadableActor, start_ray  # noqa: E402
from openrlhf.models import PolicyLoss  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402

from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers need not find this file


class MeasuredActor(ReadableActor):
    """The policy actor with OpenRLHF's own methods and loss still at hand, and a clock around either."""

    def prepare(self, micro_batches: list[Experience]) -> None:
        """Keep this rank's share of the fixed rollout, with the log-probs of the policy that it starts from."""
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.rollout = micro_batches[rank::ranks]
        for batch in self.rollout:
            batch.action_log_probs = self._methods("openrlhf").forward(*_inputs([batch]))
        options = {name: getattr(self.loss, name) for name in inspect.signature(PolicyLoss).parameters}
        self.plain_loss, self.own_loss = PolicyLoss(**options), self.trainer.actor_loss_fn

        self.work, training_step = [], self.trainer.training_step

        def counted_step(experience, *args):
            self.work.append(tuple(experience.action_mask.shape))
            return training_step(experience, *args)

        self.trainer.training_step = counted_step

    def step(self, way: str) -> dict:
        """One log-prob pass and training: the seconds of both and of the pass, by the clock and of this process' time
        on a processor, and STARE's own by its log."""
        methods = self._methods(way)
        self.trainer.actor_loss_fn = self.plain_loss if way == "openrlhf" else self.own_loss
        self.work.clear()
        torch.distributed.barrier(self.dp_group)
        clock, processor = time.perf_counter(), time.process_time()
        for batch in self.rollout:
            methods.forward(*_inputs([batch]))
        log_probs_processor = time.process_time() - processor
        torch.distributed.barrier(self.dp_group)  # nobody trains before all log-probs are there
        log_probs = time.perf_counter() - clock
        for batch in self.rollout:
            methods.append(batch)
        status = methods.fit()
        return {
            "step": time.perf_counter() - clock,
            "step_processor": time.process_time() - processor,
            "log_probs": log_probs,
            "log_probs_processor": log_probs_processor,
            "stare": status.get("entropy/seconds"),
            "work": list(self.work),
        }

    def log_prob_peak(self, way: str) -> dict[str, int]:
        """The peak of this process' memory in a log-prob pass over this rank's responses at once, in bytes, and how
        far that is above what it held before."""
        inputs, methods = _inputs(self.rollout), self._methods(way)
        before = _start_peak()
        methods.forward(*inputs)
        peak = _peak()
        self.meter.take(), self.meter.take_seconds()
        return {"peak": peak, "rise": max(peak - before, 4096)}  # a page, where a tiny model fits into what was free

    def _methods(self, way: str):
        if way == "openrlhf":
            return super(StarePolicyActor, self)
        self.meter.kind = way
        return self


def _inputs(batches: list[Experience]) -> list[torch.Tensor]:
    names = ("sequences", "action_mask", "attention_mask")
    return [torch.cat([getattr(batch, name) for batch in batches]) for name in names]


def _start_peak() -> int:
    """Forget the peak so far; what is held now, in bytes."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _from_status("VmRSS")


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _from_status("VmHWM")


def _from_status(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def measured_groups(
    model: str, options: argparse.Namespace, prompt: int, target_entropy: float
) -> Iterator[tuple[str, ActorGroup]]:
    """The group with each of the methods in turn, in the same processes."""
    flags = f"""--ds.zero_stage 2 --actor.adam.lr 1e-6 --data.max_len {prompt + options.tokens}
        --rollout.batch_size {options.responses // 4} --rollout.n_samples_per_prompt 4
        --train.batch_size {options.responses} --train.micro_batch_size {options.micro_batch}
        --rollout.micro_batch_size {options.micro_batch}
        --entropy.target {target_entropy}"""
    start_ray(gpus=options.ranks)
    try:
        with ActorGroup(model, ranks=options.ranks, flags=None, actor=MeasuredActor) as group:
            for method in options.policy_loss:
                variant = ["--stare.variant", "C2"] if method == "stare" else []
                group.start([*flags.split(), "--policy_loss", method, *variant])
                group.run("prepare", rollout(options, prompt))
                yield method, group
    finally:
        ray.shutdown()


def rollout(options: argparse.Namespace, prompt: int) -> list[Experience]:
    """Micro-batches of random responses of one length, so that shuffling them changes no padding."""
    random = torch.Generator().manual_seed(0)
    rows, length = options.micro_batch, prompt + options.tokens
    micro_batches = []
    for _ in range(options.responses // rows):
        action_mask = torch.ones(rows, length - 1, dtype=torch.long)
        action_mask[:, : prompt - 1] = 0
        micro_batches.append(
            Experience(
                sequences=torch.randint(options.vocabulary, (rows, length), generator=random),
                attention_mask=torch.ones(rows, length, dtype=torch.long),
                action_mask=action_mask,
                advantages=torch.randn(rows, 1, generator=random) * action_mask,
                returns=torch.zeros(rows, length - 1),
                response_length=torch.full((rows,), float(options.tokens)),
                total_length=torch.full((rows,), float(length)),
                truncated=torch.zeros(rows),
                info={"reward": torch.zeros(rows)},
                prompts=[""] * rows,
                labels=[""] * rows,
            )
        )
    return micro_batches


def make_model(folder: Path, options: argparse.Namespace) -> tuple[int, int]:
    """A Qwen2 with random weights and a tokenizer of two tokens; its parameters besides the embedding, and its
    vocabulary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    heads = options.hidden // 64
    config = Qwen2Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=11 * options.hidden // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    tokenizer = Qwen2Tokenizer(vocab={"<pad>": 0, "<eos>": 1}, merges=[], pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    everything = sum(parameter.numel() for parameter in model.parameters())
    return everything - model.get_input_embeddings().weight.numel(), config.vocab_size
