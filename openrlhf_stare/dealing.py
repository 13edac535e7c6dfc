"""How OpenRLHF shares a rollout out among the ranks: arithmetic on its nested arguments, without a framework."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_stare.rules import Finding

MODELS = {"actor": "the actor", "critic": "the critic", "ref": "the reference model", "reward": "the reward model"}
TRAINED = ("actor", "critic")


def dealing_unit(args: SimpleNamespace, whole_steps: bool) -> int:
    """Of how many responses, or a multiple of it, a rollout must be for equal shares of whole prompt groups, and with
    `whole_steps` for whole optimizer steps too."""
    ranks = math.lcm(*(data_parallel_ranks(args, model) or 1 for model in _dealt_alike(args)))
    # One rank takes anything. With dynamic batches responses are dealt one by one, otherwise in whole micro-batches,
    # a contiguous chunk of them to each rank.
    dealt = ranks if args.train.dynamic_batch_enable else ranks * args.rollout.micro_batch_size
    unit = 1 if ranks == 1 else dealt
    if whole_steps:
        unit = math.lcm(unit, args.train.batch_size)
    return math.lcm(unit, args.rollout.n_samples_per_prompt)


def models(args: SimpleNamespace) -> dict[str, str]:
    """The models to whose ranks a rollout is dealt: the first parts of their flags, and what they are called."""
    has_critic = args.algo.advantage.estimator == "gae"
    has_reward = not (args.reward.remote_url or args.train.agent_func_path)
    there = {"actor": True, "critic": has_critic, "ref": args.algo.kl.init_coef > 0, "reward": has_reward}
    return {model: name for model, name in MODELS.items() if there[model]}


def _dealt_alike(args: SimpleNamespace) -> list[str]:
    """The models whose ranks have to get equal shares, since they meet in collectives: in training, and under ZeRO-3
    in every pass. With dynamic batches OpenRLHF makes the shares for the actor's ranks."""
    if args.train.dynamic_batch_enable:
        return ["actor"]
    return [model for model in models(args) if model in TRAINED or args.ds.zero_stage == 3]


def data_parallel_ranks(args: SimpleNamespace, model: str = "actor") -> int:
    """How many ranks of a model hold responses of their own."""
    of = getattr(args, model)
    return of.num_nodes * of.num_gpus_per_node // args.ds.ring_attn_size // args.ds.tensor_parallel_size


def evenly_dealt(count: int, args: SimpleNamespace) -> int:
    """How many of a rollout's first `count` responses OpenRLHF deals in equal shares to all data-parallel ranks, those
    of each model.

    Whole prompt groups only. A rollout shorter than `--rollout.batch_size` prompts is also cut to whole optimizer
    steps: gradients of a begun one would wait for the next rollout, whose loss is normalised without them.
    """
    short = count < args.rollout.batch_size * args.rollout.n_samples_per_prompt
    unit = dealing_unit(args, whole_steps=short)
    return count // unit * unit


def responses_of_a_rollout(args: SimpleNamespace) -> tuple[int, int]:
    """How many responses OpenRLHF samples for one rollout, and how many of them are kept.

    Fewer prompts than `--rollout.batch_size` are sampled at once where `--rollout.vllm_generate_batch_size` or the
    data limit them; a call of the sampler is a rollout then.
    """
    rollout = args.rollout
    prompts = min(rollout.batch_size, rollout.vllm_generate_batch_size or rollout.batch_size, args.data.max_samples)
    sampled = int(prompts) * rollout.n_samples_per_prompt
    return sampled, evenly_dealt(sampled, args)


