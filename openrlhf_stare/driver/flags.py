"""The flags that the command adds to OpenRLHF's own. Their defaults, helps and choices come from the dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from openrlhf_stare.actor_group.config import ActorConfig
from openrlhf_stare.algorithms.control import EntropyControl
from openrlhf_stare.driver import command, console, seams
from openrlhf_stare.driver.look import LookConfig
from openrlhf_stare.methods import base
from openrlhf_stare.notices import printable
from openrlhf_stare.options import Options, Secret, UsageError, number_or_percentage
from openrlhf_stare.rollout.failing_rewards import FailedRewards
from openrlhf_stare.rollout.sr_grpo import SrGrpoConfig
from openrlhf_stare.tools.config import ToolConfig
from openrlhf_stare.tpo.target import TpoConfig

POLICY_LOSS = "stare"  # the default
SECRET = "--logger.wandb.key"  # whose value is in no name and in no log
# First part of a flag -> where its options are, for what is no method.
CONFIGS: dict[str, type[Options]] = {
    "actor": ActorConfig,
    "tpo": TpoConfig,
    "sr_grpo": SrGrpoConfig,
    "tool": ToolConfig,
    "failed_rewards": FailedRewards,
    "look": LookConfig,
}
ESTIMATOR = "--algo.advantage.estimator"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """OpenRLHF's flags and ours, as given in the words, by default the command line's.

    Raises:
        SystemExit: after `--help`, or with status 2 after a line that says what cannot be read.
    """
    words = sys.argv[1:] if words is None else words
    parser = command.parser()
    own = _own_methods(words)
    parts = {flag[2:].partition(".")[0] for flag in parser._option_string_actions} | {"entropy", *CONFIGS}
    for file in own:
        if (name := base.name_of(file)) in parts:
            raise UsageError(
                f"--policy_loss {file} cannot give its method the name {name}, since other flags begin with "
                f"--{name}: give the file another name"
            )
    add_flags(parser, own)
    return parser.parse_args(words)


def _own_methods(words: list[str]) -> list[str]:
    """The files with methods of the user's own among the words: their options are flags, too."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--policy_loss", default="")
    policy_loss = early.parse_known_args(words)[0].policy_loss
    return base.own_files(policy_loss)


def methods(own: Sequence[str] = ()) -> dict[str, type[base.Method]]:
    """First part of a flag -> the method whose options it has: those that there are, and those of own files."""
    return {method.name: method for method in [*map(base.find, base.names()), *map(base.load, own)]}


def method_options(own: Sequence[str] = ()) -> dict[str, type[Options]]:
    """First part of a flag -> the options of a method."""
    return {name: method.Options for name, method in methods(own).items()}


def add_flags(parser: argparse.ArgumentParser, own: Sequence[str] = ()) -> None:
    """Add our flags to the parser of OpenRLHF's command, and have a bad flag answered with one line.

    Args:
        own: files with methods of the user's own, whose options become flags.
    """
    _keep_abbreviations(parser)
    group = parser.add_argument_group("STARE", "What openrlhf-stare adds; every other flag is OpenRLHF's own.")
    group.add_argument(
        "--policy_loss",
        default=POLICY_LOSS,
        metavar=_one_of((*base.names(), *base.WITHOUT_METHOD, "FILE.py")),
        help="the method that acts on the entropy, a file of your own, or several joined by +; openrlhf keeps "
        "OpenRLHF's loss and only measures the entropy; tpo is Target Policy Optimization (default: %(default)s)",
    )
    # The short form writes to the long form's place and has no default of its own: the last one given wins.
    estimator = parser._option_string_actions[ESTIMATOR]
    estimator.choices = [*(estimator.choices or ()), "sr_grpo"]
    group.add_argument(
        "--advantage_estimator",
        dest=estimator.dest,
        choices=estimator.choices,
        default=argparse.SUPPRESS,
        help=f"short form of {ESTIMATOR}; sr_grpo (added here) gives all responses of a prompt its soft reward",
    )
    _add_min_new_tokens(group)
    group.add_argument(
        "--eval_top_p",
        type=float,
        metavar="P",
        help="top-p of the evaluation's samples, between 0 and 1 (default: that of --rollout.top_p)",
    )
    _add_flags_of_the_start(group)
    console.add_flag(group)
    _add_options(group, own)
    _answer_with_one_line(parser)
    parser._option_string_actions[SECRET].type = Secret


