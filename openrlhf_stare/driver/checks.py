"""What is refused and what is warned of, by the flags alone, before anything starts."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_stare import dealing, tools
from openrlhf_stare.algorithms.control import EntropyController
from openrlhf_stare.algorithms.groups import GROUP_BASELINES
from openrlhf_stare.driver.flags import CONFIGS, method_options
from openrlhf_stare.driver.look import LookConfig
from openrlhf_stare.methods import base
from openrlhf_stare.options import UsageError, given
from openrlhf_stare.rules import Finding, refuse
from openrlhf_stare.tpo.checks import cannot_go_with_tpo

AT_LEAST_ONE = (
    "actor.num_nodes",
    "actor.num_gpus_per_node",
    "ds.ring_attn_size",
    "ds.tensor_parallel_size",
    "vllm.tensor_parallel_size",
    "rollout.batch_size",
    "rollout.n_samples_per_prompt",
    "rollout.micro_batch_size",
    "data.max_samples",
    "train.batch_size",
    "train.micro_batch_size",
    "train.max_epochs",
    "train.num_episodes",
)
# Numbers of steps, which OpenRLHF divides by after the first one; what to give in the place of 0.
NOT_ZERO = {
    "ckpt.save_steps": "-1 for never",
    "eval.steps": "-1 for never",
    "logger.logging_steps": "1 for every step",
}
ZERO_STAGES = range(4)
WHITENED = ("gae", "reinforce", "reinforce_baseline")  # whose advantages OpenRLHF normalises over the rollout
COLDEST = 0.01  # a temperature below it, other than 0, is this one for vLLM
# Of transformers' schedules those that work in OpenRLHF. It has no flag for the steps that warmup_stable_decay asks
# for, and to reduce_lr_on_plateau and greedy DeepSpeed gives the batch size as the metric to follow.
SCHEDULERS = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)


def check(args: SimpleNamespace) -> list[str]:
    """Check OpenRLHF's nested arguments as far as they concern us.

    Returns:
        What the user should be warned of, a sentence each.

    Raises:
        UsageError: the arguments cannot work.
    """
    refuse(_sizes(args), _sampling(args))
    base.chosen(args.policy_loss)  # a name that is none is refused before its options are asked for
    _check_options(args)
    refuse(
        _of_what_was_not_chosen(args),
        _entropy_and_method(args),
        _sr_grpo(args),
        cannot_go_with_tpo(args),
        _numbers(args),
        _shared_gpus(args),
        _reward_url(args),
        _rewards(args),
        _policy_loss(args),
        _evaluation(args),
        _prompt_probs(args),
        _schedule(args),
        _what_cannot_train(args),
        _fused_head(args),
        tools.cannot_run(args),
    )
    return [str(warning) for rule in (_warnings, _optimizer, _idle_flags) for warning in rule(args)]


def _sizes(args: SimpleNamespace) -> Iterator[Finding]:
    """Numbers without which nothing runs. Rules to come divide by some, and OpenRLHF, in part after a first step."""
    for flag in AT_LEAST_ONE:
        if (value := _value(args, flag)) < 1:
            yield Finding(f"--{flag} {value}", "is below 1", "give 1 or more")
    for flag, remedy in NOT_ZERO.items():
        if _value(args, flag) == 0:
            yield Finding(f"--{flag} 0", "is no number of steps", f"give {remedy}")
    horizon, at_once = args.algo.kl.horizon, args.rollout.vllm_generate_batch_size
    if args.algo.kl.target and horizon < 1:
        yield Finding(
            f"--algo.kl.horizon {horizon}",
            "is below 1, and each change of the coefficient by --algo.kl.target is divided by it",
            "give a number of responses such as 10000",
        )
    if at_once is not None and at_once < 0:  # 0 is none given
        yield Finding(
            f"--rollout.vllm_generate_batch_size {at_once}",
            "is below 0, and no prompt would be sampled",
            "give 1 or more, or leave it out for --rollout.batch_size",
        )
    if args.ds.zero_stage not in ZERO_STAGES:
        yield Finding(f"--ds.zero_stage {args.ds.zero_stage}", "is none of DeepSpeed's stages", "give 0, 1, 2 or 3")


def _sampling(args: SimpleNamespace) -> Iterator[Finding]:
    """What vLLM takes. It refuses other values with the first rollout, when all models are loaded."""
    rollout = args.rollout
    if not 0 < rollout.temperature <= 2:
        yield Finding(
            f"--rollout.temperature {rollout.temperature:g}",
            "is outside (0, 2], since logits are divided by it, and vLLM takes at most 2",
            "give 1 to sample the policy itself",
        )
    if not 0 < rollout.top_p <= 1:
        yield Finding(
            f"--rollout.top_p {rollout.top_p:g}", "is outside (0, 1]", "give 1 to sample from the whole distribution"
        )
    if rollout.max_new_tokens is not None and rollout.max_new_tokens < 1:
        yield Finding(
            f"--rollout.max_new_tokens {rollout.max_new_tokens}",
            "is below 1",
            "give 1 or more, or leave it out for what --data.max_len has room for",
        )


def _value(args: SimpleNamespace, flag: str) -> int:
    part, _, name = flag.partition(".")
    return getattr(getattr(args, part), name)


def _check_options(args: SimpleNamespace) -> None:
    """The options of ours, each by itself and those of a part together, as their dataclasses check them."""
    for part, config in (CONFIGS | method_options(base.own_files(args.policy_loss))).items():
        try:
            known = {field.name for field in dataclasses.fields(config)}  # OpenRLHF has options of an actor, too
            config(**{option: value for option, value in given(args, part).items() if option in known})
        except ValueError as error:
            raise UsageError(f"--{part}.{error}") from None
    try:
        base.control_of(args)
    except ValueError as error:
        raise UsageError(f"--entropy.{error}") from None


def _of_what_was_not_chosen(args: SimpleNamespace) -> Iterator[Finding]:
    """Options of another method or estimator, and of the controller where there is no method to control."""
    chosen_methods = base.name_of(args.policy_loss).split("+")
    for part in sorted(method_options(base.own_files(args.policy_loss)).keys() - chosen_methods):
        for name in given(args, part):
            yield _not_used(args, part, name, f"--policy_loss {part}")
    chosen = {"tpo": args.policy_loss, "sr_grpo": args.algo.advantage.estimator}
    for part, chooser in (("tpo", "--policy_loss tpo"), ("sr_grpo", "--advantage_estimator sr_grpo")):
        for field in dataclasses.fields(CONFIGS[part]):
            if chosen[part] != part and given(args, part)[field.name] != field.default:
                yield _not_used(args, part, field.name, chooser)
    if base.chosen(args.policy_loss) is None:
        for name in ("schedule", "step", "k_p", "k_i"):
            if given(args, "entropy").get(name, "open") != "open":
                yield _not_used(args, "entropy", name, "a method's --policy_loss")


def _not_used(args: SimpleNamespace, part: str, name: str, chooser: str) -> Finding:
    return Finding(
        f"--{part}.{name} {given(args, part)[name]}",
        f"goes with {chooser}, and this job has --policy_loss {args.policy_loss} and --advantage_estimator "
        f"{args.algo.advantage.estimator}",
        "leave it out",
    )


def _entropy_and_method(args: SimpleNamespace) -> Iterator[Finding]:
    """The controller and the method together."""
    method, control = base.make(args), base.control_of(args)
    # The entropy is measured under every loss, so this holds for all.
    if control.measure == "sampled" and args.rollout.top_p < 1:
        yield Finding(
            "--entropy.measure sampled",
            f"does not go with --rollout.top_p {args.rollout.top_p:g}, since -log pi of tokens drawn from a truncated "
            "distribution does not estimate the policy's entropy",
            "use --entropy.measure exact or --rollout.top_p 1",
        )
    if method is None:
        return
    yield from method.cannot_go_with(args)
    try:
        EntropyController(control, method.strengths)
    except ValueError as error:
        of_control = str(error).startswith(("schedule ", "sides "))
        flag = f"entropy.{error}" if of_control else method.figure(str(error)).replace("/", ".", 1)
        raise UsageError(f"--{flag}") from None
    for name, schedule in (("k_p", "pi"), ("k_i", "pi"), ("step", "adaptive")):
        if name in given(args, "entropy") and control.schedule != schedule:
            yield Finding(
                f"--entropy.{name} {given(args, 'entropy')[name]:g}",
                f"goes with --entropy.schedule {schedule}, and this job has {control.schedule}",
                "give that, or leave it out",
            )
    for part in method.parts if control.schedule == "pi" else ():
        for name in sorted(given(args, part.name).keys() & {strength.name for strength in part.strengths}):
            yield Finding(
                f"--{part.name}.{name} {given(args, part.name)[name]:g}",
                "is not used by --entropy.schedule pi, which starts from the neutral value",
                "leave it out",
            )
    if method.needs_entropy and control.measure == "sampled":
        yield Finding(
            "--entropy.measure sampled",
            f"does not go with --policy_loss {args.policy_loss}, which compares the tokens' entropies",
            "give exact",
        )


def _fused_head(args: SimpleNamespace) -> Iterator[Finding]:
    if not args.actor.fused_head:
        return
    for flag, is_given, cause in (
        (
            f"--ds.tensor_parallel_size {args.ds.tensor_parallel_size}",
            args.ds.tensor_parallel_size > 1,
            "whose head has the whole vocabulary",
        ),
        ("--ds.deepcompile", args.ds.deepcompile, "which it does not compile"),
    ):
        if is_given:
            yield Finding(flag, f"does not go with --actor.fused_head, {cause}", "leave one of the two out")


def _sr_grpo(args: SimpleNamespace) -> Iterator[Finding]:
    if args.algo.advantage.estimator != "sr_grpo":
        return
    if args.rollout.n_samples_per_prompt == 1:
        yield Finding(
            "--rollout.n_samples_per_prompt 1",
            "leaves --advantage_estimator sr_grpo nothing to weigh, since it weighs the responses of a prompt against "
            "one another",
            "give at least 2",
        )
    if args.policy_loss == "tpo":
        yield Finding(
            "--advantage_estimator sr_grpo",
            "does not go with --policy_loss tpo, since tpo takes rewards, not advantages",
            "use --advantage_estimator group_norm, or another --policy_loss",
        )


def _numbers(args: SimpleNamespace) -> Iterator[Finding]:
    """The flags of the command itself."""
    if args.eval_top_p is not None and not 0 < args.eval_top_p <= 1:
        yield Finding(f"--eval_top_p {args.eval_top_p:g}", "is outside (0, 1]", "give a share such as 0.7")
    fewest, most = args.rollout.min_new_tokens, args.rollout.max_new_tokens
    if fewest < 0 or (most is not None and fewest > most):
        within = "0 or more" if most is None else f"between 0 and --rollout.max_new_tokens {most}"
        yield Finding(f"--rollout.min_new_tokens {fewest}", f"is not {within}", "give 0")
    if most is not None and most > args.data.max_len:
        yield Finding(
            f"--rollout.max_new_tokens {most}",
            f"is more than --data.max_len {args.data.max_len}, which is for prompt and answer, so that OpenRLHF would "
            "cut the prompts' beginnings off",
            "lower it, or raise --data.max_len",
        )
    if args.dry_run and not args.preflight:
        yield Finding("--dry-run", "goes with --preflight", "give both, or leave it out to train")
    if args.look.on and args.preflight:
        yield Finding("--look", "samples, and --preflight does not", "give one of the two")
    for field in dataclasses.fields(LookConfig):
        if not args.look.on and (value := getattr(args.look, field.name)) != field.default:
            yield Finding(f"--look.{field.name} {value}", "goes with --look", "give both, or leave it out")
    if args.wait_for_resources is not None and not args.wait_for_resources >= 0:
        yield Finding(f"--wait_for_resources {args.wait_for_resources:g}", "is below 0", "give seconds such as 600")


def _shared_gpus(args: SimpleNamespace) -> Iterator[Finding]:
    """What shares GPUs needs the same number of them. OpenRLHF asserts it after it has joined the cluster."""
    train, has_reference = args.train, args.algo.kl.init_coef > 0
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    if train.colocate_all and 0 < engines != ranks and not train.async_enable:
        yield Finding(
            f"--vllm.num_engines {args.vllm.num_engines} with --vllm.tensor_parallel_size "
            f"{args.vllm.tensor_parallel_size}",
            f"makes {engines} GPUs, but --train.colocate_all has the engines share the actor's {ranks}",
            "make them equal",
        )
    pairs_have_critic = train.colocate_critic_reward and args.algo.advantage.estimator == "gae"
    for flag, shared, one, other in (
        ("--train.colocate_all", train.colocate_all and has_reference, "actor", "ref"),
        ("--train.colocate_actor_ref", train.colocate_actor_ref and has_reference, "actor", "ref"),
        ("--train.colocate_critic_reward", pairs_have_critic, "critic", "reward"),
    ):
        for size in ("num_nodes", "num_gpus_per_node"):
            first, second = getattr(getattr(args, one), size), getattr(getattr(args, other), size)
            if shared and first != second:
                yield Finding(
                    f"--{one}.{size} {first} and --{other}.{size} {second}",
                    f"cannot share GPUs under {flag}",
                    "make them equal",
                )


def _reward_url(args: SimpleNamespace) -> Iterator[Finding]:
    """OpenRLHF takes what is not a Python file for addresses, and asks them only after the first rollout."""
    reward, agent = args.reward.remote_url, args.train.agent_func_path
    if not reward or (agent and not tools.is_ours(agent)):  # of the agents only ours asks for a reward
        return
    urls = reward.split(",")
    if urls[0].endswith(".py"):
        if any(url.strip() for url in urls[1:]):
            yield Finding(
                f"--reward.remote_url {reward}",
                "has something behind a Python file, and OpenRLHF calls the reward_func of that file alone",
                "give one file, and let it call what else is to score",
            )
        return
    if not all(url.strip().lower().startswith(("http://", "https://")) for url in urls):
        yield Finding(
            f"--reward.remote_url {reward}",
            "is neither a Python file, which ends in .py, nor one or more addresses, which start with http:// or "
            "https:// and have commas between them",
            "give one or the other",
        )


def _rewards(args: SimpleNamespace) -> Iterator[Finding]:
    """OpenRLHF's penalties for long responses, whose values it asserts after the first rollout."""
    buffer, coefficient = args.reward.overlong_buffer_len, args.reward.stop_properly_penalty_coef
    flag, limit = "--rollout.max_new_tokens", args.rollout.max_new_tokens
    if limit is None:
        flag, limit = "--data.max_len", args.data.max_len
    if buffer is not None and not buffer <= limit:
        yield Finding(
            f"--reward.overlong_buffer_len {buffer:g}",
            f"is more than {flag} {limit}, of which it is the last part",
            "lower it",
        )
    if coefficient is not None and not coefficient <= 1:
        yield Finding(
            f"--reward.stop_properly_penalty_coef {coefficient:g}",
            "is above 1, and the reward of a response that was cut off is multiplied by it",
            "give one from 0 to 1, or one below 0 to be that reward",
        )
    lowest, highest = args.reward.clip_range
    if not lowest < highest:
        yield Finding(
            f"--reward.clip_range {lowest:g} {highest:g}",
            "would give every response the same reward",
            "give the lowest before the highest",
        )


