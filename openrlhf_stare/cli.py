"""The flags that the command adds to OpenRLHF's own, and the checks that come before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
from types import SimpleNamespace

from openrlhf_stare import tools
from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.tools.config import ToolConfig

POLICY_LOSSES = ("stare", "openrlhf")
NOT_WITH_PI = ("reweight_w", "reweight_m")  # without effect there, so whoever gives one means something else
ESTIMATOR = "--algo.advantage.estimator"


class UsageError(ValueError):
    """What the user asked for cannot run. The message is one sentence: the flag, its value and the remedy."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of OpenRLHF's command, and have a bad flag answered with one line."""
    group = parser.add_argument_group("STARE", "What openrlhf-stare adds; every other flag is OpenRLHF's own.")
    group.add_argument(
        "--policy_loss",
        default=POLICY_LOSSES[0],
        metavar=_one_of(POLICY_LOSSES),
        help="stare reweights the entropy-critical tokens of OpenRLHF's loss; openrlhf leaves that loss untouched and "
        "only measures the entropy (default: %(default)s)",
    )
    # The short form writes to the long form's place and has no default of its own: the last one given wins.
    estimator = parser._option_string_actions[ESTIMATOR]
    group.add_argument(
        "--advantage_estimator",
        dest=estimator.dest,
        choices=estimator.choices,
        default=argparse.SUPPRESS,
        help=f"short form of {ESTIMATOR}",
    )
    group.add_argument(
        "--eval_top_p",
        type=float,
        metavar="P",
        help="top-p of the evaluation's samples, between 0 and 1 (default: that of --rollout.top_p)",
    )
    group.add_argument(
        "--preflight",
        action="store_true",
        help="train nothing: check what the job needs on every node of the cluster, and print a table",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="with --preflight: check only what needs no cluster, on this machine"
    )
    for prefix, config in (("stare", StareConfig), ("tool", ToolConfig)):
        for field in dataclasses.fields(config):
            flag, text = f"--{prefix}.{field.name}", field.metadata["help"].replace("%", "%%")
            if isinstance(field.default, bool):
                group.add_argument(flag, action="store_true", help=text)
                continue
            # The choices are shown but left to the dataclass to check: its sentence carries the remedy.
            choices = field.metadata["choices"]
            group.add_argument(
                flag,
                type=type(field.default),
                # Left out of the arguments unless given, for `check` to see whether it was.
                default=argparse.SUPPRESS if field.name in NOT_WITH_PI else field.default,
                metavar=_one_of(choices) if choices else field.name.upper(),
                help=f"{text} (default: {field.default})",
            )

    # argparse would print the usage of some 150 flags first, and the sentence would be lost below it.
    parser.error = lambda message: parser.exit(2, f"train_ray: error: {' '.join(message.split())}\n")


def has_flags(parser: argparse.ArgumentParser) -> bool:
    """Whether `add_flags` has been at this parser."""
    return "--policy_loss" in parser._option_string_actions


def stare_config(args: SimpleNamespace) -> StareConfig:
    """The options of STARE in OpenRLHF's nested arguments (`args.stare.variant` and so on).

    Raises:
        ValueError: an option is outside its range.
    """
    return StareConfig(**vars(args.stare))


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
    if args.policy_loss not in POLICY_LOSSES:
        raise UsageError(
            f"--policy_loss {args.policy_loss} is not one of {', '.join(POLICY_LOSSES)}: choose one of them"
        )
    for name in NOT_WITH_PI:
        if args.stare.schedule == "pi" and hasattr(args.stare, name):
            raise UsageError(
                f"--stare.{name} {getattr(args.stare, name):g} is not used by --stare.schedule pi: leave it out"
            )
    try:
        stare = stare_config(args)
    except ValueError as error:
        raise UsageError(f"--stare.{error}") from None
    # The entropy is measured under --policy_loss openrlhf too, so this holds for both losses.
    if stare.entropy == "sampled" and args.rollout.top_p < 1:
        raise UsageError(
            f"--stare.entropy sampled does not go with --rollout.top_p {args.rollout.top_p:g}, since -log pi of "
            "tokens drawn from a truncated distribution does not estimate the policy's entropy: "
            "use --stare.entropy exact or --rollout.top_p 1"
        )
    if args.eval_top_p is not None and not 0 < args.eval_top_p <= 1:
        raise UsageError(f"--eval_top_p {args.eval_top_p:g} is outside (0, 1]: give a share such as 0.7")
    if args.dry_run and not args.preflight:
        raise UsageError("--dry-run goes with --preflight: give both, or leave it out to train")
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
    try:
        tools.check(args)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _warnings(args: SimpleNamespace) -> list[str]:
    warnings = []
    if args.policy_loss == "stare" and args.actor.policy_loss_type == "gspo":
        warnings.append(
            "--actor.policy_loss_type gspo has one ratio per response, so STARE's weights act only through their mean "
            "over the response: use ppo for a token's weight to act on that token"
        )
    if args.policy_loss == "stare" and args.stare.scope == "micro_batch":
        warnings.append(
            "--stare.scope micro_batch ranks the tokens of one micro-batch of all ranks, so the result depends on "
            "--train.micro_batch_size and on the number of ranks: use rollout to be free of both"
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
    if args.stare.entropy == "sampled" and args.train.async_enable:
        warnings.append(
            "--stare.entropy sampled with --train.async_enable is an off-policy estimate, since the log-probs come "
            "from weights newer than the sampler's: use exact for the entropy of the policy in training"
        )
    return warnings


def _one_of(choices: tuple[str, ...]) -> str:
    return "{" + ",".join(choices) + "}"
