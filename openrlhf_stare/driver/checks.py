"""What is refused and what is warned of, by the flags alone, before anything starts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from openrlhf_stare import tools
from openrlhf_stare.algorithms.control import EntropyController
from openrlhf_stare.driver.flags import CONFIGS, method_options
from openrlhf_stare.methods import base
from openrlhf_stare.options import UsageError, given
from openrlhf_stare.tpo.checks import refuse_with_tpo

NEED_STEPS = ("kl_cov", "ce_gppo")  # nothing of theirs acts while the policy is the rollout's


def check(args: SimpleNamespace) -> list[str]:
    """Check OpenRLHF's nested arguments as far as they concern us.

    Returns:
        What the user should be warned of, a sentence each.

    Raises:
        UsageError: the arguments cannot work.
    """
    _refuse_what_cannot_work(args)
    return _warnings(args)


def _refuse_what_cannot_work(args: SimpleNamespace) -> None:
    _refuse_options(args)
    if args.algo.advantage.estimator == "sr_grpo":
        _refuse_under_sr_grpo(args)
    if args.policy_loss == "tpo":
        refuse_with_tpo(args)
    if args.eval_top_p is not None and not 0 < args.eval_top_p <= 1:
        raise UsageError(f"--eval_top_p {args.eval_top_p:g} is outside (0, 1]: give a share such as 0.7")
    fewest, most = args.rollout.min_new_tokens, args.rollout.max_new_tokens
    if fewest < 0 or (most is not None and fewest > most):
        within = "0 or more" if most is None else f"between 0 and --rollout.max_new_tokens {most}"
        raise UsageError(f"--rollout.min_new_tokens {fewest} is not {within}: give 0")
    if args.dry_run and not args.preflight:
        raise UsageError("--dry-run goes with --preflight: give both, or leave it out to train")
    if args.wait_for_resources is not None and not args.wait_for_resources >= 0:
        raise UsageError(f"--wait_for_resources {args.wait_for_resources:g} is below 0: give seconds such as 600")
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    # OpenRLHF asserts this too, after it has joined the cluster.
    if args.train.colocate_all and engines not in (0, ranks) and not args.train.async_enable:
        raise UsageError(
            f"--vllm.num_engines {args.vllm.num_engines} with --vllm.tensor_parallel_size "
            f"{args.vllm.tensor_parallel_size} makes {engines} GPUs, but --train.colocate_all has the engines share "
            f"the actor's {ranks}: make them equal"
        )
    _refuse_unequal_colocation(args)
    _refuse_reward_url(args)
    if args.ckpt.max_num < 2 and args.ckpt.save_steps != -1 and not args.ckpt.disable_ds:
        raise UsageError(
            f"--ckpt.max_num {args.ckpt.max_num} would leave no complete checkpoint while the next one is saved: "
            "give at least 2"
        )
    if args.ds.lora.rank > 0:
        raise UsageError(
            f"--ds.lora.rank {args.ds.lora.rank} cannot train with vLLM, since OpenRLHF's weight sync sends PEFT's "
            "parameter names, which vLLM refuses: leave the rank at 0, with any adapter merged into the model before"
        )
    if args.actor.fused_head:
        _refuse_with_fused_head(args)
    if args.ds.param_dtype == "fp16":
        raise UsageError(
            "--ds.param_dtype fp16 cannot train with OpenRLHF's vLLM engines, which hold the weights in bfloat16 and "
            "take them in no other type: give bf16"
        )
    try:
        tools.check(args)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _refuse_options(args: SimpleNamespace) -> None:
    """The options of ours, each by itself, and those of the controller and the method together."""
    method, part = base.chosen(args.policy_loss), base.part_of(args.policy_loss)
    own = args.policy_loss if args.policy_loss.endswith(".py") else None
    for name, config in (CONFIGS | method_options(own)).items():
        known = {field.name for field in dataclasses.fields(config)}  # OpenRLHF has options of an actor, too
        try:
            config(**{option: value for option, value in given(args, name).items() if option in known})
        except ValueError as error:
            raise UsageError(f"--{name}.{error}") from None
    try:
        control = base.entropy_control(method, given(args, "entropy"))
    except ValueError as error:
        raise UsageError(f"--entropy.{error}") from None
    # The entropy is measured under every loss, so this holds for all.
    if control.measure == "sampled" and args.rollout.top_p < 1:
        raise UsageError(
            f"--entropy.measure sampled does not go with --rollout.top_p {args.rollout.top_p:g}, since -log pi of "
            "tokens drawn from a truncated distribution does not estimate the policy's entropy: "
            "use --entropy.measure exact or --rollout.top_p 1"
        )
    if method is None:
        return
    options = method.Options(**given(args, part))
    strengths = method(options).strengths
    try:
        EntropyController(control, strengths)
    except ValueError as error:
        raise UsageError(f"--{'entropy' if str(error).startswith('schedule') else part}.{error}") from None
    for name in given(args, part):
        if control.schedule == "pi" and (
            name in {s.name for s in strengths} or f"{part}.{name}" == "stare.reweight_m"
        ):
            raise UsageError(
                f"--{part}.{name} {given(args, part)[name]:g} is not used by --entropy.schedule pi, which starts from "
                "the neutral value: leave it out"
            )
    if method.needs_entropy and control.measure == "sampled":
        raise UsageError(
            f"--entropy.measure sampled does not go with --policy_loss {args.policy_loss}, which compares the tokens' "
            "entropies: give exact"
        )
    sets_bonus = method.entropy_coefficient is not base.Method.entropy_coefficient
    if sets_bonus and args.actor.entropy_coef is not None:
        raise UsageError(
            f"--actor.entropy_coef {args.actor.entropy_coef:g} does not go with --policy_loss {args.policy_loss}, "
            f"which sets it: give --{part}.coefficient instead"
        )
    if args.policy_loss == "ce_gppo" and args.actor.policy_loss_type == "gspo":
        raise UsageError(
            "--actor.policy_loss_type gspo does not go with --policy_loss ce_gppo, since it clips responses and not "
            "tokens: use ppo"
        )


def _refuse_with_fused_head(args: SimpleNamespace) -> None:
    for flag, is_given, cause in (
        (
            f"--ds.tensor_parallel_size {args.ds.tensor_parallel_size}",
            args.ds.tensor_parallel_size > 1,
            "whose head has the whole vocabulary",
        ),
        ("--ds.load_in_4bit", args.ds.load_in_4bit, "whose head has plain weights"),
        ("--ds.deepcompile", args.ds.deepcompile, "which it does not compile"),
    ):
        if is_given:
            raise UsageError(f"{flag} does not go with --actor.fused_head, {cause}: leave one of the two out")


def _refuse_unequal_colocation(args: SimpleNamespace) -> None:
    """Two models that share GPUs need the same number of them. OpenRLHF asserts it after it has joined the cluster."""
    advantage, train = args.algo.advantage, args.train
    for flag, shared, one, other in (
        ("--train.colocate_all", train.colocate_all and args.algo.kl.init_coef > 0, "actor", "ref"),
        ("--train.colocate_actor_ref", train.colocate_actor_ref and args.algo.kl.init_coef > 0, "actor", "ref"),
        (
            "--train.colocate_critic_reward",
            train.colocate_critic_reward and advantage.estimator == "gae",
            "critic",
            "reward",
        ),
    ):
        for size in ("num_nodes", "num_gpus_per_node"):
            first, second = getattr(getattr(args, one), size), getattr(getattr(args, other), size)
            if shared and first != second:
                raise UsageError(
                    f"--{one}.{size} {first} and --{other}.{size} {second} cannot share GPUs under {flag}: make them "
                    "equal"
                )


def _refuse_reward_url(args: SimpleNamespace) -> None:
    """OpenRLHF takes what is not a Python file for addresses, and asks them only after the first rollout."""
    reward, agent = args.reward.remote_url, args.train.agent_func_path
    if not reward or (agent and not tools.is_ours(agent)):  # of the agents only ours asks for a reward
        return
    urls = reward.split(",")
    if urls[0].endswith(".py"):  # the others are ignored
        return
    if not all(url.strip().lower().startswith(("http://", "https://")) for url in urls):
        raise UsageError(
            f"--reward.remote_url {reward} is neither a Python file, which ends in .py, nor one or more addresses, "
            "which start with http:// or https:// and have commas between them: give one or the other"
        )


def _refuse_under_sr_grpo(args: SimpleNamespace) -> None:
    if args.rollout.n_samples_per_prompt == 1:
        raise UsageError(
            "--rollout.n_samples_per_prompt 1 leaves --advantage_estimator sr_grpo nothing to weigh, since it weighs "
            "the responses of a prompt against one another: give at least 2"
        )
    if args.policy_loss == "tpo":
        raise UsageError(
            "--advantage_estimator sr_grpo does not go with --policy_loss tpo, since tpo takes rewards, not "
            "advantages: use --advantage_estimator group_norm, or another --policy_loss"
        )


def _warnings(args: SimpleNamespace) -> list[str]:
    warnings = []
    method = base.chosen(args.policy_loss)
    if method and args.actor.policy_loss_type == "gspo" and args.policy_loss != "entropy_bonus":
        warnings.append(
            f"--actor.policy_loss_type gspo has one ratio per response, so what --policy_loss {args.policy_loss} does "
            "to a token acts only through the mean over its response: use ppo for it to act on that token"
        )
    one_step = args.train.batch_size >= args.rollout.batch_size * args.rollout.n_samples_per_prompt
    if args.policy_loss in NEED_STEPS and one_step and args.train.max_epochs == 1:
        warnings.append(
            f"--policy_loss {args.policy_loss} does nothing in the first optimizer step on a rollout, and with "
            f"--train.batch_size {args.train.batch_size} and --train.max_epochs 1 there is no other: lower the first "
            "or raise the second"
        )
    if args.train.dynamic_batch_enable and args.ds.zero_stage < 3:
        warnings.append(
            f"--train.dynamic_batch_enable with --ds.zero_stage {args.ds.zero_stage} trains on the last micro-batch "
            "of each optimizer step only, under any loss, since OpenRLHF 0.11.2 tells DeepSpeed that every backward "
            "pass ends a step: use --ds.zero_stage 3"
        )
    if args.tool.run_model_code_without_sandbox:
        warnings.append(
            "--tool.run_model_code_without_sandbox lets programs that a model wrote do on the nodes what this user "
            "may do: install bubblewrap and leave the flag out, unless the machines can be thrown away"
        )
    if given(args, "entropy").get("measure") == "sampled" and args.train.async_enable:
        warnings.append(
            "--entropy.measure sampled with --train.async_enable is an off-policy estimate, since the log-probs come "
            "from weights newer than the sampler's: use exact for the entropy of the policy in training"
        )
    return warnings