def _policy_loss(args: SimpleNamespace) -> Iterator[Finding]:
    """What OpenRLHF's loss asserts of its own flags, once the models are loaded, and bounds that leave nothing."""
    clip, of_advantage = args.actor.dual_clip, args.algo.advantage
    level, gating = of_advantage.is_correction_level, of_advantage.is_correction_gating
    if clip is not None and not clip > 1:
        yield Finding(
            f"--actor.dual_clip {clip:g}",
            "is not above 1, and the ratio of a token of a bad response is bounded by it",
            "give one such as 3, or leave it out",
        )
    if of_advantage.is_correction_mode == "clip" and (level == "seq" or gating != "ratio"):
        yield Finding(
            "--algo.advantage.is_correction_mode clip",
            "clips the ratio of a token, and does not go with --algo.advantage.is_correction_level "
            f"{level} and --algo.advantage.is_correction_gating {gating}",
            "give mask",
        )
    *lowest, highest = of_advantage.is_correction_threshold
    bounds = f"--algo.advantage.is_correction_threshold {' '.join(f'{bound:g}' for bound in (*lowest, highest))}"
    if level != "off" and gating != "ratio" and max(lowest, default=0) > 0:
        yield Finding(
            bounds,
            f"has a lower bound, and --algo.advantage.is_correction_gating {gating}, which is small where the engine "
            "has the policy's weights, takes an upper one alone",
            "give that one number",
        )
    if level != "off" and max(lowest, default=0) > highest:
        yield Finding(bounds, "has its lower bound above the upper one, and would keep no token", "swap the two")


