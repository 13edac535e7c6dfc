"""OpenRLHF's real actor group with our policy actor, fed with fixed experiences; no vLLM engine.

    with ActorGroup(model, ranks=2, flags=["--stare.variant", "C2"]) as group:
        log_probs = group.forward(batches)
        status = group.fit(experiences)
        group.parameters()

The process that makes one is a Ray driver; Ray must have been started with `start_ray`.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import ray
import torch
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from openrlhf_stare import runtime, worker
from openrlhf_stare.driver import cluster, command, flags

worker.install()

from openrlhf.models import PolicyLoss  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ray.launcher import RayActorGroup  # noqa: E402

from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402
from openrlhf_stare.actor_group.saving import own_values  # noqa: E402
from openrlhf_stare.substitutions import COMPILER, TABLE  # noqa: E402

FLAGS = """--actor.num_nodes 1 --vllm.num_engines 1 --reward.remote_url none.py --algo.kl.init_coef 0
--advantage_estimator group_norm --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 1
--ds.zero_stage 3 --ds.param_dtype bf16 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0
--actor.adam.lr 1e-3 --data.max_len 32 --ckpt.max_num 3""".split()
RANKS_WAIT = timedelta(minutes=3)


class ReadableActor(StarePolicyActor):
    """The policy actor with doors to read what it holds."""

    def _setup_distributed(self, strategy) -> None:
        """With ranks that give each other up sooner than OpenRLHF's, which wait for an hour."""
        self.strategy = strategy
        torch.distributed.distributed_c10d.default_pg_timeout = RANKS_WAIT  # of the groups beside the one of all
        strategy.setup_distributed(timeout=RANKS_WAIT)

    def init_model_from_pretrained(self, strategy, *args) -> None:
        super().init_model_from_pretrained(strategy, *args)
        self.passes = 0
        self.actor.register_forward_hook(self._count)

    def _count(self, *call) -> None:
        self.passes += self.actor.training

    def count_passes(self) -> int:
        """How many forward passes this rank has made in training mode."""
        return self.passes

    def thresholds(self) -> tuple[float, float]:
        return tuple(float(tau) for tau in self.loss.method.thresholds)

    def held(self) -> list[list[int]]:
        """The tokens of each response in this rank's buffer."""
        return [item.sequences.tolist() for item in self.trainer.replay_buffer.items]

    def spoil(self, rank: int) -> None:
        """Make a value that only this rank holds non-finite."""
        if torch.distributed.get_rank() == rank:
            own_values(next(self.actor.model.parameters())).data.view(-1)[0] = torch.nan

    def save_on_a_disk_of_its_own(self, folder: str, tag: str) -> None:
        """As where a node sees the files of another late, or never."""
        self.strategy.args.ckpt.path = os.path.join(folder, str(torch.distributed.get_rank()))
        os.makedirs(os.path.join(self.strategy.args.ckpt.path, "_actor", tag), exist_ok=True)
        self.save_checkpoint(tag)

    def controller_state(self) -> dict:
        return self.controller.state_dict()

    def parameters(self) -> dict[str, torch.Tensor]:
        import deepspeed

        module, gathered = self.actor.model.module, {}
        for name, parameter in module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.strategy.args.ds.zero_stage == 3):
                gathered[name] = parameter.detach().clone()
        return gathered

    def master_weights(self) -> dict[str, torch.Tensor]:
        """The float32 weights that the optimizer keeps, whole on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param

        return {name: safe_get_full_fp32_param(p).clone() for name, p in self.actor.model.module.named_parameters()}

    def restore(self) -> None:
        """Back to the last `save_checkpoint`, with the shuffling that this process began with."""
        self.strategy.load_ckpt(self.actor.model, os.path.join(self.strategy.args.ckpt.path, "_actor"))
        self.seed()

    def seed(self) -> None:
        """What this process began with. OpenRLHF shuffles the buffer with it, and does not keep it in checkpoints."""
        torch.manual_seed(self.strategy.seed)

    def fit_with(self, loss: str) -> tuple[dict, dict[tuple, list]]:
        """`fit` with the loss "method" of the policy or with "openrlhf", OpenRLHF's own, made with the same options.

        The second value is what the loss trained on: for each response of this rank, given by its tokens, the weights
        of its action tokens, once an epoch. They are read where OpenRLHF's loss takes the weighted advantages.
        """
        trainer, seen = self.trainer, {}
        training_step, loss_forward = trainer.training_step, PolicyLoss.forward
        experience = None

        def step(taken, *args):
            nonlocal experience
            experience = taken
            return training_step(taken, *args)

        def forward(self, log_probs, old_log_probs, weighted, action_mask, **named):
            of_penalty = log_probs is old_log_probs  # not of the weighted advantages: see MethodLoss
            rows = () if of_penalty else zip(experience.sequences, experience.attention_mask.bool(), strict=True)
            for row, (sequence, attended) in enumerate(rows):
                mask = action_mask[row].bool()
                weights = weighted[row][mask] / experience.advantages[row][mask]
                seen.setdefault(tuple(sequence[attended].tolist()), []).append(weights.tolist())
            return loss_forward(self, log_probs, old_log_probs, weighted, action_mask, **named)

        options = inspect.signature(PolicyLoss).parameters
        own = PolicyLoss(**{name: getattr(self.loss, name) for name in options})
        with (
            patch.object(trainer, "actor_loss_fn", {"method": trainer.actor_loss_fn, "openrlhf": own}[loss]),
            patch.object(trainer, "training_step", step),
            patch.object(PolicyLoss, "forward", forward),
        ):
            return self.fit(), seen

    def without_a_compiler(self, yes: bool) -> None:
        """Whether the rows of the table hold that a GPU without one has, from the next `start` on."""
        getattr(self, "compiler_rows", ExitStack()).close()
        self.compiler_rows = ExitStack()
        for row in TABLE:
            if yes and row.missing == COMPILER and not row.during:
                ours = pkgutil.resolve_name(row.by)(pkgutil.resolve_name(row.place))
                self.compiler_rows.enter_context(patch(row.place, ours))

    def optimizer(self) -> dict:
        """The optimizer under ZeRO's, and what of it is asleep."""
        zero = self.actor.model.optimizer
        asleep = sorted(state.value for state in zero.offloaded_states)
        return {"class": type(zero.optimizer).__name__, "fused": zero.optimizer.defaults["fused"], "asleep": asleep}

    def generator_state(self) -> torch.Tensor:
        return torch.random.get_rng_state()


