"""What a job asks of the Ray cluster, against what the cluster has: unchecked, a job too large waits for ever.

And whether the ranks of each model can share an optimizer step's batch, which DeepSpeed asserts once they are started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_stare import dealing
from openrlhf_stare.rules import Finding


@dataclass(frozen=True)
class Needs:
    """The GPUs and CPUs of a job, and its parts: what they are for, with the flags that say so, and their GPUs."""

    gpus: int
    cpus: int
    parts: tuple[tuple[str, int], ...]

    def fit(self, available: dict[str, float]) -> bool:
        """Whether a cluster with these totals, `ray.cluster_resources()`, is large enough."""
        return self.gpus <= available.get("GPU", 0) and self.cpus <= available.get("CPU", 0)

    def __str__(self) -> str:
        parts = ", ".join(f"{count} for {what}" for what, count in self.parts)
        return f"{self.gpus} GPUs ({parts}) and {self.cpus} CPUs (one for each GPU and one for the trainer)"


def required(args: SimpleNamespace) -> Needs:
    """The sum over everything that OpenRLHF 0.11.2 places for a job.

    Args:
        args: the nested arguments as OpenRLHF's `train` gets them. Before that, its command still settles whether
            there are a critic and a reward model.
    """
    everything_shared = args.train.colocate_all
    parts = [_ranks("actor", "the actor", args.actor)]

    # Asynchronous generation runs beside training, so its engines never share the actor's GPUs.
    if args.vllm.num_engines and (args.train.async_enable or not everything_shared):
        flags = f"--vllm.num_engines {args.vllm.num_engines} x --vllm.tensor_parallel_size"
        engines = args.vllm.num_engines * args.vllm.tensor_parallel_size
        parts.append((f"the vLLM engines ({flags} {args.vllm.tensor_parallel_size})", engines))

    if args.algo.kl.init_coef > 0 and not (everything_shared or args.train.colocate_actor_ref):
        parts.append(_ranks("ref", "the reference model", args.ref))

    has_critic, has_reward = bool(args.critic.model_name_or_path), not args.reward.remote_url
    critic = "the critic, which --advantage_estimator gae needs and group_norm does not"
    if has_critic and args.train.colocate_critic_reward:
        # These two get GPUs of their own even when everything else shares the actor's.
        parts.append(_ranks("critic", f"{critic}, and reward models" if has_reward else critic, args.critic))
    elif not everything_shared:
        if has_critic:
            parts.append(_ranks("critic", critic, args.critic))
        if has_reward:
            parts.append(_ranks("reward", "the reward model", args.reward))

    gpus = sum(count for _, count in parts)
    # A CPU goes with every GPU. The trainer actors hold no CPU while they run, but each needs a free one to be placed.
    return Needs(gpus=gpus, cpus=gpus + 1, parts=tuple(part for part in parts if part[1]))


def uneven_batches(args: SimpleNamespace) -> Iterator[Finding]:
    """Each rank of every model is to get whole micro-batches of an optimizer step's batch.

    DeepSpeed asks it of models that do not train, too. `args` as for `required`.
    """
    batch, micro_batch = args.train.batch_size, args.train.micro_batch_size
    for prefix, name in dealing.models(args).items():
        # With dynamic batches DeepSpeed is told other sizes for what trains.
        if args.train.dynamic_batch_enable and prefix in dealing.TRAINED:
            continue
        what, _ = _ranks(prefix, name, getattr(args, prefix))
        ranks = dealing.data_parallel_ranks(args, prefix)
        if ranks == 0 or batch % (ranks * micro_batch):
            yield Finding(
                f"--train.batch_size {batch}",
                f"cannot be split into micro-batches of --train.micro_batch_size {micro_batch} for the {ranks} "
                f"data-parallel ranks of {what}",
                f"give a multiple of {ranks * micro_batch}, or other sizes" if ranks else "give it more ranks",
            )


def unequal_shares(args: SimpleNamespace) -> Iterator[Finding]:
    """What is dealt to the actor's ranks can be dealt to those of each other model.

    With dynamic batches OpenRLHF makes some for each rank of the actor. Otherwise a rollout is cut to what suits all,
    but for models that only compute, below ZeRO-3: there each rank takes what it gets, if there is something for it.
    """
    actor_s = dealing.data_parallel_ranks(args)
    _, kept = dealing.responses_of_a_rollout(args)
    for prefix, name in dealing.models(args).items():
        (what, _), ranks = _ranks(prefix, name, getattr(args, prefix)), dealing.data_parallel_ranks(args, prefix)
        if args.train.dynamic_batch_enable and (ranks == 0 or actor_s % ranks):
            yield Finding(
                "--train.dynamic_batch_enable",
                f"makes batches for the {actor_s} data-parallel ranks of the actor, which the {ranks} of {what} "
                "cannot share equally",
                f"give it as many as {actor_s}, or a number that divides it",
            )
        batches = -(-kept // args.rollout.micro_batch_size)
        if prefix not in dealing.TRAINED and args.ds.zero_stage != 3 and batches < ranks:
            yield Finding(
                f"--rollout.micro_batch_size {args.rollout.micro_batch_size}",
                f"makes {batches} batches of the {kept} responses that are kept of a rollout, fewer than the {ranks} "
                f"data-parallel ranks of {what}",
                "lower it, or give that model fewer ranks",
            )


def more_ranks_than_gpus(args: SimpleNamespace) -> Iterator[Finding]:
    """Critic and reward model have no more ranks than the actor whose GPUs they share.

    Ray says so after the engines have loaded. `args` as for `required`.
    """
    has_critic = bool(args.critic.model_name_or_path)
    if not args.train.colocate_all or (has_critic and args.train.colocate_critic_reward):
        return
    _, gpus = _ranks("actor", "the actor", args.actor)
    has = {"critic": ("the critic", has_critic), "reward": ("the reward model", not args.reward.remote_url)}
    for prefix, (name, there) in has.items():
        what, ranks = _ranks(prefix, name, getattr(args, prefix))
        if there and ranks > gpus:
            yield Finding(
                "--train.colocate_all",
                f"has the {ranks} ranks of {what} share the actor's {gpus} GPUs",
                f"give it {gpus} ranks or fewer",
            )


def too_small(args: SimpleNamespace, available: dict[str, float]) -> Iterator[Finding]:
    """The cluster with these totals, `ray.cluster_resources()`, can take the job at some time."""
    needs = required(args)
    if needs.fit(available):
        return
    gpus, cpus = available.get("GPU", 0), available.get("CPU", 0)
    yield Finding(
        "the job",
        f"needs {needs}, but the Ray cluster has {gpus:g} GPUs and {cpus:g} CPUs",
        f"lower these flags, or start the cluster with `ray start --head --num-gpus={needs.gpus} "
        f"--num-cpus={needs.cpus}` or with more nodes, for which --wait_for_resources SECONDS waits",
    )


def unplaceable(args: SimpleNamespace, nodes: Iterable[dict[str, float]]) -> Iterator[Finding]:
    """The nodes with these totals have a CPU beside each GPU: Ray places both together, or waits for ever."""
    needs = required(args)
    pairs = sum(int(min(node.get("GPU", 0), node.get("CPU", 0))) for node in nodes)
    if pairs < needs.gpus:
        yield Finding(
            "the job",
            f"needs {needs}, each of these GPUs with a CPU of its own node, and the nodes have {pairs} such pairs",
            "start the nodes with GPUs with more CPUs (`ray start --num-cpus`), or lower these flags",
        )


def _ranks(prefix: str, what: str, model: SimpleNamespace) -> tuple[str, int]:
    flags = f"--{prefix}.num_nodes {model.num_nodes} x --{prefix}.num_gpus_per_node {model.num_gpus_per_node}"
    return f"{what} ({flags})", model.num_nodes * model.num_gpus_per_node
