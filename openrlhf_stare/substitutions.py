"""The one table of what this package puts in the place of something of OpenRLHF, DeepSpeed, vLLM, Ray or torch.

A row names a place of theirs and what of ours stands there. `replacing.py` is the only code that replaces anything,
and it refuses a place that has no row. From the table come what each process installs, the check at start
(driver/seams.py) and the page docs/substitutions.md. To add a row, copy one. Importing the table imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

GPU, FLASH_ATTN, COMPILER = "GPU", "flash-attn", "compiler for CUDA"


@dataclass(frozen=True)
class Theirs:
    """Something of theirs that a row relies on.

    Attributes:
        module: where it is defined.
        name: a class, function or variable of the module; a method or attribute of a class after a dot.
        arguments: parameters that the function has to take.
        mentions: attributes, fields, variables and keys of results that its source has to contain.
    """

    module: str
    name: str
    arguments: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Substitution:
    """A row of the table.

    Attributes:
        module, name: the place of theirs.
        by: the dotted path of what of ours stands there.
        without: what breaks without it, in one line.
        where: the processes that need it.
        during: while what it stands there; None for always, from the import of the module on.
        relies_on: what of theirs ours uses, besides the place itself.
        missing: in place only where there is none of this: GPU, FLASH_ATTN or COMPILER; None for everywhere.
        wraps: `by` is a function that takes what stood there and returns what stands there instead.
        of_instance: the place is an attribute of an object of theirs, which only a running job has.
    """

    module: str
    name: str
    by: str
    without: str
    where: str
    during: str | None = None
    relies_on: tuple[Theirs, ...] = ()
    missing: str | None = None
    wraps: bool = False
    of_instance: bool = False

    @property
    def place(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def of_theirs(self) -> tuple[Theirs, ...]:
        """All of theirs that has to be there."""
        if self.of_instance or not self.name:
            return self.relies_on
        return (Theirs(self.module, self.name), *self.relies_on)


# ── what OpenRLHF's code looks like where several rows meet it ──

EXPERIENCE = Theirs(
    "openrlhf.trainer.ppo_utils.experience",
    "Experience",
    mentions=("action_log_probs", "action_mask", "advantages", "index", "info", "returns", "rewards", "scores"),
)
SPLIT = Theirs("openrlhf.trainer.ppo_utils.experience", "split_experience_batch", arguments=("experience",))
BATCH = Theirs("openrlhf.trainer.ppo_utils.experience", "make_experience_batch", arguments=("items",))
REPLAY_BUFFER = Theirs(
    "openrlhf.trainer.ppo_utils.replay_buffer",
    "NaiveReplayBuffer",
    mentions=("items", "packing_samples", "dynamic_indices", "dynamic_optimizer_step")
    + ("dynamic_batch_num_tokens", "dynamic_global_batch_size", "dynamic_sample_loss_scale"),
)
TRAINING_STEP = Theirs(
    "openrlhf.trainer.ray.ppo_actor",
    "ActorPPOTrainer.training_step",
    arguments=("experience", "kl_ctl", "step", "loss_batch_info"),
    mentions=("actor_loss_fn", "entropy_coef", "return_entropy", "metrics", "weights", "num_action_tokens"),
)
LOSS_COUNTS = Theirs(
    "openrlhf.utils.loss_utils",
    "get_loss_batch_info",
    arguments=("strategy", "loss_mask", "replay_buffer", "step", "dynamic_batch"),
    mentions=("batch_num_tokens", "global_batch_size"),
)
ACTOR_FORWARD = Theirs(
    "openrlhf.models.actor", "Actor.forward", arguments=("action_mask", "return_output", "return_entropy")
)

# What ours extends or calls without standing in its place: an agent is handed to OpenRLHF by its own flag.
USED = (
    Theirs(
        "openrlhf.utils.agent",
        "MultiTurnAgentExecutor.execute",
        arguments=("prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "llm_engine", "images"),
        mentions=("observation_tokens", "action_ranges", "extra_logs", "agent_instance_cls"),
    ),
    Theirs("openrlhf.utils.config", "hierarchize"),
    # What samples without training (look.py).
    Theirs(
        "openrlhf.trainer.ray.vllm_engine",
        "create_vllm_engines",
        arguments=("num_engines", "tensor_parallel_size", "pretrain", "seed", "full_determinism")
        + ("enable_prefix_caching", "enforce_eager", "max_model_len", "gpu_memory_utilization", "logprobs_mode")
        + ("agent_func_path", "remote_rm_url", "max_images_per_prompt"),
    ),
    Theirs("openrlhf.trainer.ppo_trainer", "prepare_datasets", arguments=("strategy", "tokenizer")),
    Theirs("openrlhf.utils.utils", "get_tokenizer", arguments=("pretrain", "model", "padding_side", "use_fast")),
    Theirs(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator._generate_vllm",
        arguments=("dataloader_iter", "num_prompts", "dynamic_filtering"),
    ),
    # How Ray's actor classes are taken apart and made (replacing.py), and by which names it knows ours (deaths.py).
    Theirs("ray.actor", "ActorClass", mentions=("__ray_metadata__", "_default_options", "__ray_actor_class__")),
    Theirs("ray.actor", "_modify_class", arguments=("cls",), mentions=("__ray_actor_class__",)),
    Theirs("ray._private.state", "actors", arguments=("job_id", "actor_state_name")),
    # Which calls of a job have not ended (waiting.py).
    Theirs("ray._private.gcs_utils", "create_gcs_channel", arguments=("address",)),
    Theirs("ray.core.generated.gcs_service_pb2_grpc", "TaskInfoGcsServiceStub", mentions=("GetTaskEvents",)),
)

OPENRLHF = (
    # ── samples become experiences ──
    Substitution(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_stare.rollout.samples_generator.StareSamplesGenerator",
        "one response without a reward ends the job or an evaluation, a rollout that the ranks cannot share evenly "
        "hangs it, evaluation samples with the training's top-p, and the end token is forbidden in the first place",
        "trainer, sampler",
        relies_on=(
            EXPERIENCE,
            Theirs(
                "openrlhf.trainer.ppo_utils.samples_generator",
                "SamplesGenerator._process_response_into_experience",
                arguments=("response",),
                mentions=("reward", "scores", "extra_logs"),
            ),
            Theirs(
                "openrlhf.trainer.ppo_utils.samples_generator",
                "SamplesGenerator.generate_samples",
                mentions=("_dataloader_iter", "_sample_buffer", "prompts_dataloader", "_generate_vllm"),
            ),
            Theirs("openrlhf.trainer.ppo_utils.samples_generator", "SamplesGenerator.generate_eval_samples"),
            Theirs(
                "openrlhf.trainer.ppo_utils.samples_generator",
                "SamplesGenerator._dispatch_prompts_to_vllm",
                mentions=("top_p", "n_samples_per_prompt", "min_new_tokens"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "StatefulDataLoader",
        "openrlhf_stare.rollout.prompt_loader.PromptLoader",
        "a resume with other prompts goes on in silence, one with too few ends with a StopIteration, and one with "
        "responses in store leaves out their prompts",
        "trainer, sampler",
        relies_on=(
            Theirs("openrlhf.trainer.ppo_trainer", "prepare_datasets", mentions=("setup_dataloader", "PromptDataset")),
            Theirs("openrlhf.datasets.prompts_dataset", "PromptDataset.__init__", mentions=("prompts",)),
            Theirs(
                "torchdata.stateful_dataloader.stateful_dataloader",
                "_StatefulSingleProcessDataLoaderIter",
                mentions=("_num_yielded",),
            ),
            Theirs(
                "torchdata.stateful_dataloader.stateful_dataloader",
                "_StatefulMultiProcessingDataLoaderIter",
                mentions=("_snapshot", "_main_snapshot", "_snapshot_step", "_num_workers"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.utils.agent",
        "SingleTurnAgentExecutor._fetch_rewards_via_func",
        "openrlhf_stare.rollout.reward_answers.telling_fetch",
        "a reward function fails on every response and nobody is told, and a plain number is no reward",
        "engines",
        relies_on=(
            Theirs(
                "openrlhf.utils.agent",
                "SingleTurnAgentExecutor._fetch_rewards_via_func",
                arguments=("queries_list", "prompts_list", "labels_list"),
            ),
            Theirs("openrlhf.utils.agent", "SingleTurnAgentExecutor.__init__", mentions=("reward_endpoints",)),
            Theirs("openrlhf.utils.agent", "SingleTurnAgentExecutor.execute", mentions=("rewards", "scores")),
        ),
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.agent",
        "SingleTurnAgentExecutor._fetch_rewards_via_http",
        "openrlhf_stare.rollout.reward_answers.telling_fetch",
        "a reward server answers nothing, or no reward, and nobody is told",
        "engines",
        relies_on=(
            Theirs(
                "openrlhf.utils.agent",
                "SingleTurnAgentExecutor._fetch_rewards_via_http",
                arguments=("queries_list", "prompts_list", "labels_list"),
            ),
        ),
        wraps=True,
    ),
    Substitution(
        "openrlhf.trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "openrlhf_stare.rollout.experience_maker.StareExperienceMaker",
        "one NaN reward makes every parameter NaN, groups of equal rewards have advantages of rounding, "
        "and there is no SR-GRPO",
        "trainer",
        relies_on=(
            EXPERIENCE,
            Theirs(
                "openrlhf.trainer.ppo_utils.experience_maker",
                "RemoteExperienceMaker",
                mentions=("advantage_estimator", "strategy", "kl_ctl"),
            ),
            Theirs(
                "openrlhf.trainer.ppo_utils.experience_maker",
                "RemoteExperienceMaker.compute_advantages_and_returns",
                arguments=("experiences",),
                mentions=("n_samples_per_prompt", "group_reward_std", "return", "clip_range", "compute_reward"),
            ),
            Theirs(
                "openrlhf.trainer.ppo_utils.length_penalty",
                "apply_length_penalties",
                arguments=("experiences", "args"),
                mentions=("overlong_buffer_len", "stop_properly_penalty_coef"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ppo_utils.experience_maker",
        "compute_reward",
        "openrlhf_stare.rollout.experience_maker.ShapedRewards.compute_reward",
        "nothing can take the place of a response's shaped reward, which OpenRLHF makes in the middle of a method",
        "trainer",
        during="compute_advantages_and_returns",
        relies_on=(
            Theirs("openrlhf.models.utils", "compute_reward", arguments=("r", "kl_coef", "kl", "action_mask")),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ppo_trainer",
        "PPOTrainer",
        "openrlhf_stare.rollout.trainer.PPOTrainer",
        "the ranks do not know the step that is logged for a rollout, which the token record needs; the rollouts of "
        "--critic.freezing_steps are trained on afterwards, all at once; where it does not see the checkpoint it "
        "starts anew; a resume forgets an adapted KL coefficient and overrules --ckpt.best_metric_key",
        "trainer",
        relies_on=(
            Theirs("openrlhf.trainer.ppo_trainer", "PPOTrainer.__init__", arguments=("pretrain", "strategy")),
            Theirs(
                "openrlhf.trainer.ppo_trainer",
                "BasePPOTrainer.restore_best_checkpoint_state",
                arguments=("checkpoint_states",),
                mentions=("best_eval_metric_key", "best_eval_metric_value", "_latest_eval_metric_value"),
            ),
            Theirs(
                "openrlhf.trainer.ppo_trainer",
                "BasePPOTrainer.save_logs_and_checkpoints",
                arguments=("global_step", "logs_dict", "client_states"),
            ),
            Theirs(
                "openrlhf.trainer.ppo_trainer",
                "BasePPOTrainer.save_best_checkpoint",
                arguments=("eval_metrics", "global_step", "client_states"),
            ),
            Theirs("openrlhf.trainer.ppo_utils.kl_controller", "AdaptiveKLController", mentions=("value",)),
            Theirs(
                "openrlhf.trainer.ppo_trainer",
                "BasePPOTrainer.ppo_train",
                arguments=("global_steps",),
                mentions=("actor_model_group", "async_run_method"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ppo_trainer_async",
        "TrainingActor",
        "openrlhf_stare.rollout.async_trainer.TrainingActor",
        "the same under --train.async_enable",
        "trainer",
        relies_on=(
            Theirs("openrlhf.trainer.ppo_trainer_async", "TrainingActor.__init__", arguments=("pretrain", "strategy")),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ppo_trainer",
        "balance_experiences",
        "openrlhf_stare.tpo.whole_groups.balance_experiences",
        "under TPO with dynamic batches the responses of a prompt end up on different ranks",
        "trainer",
        relies_on=(
            EXPERIENCE,
            SPLIT,
            BATCH,
            Theirs("openrlhf.trainer.ppo_utils.experience", "balance_experiences", arguments=("experiences", "args")),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_stare.rollout.engine.StareRolloutActor",
        "of an engine that does not start the job says only that the cause is in another process's log; dynamic "
        "filtering counts a response without a reward as a wrong one; an agent that calls sys.exit hangs the job",
        "engines",
        relies_on=(
            Theirs(
                "openrlhf.trainer.ray.vllm_engine",
                "RolloutRayActor.generate_responses",
                mentions=("executor", "execute"),
            ),
        ),
    ),
    Substitution(
        "ray._private.services",
        "resolve_ip_for_localhost",
        "openrlhf_stare.driver.cluster.as_it_is",
        "a Ray that a job starts for itself takes connections from the network",
        "driver",
        during="ray.init",
    ),
    Substitution(
        "ray._private.utils",
        "set_sigterm_handler",
        "openrlhf_stare.driver.signals.keep_listening",
        "SIGTERM ends a job whose Ray is starting with another status and without a sentence",
        "driver",
        during="ray.init",
    ),
    Substitution(
        "openrlhf.trainer.ray.launcher",
        "BaseDistributedActor._get_free_port",
        "openrlhf_stare.rollout.ports.held_port",
        "another connection may take the port of a model's ranks before they listen (EADDRINUSE)",
        "actor, critic, reference and reward ranks",
    ),
    # ── the policy actor ──
    Substitution(
        "openrlhf.trainer.ray.ppo_actor",
        "PolicyModelActor",
        "openrlhf_stare.actor_group.policy_actor.StarePolicyActor",
        "no entropy is measured and no method acts",
        "driver, actor ranks",
        relies_on=(
            ACTOR_FORWARD,
            REPLAY_BUFFER,
            Theirs(
                "openrlhf.trainer.ray.ppo_actor",
                "PolicyModelActor.init_model_from_pretrained",
                arguments=("strategy", "pretrain", "max_steps", "vllm_engines"),
                mentions=("trainer", "checkpoint_states", "tokenizer", "actor_optim", "actor_scheduler"),
            ),
            Theirs("openrlhf.trainer.ray.ppo_actor", "PolicyModelActor.forward"),
            Theirs("openrlhf.trainer.ray.ppo_actor", "PolicyModelActor.fit", arguments=("kl_ctl",)),
            Theirs(
                "openrlhf.trainer.ray.ppo_actor",
                "PolicyModelActor.save_checkpoint",
                arguments=("tag", "client_states", "metric_value", "metric_key"),
            ),
            Theirs("openrlhf.trainer.ray.ppo_actor", "PolicyModelActor.get_checkpoint_states"),
            Theirs("openrlhf.trainer.ray.ppo_actor", "PolicyModelActor.save_model"),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_stare.actor_group.policy_trainer.PolicyTrainer",
        "no method acts on the loss, there is no TPO, and one micro-batch without a token spoils the figures of its "
        "step, an optimizer step without any the parameters",
        "actor ranks",
        during="init_model_from_pretrained",
        relies_on=(
            TRAINING_STEP,
            LOSS_COUNTS,
            REPLAY_BUFFER,
            BATCH,
            Theirs(
                "openrlhf.trainer.ray.ppo_actor",
                "ActorPPOTrainer.__init__",
                arguments=("strategy", "actor"),
                mentions=("actor_loss_fn", "micro_train_batch_size", "replay_buffer"),
            ),
            Theirs("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer.ppo_train", arguments=("kl_ctl",)),
            Theirs(
                "openrlhf.models.loss",
                "PolicyLoss.forward",
                arguments=("log_probs", "old_log_probs", "advantages", "action_mask"),
            ),
            Theirs("openrlhf.models.loss", "PolicyLoss", mentions=("clip_eps_low", "clip_eps_high")),
            Theirs("openrlhf.utils.vlm_utils", "merge_mm_train_inputs", arguments=("mm_train_inputs_list", "device")),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.ppo_actor",
        "DataLoader",
        "openrlhf_stare.actor_group.target_trainer.TargetTrainer._data_loader",
        "TPO's micro-batches would not be whole groups",
        "actor ranks",
        during="ppo_train",
    ),
    Substitution(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer.args.actor.entropy_coef",
        "openrlhf_stare.methods.base.Method.entropy_coefficient",
        "no method can set the coefficient of the entropy bonus",
        "actor ranks",
        during="fit",
        relies_on=(TRAINING_STEP,),
        of_instance=True,
    ),
    Substitution(
        "openrlhf.models.actor",
        "compute_entropy",
        "openrlhf_stare.actor_group.entropy_meter.EntropyMeter._timed_entropy",
        "the entropy needs a second tensor as large as the logits",
        "actor ranks",
        during="the log-prob pass, and training where its gradient is not needed",
        relies_on=(ACTOR_FORWARD,),
    ),
    # ── the critic ──
    Substitution(
        "openrlhf.trainer.ray.ppo_critic",
        "CriticModelActor",
        "openrlhf_stare.actor_group.critic.StareCriticActor",
        "a critic that is not finite is saved, and every resumed job goes on from it",
        "driver, critic ranks",
        relies_on=(
            Theirs(
                "openrlhf.trainer.ray.ppo_critic",
                "CriticModelActor.init_model_from_pretrained",
                arguments=("strategy", "pretrain", "max_steps"),
                mentions=("critic_optim", "critic_scheduler"),
            ),
            Theirs(
                "openrlhf.trainer.ray.ppo_critic",
                "CriticModelActor.save_checkpoint",
                arguments=("tag", "metric_value", "metric_key"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.ppo_critic",
        "CriticPPOTrainer",
        "openrlhf_stare.actor_group.critic.CriticTrainer",
        "an optimizer step without a token makes the critic NaN, and a micro-batch without one its figures",
        "critic ranks",
        relies_on=(
            LOSS_COUNTS,
            Theirs(
                "openrlhf.trainer.ray.ppo_critic",
                "CriticPPOTrainer.training_step",
                arguments=("experience", "step", "loss_batch_info"),
                mentions=("action_mask", "values"),
            ),
        ),
    ),
    # ── a head without logits ──
    Substitution(
        "openrlhf.trainer.ray.ppo_actor",
        "Actor",
        "openrlhf_stare.actor_group.fused_head.FusedHeadActor",
        "--actor.fused_head has no effect on the policy",
        "actor ranks",
        during="init_model_from_pretrained",
        relies_on=(
            Theirs(
                "openrlhf.models.actor",
                "Actor.forward",
                arguments=("sequences", "action_mask", "attention_mask", "ring_attn_group", "return_logprobs"),
                mentions=("logits", "temperature", "rolled_sequences", "packing_samples", "unpad_and_slice_tensor"),
            ),
            Theirs(
                "openrlhf.models.ring_attn_utils",
                "get_tensor_in_current_ring_attn_rank",
                arguments=("tensors", "ring_attn_group", "pad_id"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.launcher",
        "ReferenceModelActor",
        "openrlhf_stare.actor_group.reference.StareReferenceActor",
        "--actor.fused_head has no effect on the reference model",
        "driver, reference ranks",
        relies_on=(
            Theirs(
                "openrlhf.trainer.ray.launcher",
                "ReferenceModelActor.init_model_from_pretrained",
                arguments=("strategy", "pretrain"),
            ),
        ),
    ),
    Substitution(
        "openrlhf.trainer.ray.launcher",
        "Actor",
        "openrlhf_stare.actor_group.fused_head.FusedHeadActor",
        "--actor.fused_head has no effect on the reference model",
        "reference ranks",
        during="init_model_from_pretrained",
    ),
    Substitution(
        "openrlhf.models.actor",
        "log_probs_from_logits",
        "openrlhf_stare.actor_group.fused_head.FusedHeadActor._picked",
        "OpenRLHF takes the head's log-probs and entropies for logits",
        "actor and reference ranks",
        during="every pass under --actor.fused_head",
        relies_on=(ACTOR_FORWARD,),
    ),
    Substitution(
        "openrlhf.models.actor",
        "compute_entropy",
        "openrlhf_stare.actor_group.fused_head.FusedHeadActor._picked",
        "OpenRLHF takes the head's log-probs and entropies for logits",
        "actor and reference ranks",
        during="every pass under --actor.fused_head",
        relies_on=(ACTOR_FORWARD,),
    ),
    Substitution(
        "torch.nn",
        "Linear.forward",
        "openrlhf_stare.actor_group.fused_head.Pass.of",
        "a model's head returns logits",
        "actor and reference ranks",
        during="every pass under --actor.fused_head",
        of_instance=True,
    ),
    *(
        Substitution(
            "transformers",
            f"PreTrainedModel.{name}",
            "openrlhf_stare.actor_group.fused_head.FusedHeadActor._unchanged",
            f"the model {does} the head's log-probs and entropies as if they were logits",
            "actor and reference ranks",
            during="every pass under --actor.fused_head",
            of_instance=True,
        )
        for name, does in (
            ("config.final_logit_softcapping", "caps"),
            ("config.logits_scaling", "divides"),
            ("logit_scale", "multiplies"),
        )
    ),
    # ── the driver ──
    Substitution(
        "ray",
        "init",
        "openrlhf_stare.driver.cluster.start",
        "the job's processes do not install this table, and a cluster that is too small is waited for in silence",
        "driver",
        during="train",
        relies_on=(Theirs("openrlhf.cli.train_ppo_ray", "train", arguments=("args",), mentions=("init",)),),
    ),
    # ── checkpoints ──
    Substitution(
        "openrlhf.utils.deepspeed",  # where `get_strategy` looks
        "DeepspeedStrategy",
        "openrlhf_stare.actor_group.strategy.CheckpointedStrategy",
        "the newest checkpoint can be deleted first, a damaged one is loaded, and half a model looks like a whole one",
        "driver, which makes the strategy that goes to every actor",
        relies_on=(
            Theirs(
                "openrlhf.utils.deepspeed.deepspeed",
                "DeepspeedStrategy.save_ckpt",
                arguments=("model", "save_dir", "tag", "max_num", "max_mem", "client_state")
                + ("metric_value", "metric_key"),
            ),
            Theirs(
                "openrlhf.utils.deepspeed.deepspeed",
                "DeepspeedStrategy.load_ckpt",
                arguments=("model", "load_dir", "tag"),
            ),
            Theirs(
                "openrlhf.utils.deepspeed.deepspeed",
                "DeepspeedStrategy.save_model",
                arguments=("model", "tokenizer", "output_dir"),
            ),
            Theirs("openrlhf.utils.deepspeed.deepspeed", "DeepspeedStrategy._read_ckpt_metric"),
            Theirs(
                "openrlhf.utils.deepspeed.deepspeed",
                "DeepspeedStrategy._write_ckpt_metric",
                arguments=("ckpt_dir", "metric_value", "metric_key"),
            ),
            Theirs("openrlhf.utils.utils", "get_strategy", arguments=("args",), mentions=("DeepspeedStrategy",)),
        ),
    ),
    Substitution(
        "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine",
        "TorchCheckpointEngine.save",
        "openrlhf_stare.actor_group.strategy._noted",
        "nobody knows which files a rank has written, and whether all of them are there",
        "actor and critic ranks",
        during="save_ckpt",
        relies_on=(
            Theirs(
                "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine",
                "TorchCheckpointEngine.save",
                arguments=("state_dict", "path"),
            ),
        ),
        of_instance=True,
    ),
)

CPU = (
    Substitution(
        "torch.cuda",
        "current_device",
        "openrlhf_stare.cpu.patches.current_device",
        "a CPU build of torch raises where OpenRLHF asks for the device",
        "every process",
        missing=GPU,
    ),
    Substitution(
        "torch.cuda",
        "set_device",
        "openrlhf_stare.cpu.patches.set_device",
        "a CPU build of torch raises where OpenRLHF sets the device",
        "every process",
        missing=GPU,
    ),
    Substitution(
        "torch.cuda",
        "synchronize",
        "openrlhf_stare.cpu.patches.synchronize",
        "a CPU build of torch raises where OpenRLHF waits for the device",
        "every process",
        missing=GPU,
    ),
    Substitution(
        "torch.cuda",
        "current_stream",
        "openrlhf_stare.cpu.patches.current_stream",
        "a CPU build of torch raises where OpenRLHF sends weights",
        "actor ranks",
        missing=GPU,
    ),
    Substitution(
        "deepspeed.comm.torch",
        "build_shm_op",
        "openrlhf_stare.cpu.patches.build_no_extension",
        "DeepSpeed compiles a C++ extension for collectives, which needs a compiler",
        "actor, critic, reference and reward ranks",
        missing=GPU,
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "init_device_mesh",
        "openrlhf_stare.cpu.patches.mesh_of_cpus",
        "OpenRLHF asks for a mesh of cuda devices",
        "actor, critic, reference and reward ranks",
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.moving_average",
        "openrlhf_stare.cpu.patches.moving_average_on_cpu",
        "OpenRLHF averages the weights on cuda",
        "actor ranks",
        relies_on=(
            Theirs(
                "openrlhf.utils.deepspeed.deepspeed",
                "DeepspeedStrategy.moving_average",
                arguments=("model", "model_ema", "beta", "device"),
            ),
        ),
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.utils",
        "convert_to_torch_dtype",
        "openrlhf_stare.cpu.patches.type_named_fp32",
        "models compute in bfloat16, in which a CPU without units for it is many times slower than in float32",
        "actor, critic, reference and reward ranks",
        relies_on=(Theirs("openrlhf.utils.utils", "convert_to_torch_dtype", arguments=("param_dtype",)),),
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.setup_distributed",
        "openrlhf_stare.cpu.patches.with_threads_of_a_rank",
        "a rank computes with one thread, however many cores there are and however large the model",
        "actor, critic, reference and reward ranks",
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "get_train_ds_config",
        "openrlhf_stare.cpu.patches.config_on_cpu",
        "ZeRO-3 reads parameters before they have arrived over gloo, and DeepSpeed's Adam needs a compiler",
        "actor and critic ranks",
        relies_on=(
            Theirs("openrlhf.utils.deepspeed.deepspeed_utils", "get_train_ds_config", mentions=("zero_optimization",)),
        ),
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "get_eval_ds_config",
        "openrlhf_stare.cpu.patches.config_on_cpu",
        "the same for the models that are not trained",
        "actor, reference and reward ranks",
        relies_on=(
            Theirs("openrlhf.utils.deepspeed.deepspeed_utils", "get_eval_ds_config", mentions=("zero_optimization",)),
        ),
        missing=GPU,
        wraps=True,
    ),
    Substitution(
        "openrlhf.utils.distributed_util",
        "stateless_init_process_group",
        "openrlhf_stare.cpu.patches.GlooGroup",
        "weight sync goes over NCCL, which needs GPUs",
        "actor ranks, vLLM's workers",
        relies_on=(
            Theirs(
                "openrlhf.utils.distributed_util",
                "stateless_init_process_group",
                arguments=("master_address", "master_port", "rank", "world_size", "device"),
            ),
            Theirs("vllm.distributed.utils", "stateless_init_torch_distributed_process_group"),
        ),
        missing=GPU,
    ),
    Substitution(
        "openrlhf.trainer.ray.vllm_worker_wrap",
        "WorkerWrap",
        "openrlhf_stare.cpu.worker_wrap.CpuWorkerWrap",
        "vLLM's worker receives weights on cuda, and nobody can ask whether it repacked them",
        "vLLM's workers",
        relies_on=(
            Theirs(
                "openrlhf.trainer.ray.vllm_worker_wrap",
                "WorkerWrap.update_weight",
                arguments=("name", "dtype", "shape", "empty_cache"),
                mentions=("_model_update_group", "model_config", "model_runner", "load_weights"),
            ),
        ),
        missing=GPU,
    ),
    Substitution(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_stare.cpu.engine.CpuRolloutActor",
        "vLLM only logs a plugin that fails or is filtered, and the engine samples from a stale policy; and it has "
        "its weights in bfloat16 only",
        "engines",
        relies_on=(Theirs("openrlhf.trainer.ray.vllm_engine", "RolloutRayActor", mentions=("llm", "collective_rpc")),),
        missing=GPU,
    ),
    Substitution(
        "vllm.model_executor.layers.utils",
        "dispatch_cpu_unquantized_gemm",
        "openrlhf_stare.cpu.patches.plain_linear",
        "vLLM repacks weights after loading, after which weight syncs fail, or for lm_head are ignored",
        "vLLM's workers",
        relies_on=(
            Theirs(
                "vllm.model_executor.layers.utils",
                "dispatch_cpu_unquantized_gemm",
                arguments=("layer", "remove_weight"),
                mentions=("cpu_linear",),
            ),
        ),
        missing=GPU,
    ),
    Substitution(
        "vllm.v1.worker.cpu_worker",
        "CPUWorker.determine_available_memory",
        "openrlhf_stare.cpu.patches.what_can_be_used",
        "vLLM writes zeros to all of VLLM_CPU_KVCACHE_SPACE, which takes seconds for a GiB, however little is used",
        "vLLM's workers",
        relies_on=(Theirs("vllm.v1.worker.cpu_worker", "CPUWorker", mentions=("model_runner",)),),
        missing=GPU,
        wraps=True,
    ),
)

# Where flash-attn is not installed, as on every CPU.
NO_FLASH_ATTN = (
    Substitution(
        "openrlhf.models.ring_attn_utils",
        "",
        "openrlhf_stare.without_flash_attn.stand_ins.stand_ins",
        "it imports five names from flash_attn, without which OpenRLHF cannot be imported",
        "every process",
        during="its import",
        missing=FLASH_ATTN,
    ),
)

# On a GPU beside which DeepSpeed cannot compile for it.
NO_COMPILER = (
    Substitution(
        "openrlhf.utils.deepspeed.deepspeed",
        "get_train_ds_config",
        "openrlhf_stare.gpu.adam.fused_torch_adam",
        "DeepSpeed compiles its Adam at the first use, for which there is no compiler",
        "actor and critic ranks",
        relies_on=(
            Theirs("openrlhf.utils.deepspeed.deepspeed_utils", "get_train_ds_config", mentions=("optimizer",)),
            Theirs("deepspeed.runtime.config", "TORCH_ADAM_PARAM"),
        ),
        missing=COMPILER,
        wraps=True,
    ),
    Substitution(
        "deepspeed.runtime.zero.stage3",
        "DeepSpeedZeroOptimizer_Stage3.offload_states",
        "openrlhf_stare.gpu.adam.asleep_too",
        "under --ds.enable_sleep with ZeRO-3 DeepSpeed takes no Adam but its own",
        "actor and critic ranks",
        relies_on=(
            Theirs(
                "deepspeed.runtime.zero.stage3",
                "DeepSpeedZeroOptimizer_Stage3.offload_states",
                mentions=("optimizer", "FusedAdam", "offload_adam_states"),
            ),
            Theirs("deepspeed.runtime.zero.offload_states", "offload_adam_states", mentions=("exp_avg", "exp_avg_sq")),
        ),
        missing=COMPILER,
        wraps=True,
    ),
    Substitution(
        "deepspeed.ops.adam.fused_adam",
        "FusedAdam",
        "openrlhf_stare.gpu.adam.asleep_too",
        "the same",
        "actor and critic ranks",
        during="offload_states",
        missing=COMPILER,
    ),
)

TABLE = (*OPENRLHF, *CPU, *NO_FLASH_ATTN, *NO_COMPILER)
