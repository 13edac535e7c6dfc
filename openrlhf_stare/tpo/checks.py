"""What cannot go with `--policy_loss tpo`, by OpenRLHF's nested arguments; imports no framework."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_stare.dealing import data_parallel_ranks, dealing_unit
from openrlhf_stare.rules import Finding


def cannot_go_with_tpo(args: SimpleNamespace) -> Iterator[Finding]:
    """What would change TPO's objective without a word, or what it cannot run with."""
    if args.policy_loss != "tpo":
        return
    samples = args.rollout.n_samples_per_prompt
    if samples < 2:
        yield Finding(
            f"--rollout.n_samples_per_prompt {samples}",
            "cannot go with --policy_loss tpo, which compares the responses of a prompt",
            "give at least 2",
        )
    for wrong, flag, reason, remedy in (*_other_objectives(args), *_split_groups(args)):
        if wrong:
            yield Finding(flag, f"cannot go with --policy_loss tpo, since {reason}", remedy)


def _other_objectives(args: SimpleNamespace) -> list[tuple[bool, str, str, str]]:
    actor, kl, correction = args.actor, args.algo.kl, args.algo.advantage.is_correction_level
    return [
        (
            args.algo.advantage.estimator == "gae",
            "--algo.advantage.estimator gae",
            "it would load and train a critic that nothing uses",
            "give --advantage_estimator group_norm",
        ),
        (
            kl.init_coef > 0 and not kl.use_loss,
            f"--algo.kl.init_coef {kl.init_coef:g}",
            "it puts a KL penalty into advantages, which the loss does not use",
            "add --algo.kl.use_loss, or give 0",
        ),
        (
            correction != "off",
            f"--algo.advantage.is_correction_level {correction}",
            "it corrects the loss of each token, where a prompt has one loss",
            "give off",
        ),
        (
            actor.policy_loss_type != "ppo",
            f"--actor.policy_loss_type {actor.policy_loss_type}",
            "tpo takes the place of that loss",
            "leave it out",
        ),
        (
            actor.dual_clip is not None,
            f"--actor.dual_clip {actor.dual_clip}",
            "there is no ratio to clip",
            "leave it out",
        ),
        (
            actor.loss_agg_mode != "token-mean",
            f"--actor.loss_agg_mode {actor.loss_agg_mode}",
            "the loss is a mean over prompts",
            "leave it out",
        ),
    ]


def _split_groups(args: SimpleNamespace) -> list[tuple[bool, str, str, str]]:
    samples, train, dynamic = args.rollout.n_samples_per_prompt, args.train, args.train.dynamic_batch_enable
    ranks, unit = data_parallel_ranks(args), dealing_unit(args, whole_steps=True)
    return [
        (
            dynamic and args.ds.zero_stage < 3,
            f"--train.dynamic_batch_enable and --ds.zero_stage {args.ds.zero_stage}",
            "only the last micro-batch of an optimizer step would be trained on, which lacks most of each group",
            "give --ds.zero_stage 3",
        ),
        (
            train.batch_size % (ranks * samples) > 0,
            f"--train.batch_size {train.batch_size}",
            f"each of {ranks} ranks needs whole groups of {samples} responses in an optimizer step",
            f"give a multiple of {ranks * samples}",
        ),
        (
            not dynamic and train.batch_size % (ranks * train.micro_batch_size) > 0,
            f"--train.micro_batch_size {train.micro_batch_size}",
            f"it does not divide a rank's {train.batch_size // ranks} responses of an optimizer step",
            "give a divisor",
        ),
        (
            args.rollout.batch_size * samples % unit > 0,
            f"--rollout.batch_size {args.rollout.batch_size}",
            f"only rollouts of {unit} responses, or twice as many and so on, make whole optimizer steps on all ranks",
            f"give a multiple of {unit // samples}",
        ),
    ]