def _evaluates(args: SimpleNamespace) -> bool:
    return bool(args.eval.dataset) and args.eval.steps != -1


def _evaluation(args: SimpleNamespace) -> Iterator[Finding]:
    """What an evaluation cannot sample with, and what it cannot give."""
    samples, key = args.eval.n_samples_per_prompt, args.ckpt.best_metric_key
    if key not in ("", "none") and not _evaluates(args):
        yield Finding(
            f"--ckpt.best_metric_key {key}",
            "is of an evaluation, and this job has none",
            "give --eval.dataset and --eval.steps, or leave it out",
        )
    if not _evaluates(args):
        return
    if not 0 <= args.eval.temperature <= 2:
        yield Finding(
            f"--eval.temperature {args.eval.temperature:g}",
            "is outside [0, 2], which is what vLLM takes",
            "give one inside it, such as 0.6",
        )
    if samples < 1:
        yield Finding(f"--eval.n_samples_per_prompt {samples}", "is below 1", "give 1 or more")
    of_a_set = rf"eval_.*_(pass1|pass{samples}|response_length_mean|truncated_rate)"
    of_all = "eval_(response_length_mean|truncated_rate|num_samples)"
    if key not in ("", "none") and not re.fullmatch(f"{of_a_set}|{of_all}", key, re.DOTALL):
        yield Finding(
            f"--ckpt.best_metric_key {key}",
            "is no figure of an evaluation, so that no best checkpoint would be saved",
            f"give one such as eval_default_pass1 or eval_default_pass{samples}, with a row's datasource in the place "
            "of default where it has one, or the word none",
        )