def parse(words: list[str]) -> SimpleNamespace:
    """The arguments as the command makes them of the flags, ours included.

    What vLLM cannot take (LoRA) and layouts whose kernels need a GPU can train here, so our checks are left out.
    """
    args = command.settle(flags.parse(words))
    runtime.set_arguments(args, attention=args.ds.attn_implementation)
    return args


def start_ray(gpus: int, *, python_path: tuple[str, ...] = (), **options) -> None:
    runtime_env = cluster.job_wide({})
    # For the workers to unpickle ReadableActor, and to have the package that this process has.
    places = [*python_path, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    runtime_env["env_vars"]["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    ray.init(
        address="local", num_cpus=gpus + 1, num_gpus=gpus, include_dashboard=False, runtime_env=runtime_env, **options
    )


class ActorGroup:
    """`ranks` policy actors of one data-parallel group on the model folder `model`."""

    def __init__(
        self,
        model: str,
        ranks: int = 2,
        flags: list[str] | None = (),
        max_steps: int = 100,
        actor: type[ReadableActor] = ReadableActor,
        duplicates: int = 1,
    ) -> None:
        """With `flags` None the processes start without a policy, until `start`.

        `duplicates` ranks in a row hold the same responses, as with ring attention and tensor parallelism.
        """
        self.model, self.ranks, self.max_steps = str(model), ranks, max_steps
        self.group = RayActorGroup(1, ranks, ray.remote(num_gpus=1)(actor), duplicate_actors=duplicates)
        if flags is not None:
            self.start(flags)

    def start(self, flags: list[str]) -> None:
        """Load the model and set up DeepSpeed, as at the start of a job. What was trained before is gone."""
        from openrlhf.utils import get_strategy

        ranks_flags = ["--actor.num_gpus_per_node", str(self.ranks), "--actor.model_name_or_path", self.model]
        self.args = parse([*FLAGS, *ranks_flags, *flags])
        strategy = get_strategy(self.args)
        ray.get(self.group.async_init_model_from_pretrained(strategy, self.model, self.max_steps, None))

    def __enter__(self) -> ActorGroup:
        return self

    def __exit__(self, *exc) -> None:
        for actor in self.group._actor_handlers:
            ray.kill(actor)
        for name, table in ray.util.placement_group_table().items():
            if table["state"] != "REMOVED":
                ray.util.remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(name)))

    def forward(self, experiences: list[Experience]) -> list[torch.Tensor]:
        """The log-prob pass over the experiences, dealt to the ranks as OpenRLHF deals them."""
        fields = {
            "sequences": [experience.sequences for experience in experiences],
            "action_mask": [experience.action_mask for experience in experiences],
            "attention_mask": [experience.attention_mask for experience in experiences],
        }
        results = ray.get(self.group.async_run_method_batch("forward", **fields))
        return [log_probs for rank in results for log_probs in rank]

    def append(self, experiences: list[Experience]) -> None:
        ray.get(self.group.async_run_method_batch("append", experience=experiences))

    def fit(self, experiences: list[Experience]) -> list[dict]:
        """Train on the experiences; the status of every rank."""
        self.append(experiences)
        return self.run("fit")

    def run(self, method: str, *args, **kwargs) -> list:
        """The method's result on every rank."""
        return ray.get(self.group.async_run_method(method, *args, **kwargs))

    def parameters(self) -> dict[str, torch.Tensor]:
        return self.run("parameters")[0]