def _add_flags_of_the_start(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--preflight",
        action="store_true",
        help="train nothing: check what the job needs on every node of the cluster, and print a table",
    )
    group.add_argument(
        "--look",
        dest="look.on",
        action="store_true",
        help="train nothing: sample a few answers with the engine alone, print them with their rewards, lengths and "
        "entropy, and say whether there is something to learn",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="with --preflight: check only what needs no cluster, on this machine"
    )
    group.add_argument(
        "--wait_for_resources",
        type=float,
        metavar="SECONDS",
        help="how long to wait for a Ray cluster that is still too small for the job (default: forever with an "
        "autoscaler that can add nodes, else not at all)",
    )
    group.add_argument(
        "--no_checks",
        action="store_true",
        help="do not check the model, data, reward and checkpoint folder on the driver's machine, for a driver that "
        "does not see what the nodes see",
    )
    group.add_argument(
        seams.INSIST,
        action="store_true",
        help=f"accept an OpenRLHF other than {' or '.join(seams.SUPPORTED)} if it has everything that the plugin "
        "attaches to (docs/substitutions.md)",
    )


def _keep_abbreviations(parser: argparse.ArgumentParser) -> None:
    """Have what abbreviates a flag that the parser has now mean that flag, whatever is added later."""
    theirs, by_prefix = set(parser._actions), parser._get_option_tuples

    def as_before(option_string: str) -> list[tuple[argparse.Action, str, str | None]]:
        found = by_prefix(option_string)
        return [option for option in found if option[0] in theirs] or found

    parser._get_option_tuples = as_before  # type: ignore[method-assign]


def _add_min_new_tokens(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rollout.min_new_tokens",
        type=int,
        default=1,
        metavar="N",
        help="tokens of a response before the end token may be sampled; above 0 the engine samples from another "
        "distribution than the policy's (default: %(default)s, as in OpenRLHF)",
    )


def _answer_with_one_line(parser: argparse.ArgumentParser) -> None:
    """argparse would print the usage of some 150 flags before a sentence about a bad one."""

    def error(message: str) -> NoReturn:
        message = printable(" ".join(message.split()))
        if message.startswith("unrecognized arguments: "):
            message += _did_you_mean(message.split()[2:], [*parser._option_string_actions])
        parser.exit(2, f"{console.ERROR} {message}\n")

    parser.error = error  # type: ignore[method-assign]


def _did_you_mean(unknown: list[str], flags: list[str]) -> str:
    """The flags that are nearest to unknown ones, as a question; "" without any."""
    typed = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    near = [name for word in typed for name in difflib.get_close_matches(word, flags, n=1, cutoff=0.7)]
    return f" (did you mean {', '.join(near)}?)" if near else ""


def _add_options(group: argparse._ArgumentGroup, own: Sequence[str]) -> None:
    """The flags of the dataclasses' fields."""
    # Those of the controller and of the methods are in the arguments only if given: a method has defaults of its own
    # for the controller, and a strength that is given goes with some schedules only.
    for field in dataclasses.fields(EntropyControl):
        _add_option(group, f"--entropy.{field.name}", field, base.control_default(field.name), argparse.SUPPRESS)
    for part, method in methods(own).items():
        for field in dataclasses.fields(method.Options):
            shown = base.option_default(method, field.name)
            _add_option(group, f"--{part}.{field.name}", field, shown, argparse.SUPPRESS)
    for part, config in CONFIGS.items():
        for field in dataclasses.fields(config):
            _add_option(group, f"--{part}.{field.name}", field, field.default, field.default)


def _add_option(
    group: argparse._ArgumentGroup, flag: str, field: dataclasses.Field, shown: object, default: object
) -> None:
    """The flag of a dataclass's field, and the one that turns it off where it is on by default.

    Args:
        shown: the default as the help says it.
        default: what the arguments have where the flag is not given; `argparse.SUPPRESS` for nothing.
    """
    options: dict[str, Any]
    if isinstance(field.default, bool):
        options = {"action": "store_true"}
    else:
        # The choices are shown but left to the dataclass to check: its sentence carries the remedy.
        choices = field.metadata["choices"]
        metavar = _one_of(choices) if choices else field.name.upper()
        reads = number_or_percentage if field.metadata["percent"] else type(field.default)
        options = {"type": reads, "metavar": metavar}
    description = field.metadata["help"].replace("%", "%%")
    group.add_argument(flag, default=default, help=f"{description} (default: {shown})", **options)
    if field.default is True:
        part, name = flag[2:].split(".")
        off: dict[str, Any] = {"dest": flag[2:], "action": "store_false", "default": argparse.SUPPRESS}
        group.add_argument(f"--{part}.no_{name}", help=f"turns {flag} off", **off)


def _one_of(choices: tuple[str, ...]) -> str:
    return "{" + ",".join(choices) + "}"