def _prompt_probs(args: SimpleNamespace) -> Iterator[Finding]:
    """OpenRLHF reads them when the engines are loaded."""
    text, names = args.data.prompt_probs, args.data.prompt_dataset
    if text is None or not names:
        return
    count = len(names.split(","))
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        shares = []
    # As near to 1 as numpy, which draws by them, asks for.
    is_whole = math.isclose(sum(shares), 1, rel_tol=0, abs_tol=2**-26)
    if len(shares) != count or not is_whole or not all(share > 0 for share in shares):
        yield Finding(
            f"--data.prompt_probs {text}",
            f"is not a number above 0 for each data set of --data.prompt_dataset, {count} in all, with a sum of 1",
            "give such numbers with commas between them, or leave it out for all rows of each set",
        )


def _schedule(args: SimpleNamespace) -> Iterator[Finding]:
    """When what is trained, and how fast."""
    trained = [model for model in dealing.models(args) if model in dealing.TRAINED]
    for model in trained:
        if (name := getattr(args, model).lr_scheduler) not in SCHEDULERS:
            yield Finding(
                f"--{model}.lr_scheduler {name}",
                "is no schedule that OpenRLHF can train with",
                f"give one of {', '.join(SCHEDULERS)}",
            )
    frozen = args.critic.freezing_steps
    if frozen >= 0 and "critic" not in trained:  # from step 0 on, so that 0 is one step
        yield Finding(
            f"--critic.freezing_steps {frozen}",
            f"has the critic train alone, and --advantage_estimator {args.algo.advantage.estimator} has none, so that "
            "nothing would train in these steps",
            "leave it out",
        )
    if args.train.async_enable and args.train.async_queue_size < 1:
        yield Finding(f"--train.async_queue_size {args.train.async_queue_size}", "is below 1", "give 1 or more")


