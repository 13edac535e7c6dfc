"""The flags that the command adds to OpenRLHF's own. Their defaults, helps and choices come from the dataclasses."""

from __future__ import annotations

import argparse
import dataclasses

from openrlhf_stare.algorithms.config import StareConfig
from openrlhf_stare.driver import command, console
from openrlhf_stare.estimators.sr_grpo import SrGrpoConfig
from openrlhf_stare.tools.config import ToolConfig
from openrlhf_stare.tpo.target import TpoConfig

POLICY_LOSSES = ("stare", "openrlhf", "tpo")
# First part of a flag -> where its options are.
CONFIGS = {"stare": StareConfig, "tpo": TpoConfig, "sr_grpo": SrGrpoConfig, "tool": ToolConfig}
NOT_WITH_PI = ("reweight_w", "reweight_m")  # without effect there, so whoever gives one means something else
ESTIMATOR = "--algo.advantage.estimator"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """OpenRLHF's flags and ours, as given in the words, by default the command line's.

    Raises:
        SystemExit: after `--help`, or with status 2 after a line that says what cannot be read.
    """
    parser = command.parser()
    add_flags(parser)
    return parser.parse_args(words)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of OpenRLHF's command, and have a bad flag answered with one line."""
    group = parser.add_argument_group("STARE", "What openrlhf-stare adds; every other flag is OpenRLHF's own.")
    group.add_argument(
        "--policy_loss",
        default=POLICY_LOSSES[0],
        metavar=_one_of(POLICY_LOSSES),
        help="stare reweights the entropy-critical tokens of OpenRLHF's loss; openrlhf leaves that loss untouched and "
        "only measures the entropy; tpo is Target Policy Optimization (default: %(default)s)",
    )
    # The short form writes to the long form's place and has no default of its own: the last one given wins.
    estimator = parser._option_string_actions[ESTIMATOR]
    estimator.choices = [*estimator.choices, "sr_grpo"]
    group.add_argument(
        "--advantage_estimator",
        dest=estimator.dest,
        choices=estimator.choices,
        default=argparse.SUPPRESS,
        help=f"short form of {ESTIMATOR}; sr_grpo, which is ours, gives every response of a prompt their soft reward",
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
    group.add_argument(
        "--wait_for_resources",
        type=float,
        metavar="SECONDS",
        help="how long to wait for a Ray cluster that is still too small for the job (default: for ever where an "
        "autoscaler can add nodes, else not at all)",
    )
    group.add_argument(
        "--no_checks",
        action="store_true",
        help="start without looking for the model, data, reward and checkpoint folder on the driver's machine, for a "
        "driver that does not see what the nodes see",
    )
    console.add_flag(group)
    for part, config in CONFIGS.items():
        for field in dataclasses.fields(config):
            _add_option(group, f"--{part}.{field.name}", field)

    # argparse would print the usage of some 150 flags first, and the sentence would be lost below it.
    parser.error = lambda message: parser.exit(2, f"train_ray: error: {' '.join(message.split())}\n")


def _add_option(group: argparse._ArgumentGroup, flag: str, field: dataclasses.Field) -> None:
    """The flag of a dataclass's field, and the one that turns it off where it is on by default."""
    if isinstance(field.default, bool):
        options = {"action": "store_true"}
    else:
        # The choices are shown but left to the dataclass to check: its sentence carries the remedy.
        choices = field.metadata["choices"]
        metavar = _one_of(choices) if choices else field.name.upper()
        options = {"type": type(field.default), "metavar": metavar}
    # Those of NOT_WITH_PI are left out of the arguments unless given, for the checks to see whether they were.
    default = argparse.SUPPRESS if field.name in NOT_WITH_PI else field.default
    description = field.metadata["help"].replace("%", "%%")
    group.add_argument(flag, default=default, help=f"{description} (default: {field.default})", **options)
    if field.default is True:
        part, name = flag[2:].split(".")
        off = {"dest": flag[2:], "action": "store_false", "default": argparse.SUPPRESS}
        group.add_argument(f"--{part}.no_{name}", help=f"turns {flag} off", **off)


def _one_of(choices: tuple[str, ...]) -> str:
    return "{" + ",".join(choices) + "}"
