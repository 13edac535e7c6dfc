"""`train_ray --look`: a few answers of the model to a few prompts, before any training, and what they say about it.

The flags are the job's, and what samples is the job's too: OpenRLHF's engine, its samples generator and its call of
the reward, with our changes in place. Only what trains is not started. Nothing is written.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf_stare.algorithms import prospects
from openrlhf_stare.algorithms.verdict import HIGH_REWARD
from openrlhf_stare.driver import cluster, console
from openrlhf_stare.methods import base
from openrlhf_stare.notices import notice
from openrlhf_stare.options import Options, UsageError, option

SHOWN = 10  # answers to read
# Characters of them: the end of a prompt, of which a chat template takes some 40, and both ends of a long answer.
PROMPT_WIDTH, ANSWER_WIDTH = 80, 160


@dataclass(frozen=True)
class LookConfig(Options):
    """How much `--look` samples, checked when made.

    Raises:
        ValueError: an option is outside its range.
    """

    prompts: int = option(8, "prompts for which --look samples answers", within="[1, inf)")
    answers: int = option(0, "answers per prompt; 0: as many as --rollout.n_samples_per_prompt", within="[0, inf)")


def run(args: SimpleNamespace, variables: dict[str, str]) -> int:
    """Sample, and print the figures, ten answers and what they say.

    Args:
        args: the arguments as OpenRLHF's `train` gets them; flags and files have been checked.
        variables: what the job's processes need in their environment.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: a reward model is to score the answers, or the cluster is not there or too small.
        SystemExit: the engine died or could not start.
    """
    if not args.reward.remote_url:
        raise UsageError(
            f"--look cannot ask the reward model --reward.model_name_or_path {args.reward.model_name_or_path}, which "
            "is loaded for training alone: look with a --reward.remote_url, or train a few steps"
        )
    console.start_look()
    if args.ckpt.load_enable:
        notice("--look samples from the model of --actor.model_name_or_path, not from a checkpoint")
    import ray

    from openrlhf_stare.driver import deaths, waiting

    args = of_the_engine_alone(args)
    try:
        cluster.start(ray.init, args, variables)
        with deaths.watched(), waiting.told():
            samples, tokenizer, seconds = _sample(args)
    finally:
        console.catch_up()
        ray.shutdown()
    _tell(args, samples, tokenizer, seconds)
    return 0


def of_the_engine_alone(args: SimpleNamespace) -> SimpleNamespace:
    """The arguments of a job with one engine that nothing shares a GPU with, and without models that train."""
    args = copy.deepcopy(args)
    args.actor.num_nodes = 0
    args.critic.model_name_or_path, args.algo.kl.init_coef = None, 0
    args.train.colocate_all = args.train.async_enable = args.vllm.enable_sleep = False
    args.vllm.num_engines = 1
    args.eval.dataset = None
    args.rollout.n_samples_per_prompt = args.look.answers or args.rollout.n_samples_per_prompt
    # What has the engine return log-probs: those that the tokens were drawn by, at the rollout's temperature.
    args.algo.advantage.is_correction_level = "token"
    return args


def _sample(args: SimpleNamespace) -> tuple[list, Any, float]:
    """OpenRLHF's experiences, those of a prompt next to each other; its tokenizer; and the seconds of sampling."""
    import ray
    from openrlhf.trainer.ray import create_vllm_engines

    engines = create_vllm_engines(
        num_engines=args.vllm.num_engines,
        tensor_parallel_size=args.vllm.tensor_parallel_size,
        pretrain=args.actor.model_name_or_path,
        seed=args.train.seed,
        full_determinism=args.train.full_determinism_enable,
        enable_prefix_caching=args.vllm.enable_prefix_caching,
        enforce_eager=args.vllm.enforce_eager,
        max_model_len=args.data.max_len,
        gpu_memory_utilization=args.vllm.gpu_memory_utilization,
        logprobs_mode="processed_logprobs",
        agent_func_path=args.train.agent_func_path,
        remote_rm_url=args.reward.remote_url,
        max_images_per_prompt=args.data.max_images_per_prompt,
    )
    # While it loads. DeepSpeed, which comes along, takes seconds to import.
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
    from openrlhf.utils import get_strategy, get_tokenizer

    strategy = get_strategy(args)
    name = args.actor.model_name_or_path
    tokenizer = get_tokenizer(name, None, "left", strategy, use_fast=not args.data.disable_fast_tokenizer)
    prompts, *_ = prepare_datasets(strategy, tokenizer)
    generator = SamplesGenerator(strategy, prompts, None, tokenizer, engines)
    ray.get(engines[0].get_num_unfinished_requests.remote())
    console.end_phase("engines")
    start = time.monotonic()
    samples, *_ = generator._generate_vllm(
        dataloader_iter=iter(prompts),
        num_prompts=args.look.prompts,
        dynamic_filtering=False,
        max_len=args.data.max_len,
        max_new_tokens=args.rollout.max_new_tokens,
        temperature=args.rollout.temperature,
        top_p=args.rollout.top_p,
    )
    return samples, tokenizer, time.monotonic() - start