def _what_cannot_train(args: SimpleNamespace) -> Iterator[Finding]:
    """What OpenRLHF takes and then loses, or fails with."""
    if args.ckpt.max_num < 2 and args.ckpt.save_steps != -1 and not args.ckpt.disable_ds:
        yield Finding(
            f"--ckpt.max_num {args.ckpt.max_num}",
            "would leave no complete checkpoint while the next one is saved",
            "give at least 2",
        )
    if args.ckpt.save_steps != -1 and args.ckpt.disable_ds and not args.ckpt.save_hf:
        yield Finding(
            f"--ckpt.save_steps {args.ckpt.save_steps} with --ckpt.disable_ds",
            "saves nothing on the way, neither a checkpoint nor a model",
            "add --ckpt.save_hf, or leave one of the two out",
        )
    if args.ds.load_in_4bit:
        yield Finding(
            "--ds.load_in_4bit",
            "cannot train with vLLM, since OpenRLHF's weight sync sends the packed weights, which the engines, in "
            "bfloat16, refuse",
            "leave it out",
        )
    if args.ds.lora.rank > 0:
        yield Finding(
            f"--ds.lora.rank {args.ds.lora.rank}",
            "cannot train with vLLM, since OpenRLHF's weight sync sends PEFT's parameter names, which vLLM refuses",
            "leave the rank at 0, with any adapter merged into the model before",
        )
    if args.ds.param_dtype == "fp16":
        yield Finding(
            "--ds.param_dtype fp16",
            "cannot train with OpenRLHF's vLLM engines, which hold the weights in bfloat16 and take them in no other "
            "type",
            "give bf16",
        )
    if args.train.enable_ema and args.ds.zero_stage == 3:
        yield Finding(
            "--train.enable_ema with --ds.zero_stage 3",
            "would save the model that the job started with, since OpenRLHF writes the average into copies that "
            "DeepSpeed throws away",
            "leave it out, or use --ds.zero_stage 2",
        )
    packed = args.ds.packing_samples or args.train.dynamic_batch_enable or args.ds.ring_attn_size > 1
    if args.data.max_images_per_prompt > 0 and packed:
        yield Finding(
            f"--data.max_images_per_prompt {args.data.max_images_per_prompt}",
            "does not go with packed sequences (--ds.packing_samples, --train.dynamic_batch_enable, "
            "--ds.ring_attn_size), in which images lose their places",
            "leave those out",
        )