def steps_of_a_rollout(args: SimpleNamespace) -> int:
    """How many optimizer steps the policy makes in one pass over a rollout; one that is only begun counts too."""
    _, kept = responses_of_a_rollout(args)
    if args.train.dynamic_batch_enable:
        ranks = data_parallel_ranks(args)
        of_step = args.train.batch_size // ranks * ranks
        return _trained_on(args, "actor", kept) // of_step if of_step else 0
    return -(-kept // args.train.batch_size)


def nothing_kept(args: SimpleNamespace) -> Iterator[Finding]:
    """Of each rollout something is kept to train on."""
    sampled, kept = responses_of_a_rollout(args)
    if kept:
        return
    samples = args.rollout.n_samples_per_prompt
    flag, unit, steps = _limit(args, sampled)
    yield Finding(
        flag,
        f"makes rollouts of {sampled} responses, of which none could be kept: equal shares of whole prompt groups"
        f"{steps} for {_ranks(args)} take {unit} responses or a multiple of it",
        f"give a multiple of {unit // samples}, or change --rollout.micro_batch_size "
        f"{args.rollout.micro_batch_size} or --rollout.n_samples_per_prompt {samples}",
    )


def some_left_out(args: SimpleNamespace) -> Iterator[Finding]:
    """All of a rollout is kept."""
    sampled, kept = responses_of_a_rollout(args)
    if kept < sampled:
        flag, unit, steps = _limit(args, sampled)
        yield Finding(
            flag,
            f"leaves {sampled - kept} of each rollout's {sampled} responses out of training, so that all ranks get "
            f"the same share{steps}",
            f"give a multiple of {unit // args.rollout.n_samples_per_prompt} to train on all of them",
        )


def _limit(args: SimpleNamespace, sampled: int) -> tuple[str, int, str]:
    """The flag that limits a rollout, with its value; of how many responses a rollout is to be a multiple; and what
    that is for besides equal shares."""
    samples = args.rollout.n_samples_per_prompt
    if sampled == args.rollout.batch_size * samples:
        return f"--rollout.batch_size {args.rollout.batch_size}", dealing_unit(args, whole_steps=False), ""
    flag = f"--rollout.vllm_generate_batch_size {args.rollout.vllm_generate_batch_size}"
    if args.data.max_samples * samples == sampled:
        flag = f"--data.max_samples {args.data.max_samples}"
    return flag, dealing_unit(args, whole_steps=True), " and whole optimizer steps"


def _ranks(args: SimpleNamespace) -> str:
    """Such as `2 ranks`, or `2 ranks of the actor and 3 of the critic`."""
    ranks = {name: data_parallel_ranks(args, model) for model, name in models(args).items()}
    first, *others = ranks.values()
    if all(count == first for count in others):
        return f"{first} ranks"
    return " and ".join(f"{count} of {name}" for name, count in ranks.items()).replace(" of", " ranks of", 1)


def no_step(args: SimpleNamespace) -> Iterator[Finding]:
    """Of each rollout something is trained on: OpenRLHF drops micro-batches that are not full, and with dynamic
    batches optimizer steps that are not."""
    _, kept = responses_of_a_rollout(args)
    for model in filter(TRAINED.__contains__, models(args)):
        ranks, micro_batch = data_parallel_ranks(args, model), args.train.micro_batch_size
        if args.train.dynamic_batch_enable:
            flag, is_there = f"--train.batch_size {args.train.batch_size}", _trained_on(args, model, kept) > 0
        else:
            flag, is_there = f"--train.micro_batch_size {micro_batch}", kept // ranks >= micro_batch
        if not is_there:
            yield Finding(
                flag,
                f"leaves nothing to train on, since each of the {ranks} data-parallel ranks of {MODELS[model]} gets "
                f"{kept // ranks} responses of a rollout",
                _fitting(args),
            )


def unfilled_steps(args: SimpleNamespace) -> Iterator[Finding]:
    """A rollout is a whole number of optimizer steps."""
    _, kept = responses_of_a_rollout(args)
    if args.train.dynamic_batch_enable:
        left = max(kept - _trained_on(args, model, kept) for model in TRAINED if model in models(args))
        problem = f"leaves {left} of the {kept} responses that are kept of a rollout untrained"
    else:
        left = kept % args.train.batch_size
        problem = (
            f"does not divide the {kept} responses that are kept of a rollout, so that OpenRLHF fills its last "
            "optimizer step up with what comes next, and averages the loss over each part as if it were all"
        )
    if left:
        yield Finding(f"--train.batch_size {args.train.batch_size}", problem, _fitting(args))


def _trained_on(args: SimpleNamespace, model: str, kept: int) -> int:
    """On how many of `kept` responses OpenRLHF trains with dynamic batches: whole optimizer steps, of which a rank has
    the same rounded down number of responses in each."""
    ranks = data_parallel_ranks(args, model)
    of_step = args.train.batch_size // ranks
    full = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    return min(full // args.train.batch_size, kept // ranks // of_step) * of_step * ranks if of_step else 0


def _fitting(args: SimpleNamespace) -> str:
    """Sizes of which OpenRLHF makes whole optimizer steps: a batch no larger if it can be, a rollout no smaller."""
    micro_batch = {model: args.train.micro_batch_size for model in models(args)}
    if args.train.dynamic_batch_enable:
        micro_batch |= dict.fromkeys(TRAINED, 1)
    shares = math.lcm(*(data_parallel_ranks(args, model) * micro_batch[model] for model in models(args)))
    batch = max(shares, args.train.batch_size // shares * shares)
    unit = math.lcm(dealing_unit(args, whole_steps=False), batch)
    samples = args.rollout.n_samples_per_prompt
    prompts = -(-args.rollout.batch_size * samples // unit) * unit // samples
    return f"give --train.batch_size {batch} and --rollout.batch_size {prompts}, or other sizes"