def _tell(args: SimpleNamespace, samples: list, tokenizer: Any, seconds: float) -> None:
    answers = [Answer.of(sample, tokenizer) for sample in samples]
    found = figures(answers, args)
    count = min(SHOWN, len(answers))
    shown = [answers[number * len(answers) // count] for number in range(count)]
    lines = [
        f"look: {len(answers) // args.rollout.n_samples_per_prompt} prompts, {found.answers} answers, "
        f"sampled in {seconds:.1f} s",
        "",
        *(f"  {name:<13}{value:>7}  {meaning}" for name, value, meaning in _table(answers, found, args)),
        "",
        f"  {'reward':>8}  {'tokens':>6}  the end of a prompt, and an answer",
        *(answer.line() for answer in shown),
        "",
        *prospects.judge(found),
    ]
    console.show("\n".join(lines))


def _table(answers: list[Answer], found: prospects.Figures, args: SimpleNamespace) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each figure."""

    def share(name: str, part: int, whole: int, meaning: str) -> tuple[str, str, str]:
        return name, f"{100 * part / whole:.0f} %", f"{part} of {whole} {meaning}"

    lengths = [len(answer.tokens) for answer in answers]
    rewards = [answer.reward for answer in answers if answer.has_reward] or [math.nan]
    at = "" if found.temperature == 1 else f" at --rollout.temperature {found.temperature:g}"
    if found.entropy is None:
        cause = f"--rollout.top_p {args.rollout.top_p:g}" if args.rollout.top_p < 1 else "an agent without log-probs"
        entropies = [("entropy", "-", f"cannot be had from samples of {cause}")]
    else:
        entropies = [
            ("entropy", f"{found.entropy:.3f}", f"nats per token, sampled: the mean of -log pi{at}"),
            ("half of it", f"{found.entropy / 2:.3f}", "nats, what --entropy.target 50% would hold"),
        ]
    return [
        share("right", found.right, found.answers, f"answers have a reward, or score, above {HIGH_REWARD:g}"),
        ("reward", f"{fmean(rewards):.3f}", f"mean; {min(rewards):g} to {max(rewards):g}"),
        share("mixed", found.mixed, found.groups, "groups have different rewards, and these alone teach"),
        *entropies,
        ("length", f"{fmean(lengths):.1f}", f"tokens, mean; {min(lengths)} to {max(lengths)}"),
        share("truncated", found.truncated, found.answers, f"answers reached {found.limit}"),
        share("identical", found.identical, found.groups, "groups have the same answer every time"),
    ]


@dataclass(frozen=True)
class Answer:
    """One sampled answer.

    Attributes:
        prompt: the text that the model was given.
        text, tokens: the answer, and the ids of its sampled tokens.
        log_probs: of the tokens, in nats; none from an agent that does not keep them.
        reward, score: `score` is what the reward function returns beside the reward, or the reward; NaN for none.
        is_truncated: it reached the limit on new tokens.
        is_cut: the prompt was too long and lost its beginning.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    reward: float
    score: float
    is_truncated: bool
    is_cut: bool

    @classmethod
    def of(cls, sample: Any, tokenizer: Any) -> Answer:
        """From OpenRLHF's experience with one response."""
        mask = sample.action_mask[0].bool()  # (S - 1,): of the second token and those behind it
        ids, first = sample.sequences[0], next(iter(mask.nonzero()[:, 0].tolist()), len(mask))
        has_images = bool(sample.images[0])
        whole = 0 if has_images else len(tokenizer(text=sample.prompts[0], add_special_tokens=False)["input_ids"])
        reward = float(sample.rewards)
        return cls(
            prompt=sample.prompts[0],
            text=tokenizer.decode(ids[first + 1 :], skip_special_tokens=False),
            tokens=tuple(ids[1:][mask].tolist()),
            log_probs=() if sample.rollout_log_probs is None else tuple(sample.rollout_log_probs[0][mask].tolist()),
            reward=reward,
            score=reward if sample.scores is None or math.isnan(reward) else float(sample.scores),
            is_truncated=bool(sample.truncated),
            is_cut=first + 1 < whole,
        )

    @property
    def has_reward(self) -> bool:
        return math.isfinite(self.reward)

    def line(self) -> str:
        """The answer to read; characters that would not print are escaped."""
        reward = f"{self.reward:g}" if self.has_reward else "none"
        before = "…" if len(self.prompt) > PROMPT_WIDTH else ""
        prompt = f"{before}{self.prompt[-PROMPT_WIDTH:]}"
        return f"  {reward:>8}  {len(self.tokens):>6}  {prompt!r} {_shortened(self.text)!r}"


def figures(answers: list[Answer], args: SimpleNamespace) -> prospects.Figures:
    """What `prospects.judge` asks about answers, those to a prompt next to each other."""
    size = args.rollout.n_samples_per_prompt
    size = size if size > 1 else len(answers)
    groups = [answers[start : start + size] for start in range(0, len(answers), size)]
    log_probs = [log_prob for answer in answers for log_prob in answer.log_probs]
    # As with --entropy.measure sampled: tokens of a truncated distribution do not estimate the policy's entropy.
    entropy = -fmean(log_probs) if log_probs and args.rollout.top_p == 1 else None
    # An agent makes its own prompts, and answers in turns, which --data.max_len alone limits.
    agent = args.train.agent_func_path
    limit = None if agent else args.rollout.max_new_tokens
    return prospects.Figures(
        answers=len(answers),
        groups=len(groups),
        right=sum(answer.score > HIGH_REWARD for answer in answers),
        without_reward=sum(not answer.has_reward for answer in answers),
        mixed=sum(len({answer.reward for answer in group if answer.has_reward}) > 1 for group in groups),
        identical=sum(len({answer.tokens for answer in group}) == 1 for group in groups),
        truncated=sum(answer.is_truncated for answer in answers),
        cut=0 if agent else sum(answer.is_cut for answer in answers),
        entropy=entropy,
        target=_target(args, entropy),
        temperature=args.rollout.temperature,
        limit=f"--rollout.max_new_tokens {limit}" if limit else f"--data.max_len {args.data.max_len}",
    )


def _target(args: SimpleNamespace, entropy: float | None) -> float | None:
    """What the first rollout is held to, in nats; None if nothing holds it."""
    control = base.control_of(args)
    is_held = base.make(args) is not None and control.schedule != "open"
    return control.target_at(0, entropy) if is_held else None


def _shortened(text: str) -> str:
    if len(text) <= ANSWER_WIDTH:
        return text
    return f"{text[: ANSWER_WIDTH // 2]} … {text[-ANSWER_WIDTH // 2 :]}"