def _warnings(args: SimpleNamespace) -> Iterator[Finding]:
    method = base.make(args)
    if method and args.actor.policy_loss_type == "gspo" and method.tells_tokens_apart:
        yield Finding(
            "--actor.policy_loss_type gspo",
            f"has one ratio per response, so what --policy_loss {args.policy_loss} does to a token acts only through "
            "the mean over its response",
            "use ppo for it to act on that token",
        )
    told = given(args, "entropy")
    if method and "target" in told and "schedule" not in told and base.control_of(args).schedule == "open":
        yield Finding(
            f"--entropy.target {told['target']}",
            f"is only shown: --policy_loss {args.policy_loss} acts whatever the entropy is",
            "give --entropy.schedule pi, if it can be steered, to hold it there",
        )
    idle = [part.name for part in method.parts if base.is_idle(part, args)] if method else []
    if idle:
        yield Finding(
            f"--policy_loss {'+'.join(idle)}",
            "does nothing in the first optimizer step on a rollout, and with --train.batch_size "
            f"{args.train.batch_size} and --train.max_epochs 1 there is no other",
            "lower the first or raise the second",
        )
    is_penalised = args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss
    if method and is_penalised and args.algo.advantage.estimator in GROUP_BASELINES:
        yield Finding(
            f"--algo.kl.init_coef {args.algo.kl.init_coef:g}",
            "puts a KL penalty into the rewards, so that groups of equal rewards have small advantages, too, on which "
            f"--policy_loss {args.policy_loss} acts, and entropy/authority says little",
            "give 0, or --algo.kl.use_loss to have it in the loss",
        )
    if args.tool.run_model_code_without_sandbox:
        yield Finding(
            "--tool.run_model_code_without_sandbox",
            "lets programs that a model wrote do on the nodes what this user may do",
            "install bubblewrap and leave the flag out, unless the machines are disposable",
        )
    if given(args, "entropy").get("measure") == "sampled" and args.train.async_enable:
        yield Finding(
            "--entropy.measure sampled with --train.async_enable",
            "is an off-policy estimate, since the log-probs come from weights newer than the sampler's",
            "use exact for the entropy of the policy in training",
        )
    if _evaluates(args) and args.train.async_enable:
        yield Finding(
            f"--eval.steps {args.eval.steps} with --train.async_enable",
            f"evaluates late, weights of up to --train.async_queue_size {args.train.async_queue_size} steps after the "
            "step that is named, and a best checkpoint is newer than what was evaluated",
            "evaluate saved models for exact figures",
        )