def fixed_experiences(count: int = 16, seed: int = 0, vocabulary: int = 16) -> list[Experience]:
    """`count` responses of uneven lengths after prompts of three tokens, as the controller actor hands them over.

    Log-probs and advantages are part of the fixed data; the advantage is one number per response, of either sign.
    """
    generator = torch.Generator().manual_seed(seed)
    experiences = []
    for _ in range(count):
        length = 3 + int(torch.randint(2, 12, (1,), generator=generator))
        action_mask = torch.zeros(1, length - 1, dtype=torch.long)
        action_mask[:, 2:] = 1
        log_probs = -3 * torch.rand(1, length - 1, generator=generator)
        # What the engine said of the tokens, for the importance correction; of a generator of its own.
        rollout_noise = 0.1 * torch.randn(1, length - 1, generator=torch.Generator().manual_seed(length))
        experiences.append(
            Experience(
                sequences=torch.randint(4, vocabulary, (1, length), generator=generator),
                attention_mask=torch.ones(1, length, dtype=torch.long),
                action_mask=action_mask,
                action_log_probs=log_probs * action_mask,
                rollout_log_probs=(log_probs + rollout_noise) * action_mask,
                advantages=torch.randn(1, 1, generator=generator) * action_mask,
                returns=torch.zeros(1, length - 1),
                response_length=action_mask.sum(dim=-1).float(),
                total_length=torch.tensor([float(length)]),
                truncated=torch.zeros(1),
                info={"reward": torch.zeros(1)},
                prompts=[""],
                labels=[""],
            )
        )
    return experiences


def tokens(experiences: list[Experience]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and advantages (N,) of all action tokens."""
    masks = [experience.action_mask.bool() for experience in experiences]
    pairs = list(zip(experiences, masks, strict=True))
    log_probs = torch.cat([experience.action_log_probs[mask] for experience, mask in pairs])
    return log_probs, torch.cat([experience.advantages[mask] for experience, mask in pairs])