def _optimizer(args: SimpleNamespace) -> Iterator[Finding]:
    """Steps of which less is left than one may think."""
    if args.train.dynamic_batch_enable and args.ds.zero_stage < 3:
        yield Finding(
            f"--train.dynamic_batch_enable with --ds.zero_stage {args.ds.zero_stage}",
            "trains on the last micro-batch of each optimizer step only, under any loss, since OpenRLHF 0.11.2 tells "
            "DeepSpeed that every backward pass ends a step",
            "use --ds.zero_stage 3",
        )
    for model in filter(dealing.TRAINED.__contains__, dealing.models(args)):
        options = getattr(args, model)
        if options.optim == "muon" and options.max_norm > 0:
            yield Finding(
                f"--{model}.optim muon with --{model}.max_norm {options.max_norm:g}",
                "takes hardly a step: DeepSpeed clips what Muon has normalised, whose norm is in the hundreds",
                f"give --{model}.max_norm 0",
            )
    if args.train.enable_ema:
        yield Finding(
            "--train.enable_ema",
            "is in no checkpoint, so a resumed job's average starts again from --actor.model_name_or_path; and in "
            "bfloat16 small steps do not move it",
            "save the policy itself, without it",
        )


def _idle_flags(args: SimpleNamespace) -> Iterator[Finding]:
    """Values that OpenRLHF or vLLM takes and does not act by."""
    if args.rollout.temperature < COLDEST:
        yield Finding(
            f"--rollout.temperature {args.rollout.temperature:g}",
            f"is {COLDEST:g} for vLLM, while the policy's logits are divided by what is given",
            f"give at least {COLDEST:g}",
        )
    agent, estimator = args.train.agent_func_path, args.algo.advantage.estimator
    if args.reward.model_name_or_path and "reward" not in dealing.models(args):
        yield Finding(
            f"--reward.model_name_or_path {args.reward.model_name_or_path}",
            f"is not used, since {'the agent' if agent else '--reward.remote_url'} gives the rewards",
            "leave one of the two out",
        )
    if args.reward.remote_url and agent and not tools.is_ours(agent):
        yield Finding(
            f"--reward.remote_url {args.reward.remote_url}",
            f"is not used, since --train.agent_func_path {agent} gives the rewards",
            "leave it out",
        )
    if args.algo.advantage.no_std_norm and estimator not in WHITENED:
        yield Finding(
            "--algo.advantage.no_std_norm",
            f"does nothing with --advantage_estimator {estimator}",
            "use dr_grpo, which does not divide a group's rewards by their deviation, or leave it out",
        )
    if args.algo.kl.target and args.algo.kl.init_coef <= 0:
        yield Finding(
            f"--algo.kl.target {args.algo.kl.target:g}",
            f"does nothing with --algo.kl.init_coef {args.algo.kl.init_coef:g}, which it would change by a share",
            "give a coefficient above 0, or leave it out",
        )
    if args.eval.dataset and not _evaluates(args):
        yield Finding(
            f"--eval.dataset {args.eval.dataset}",
            "is not used, since --eval.steps -1 is never",
            "give --eval.steps the number of steps from one evaluation to the next, or leave it out",
        )
