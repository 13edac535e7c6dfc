"""`python -m openrlhf_stare.train_ray`: OpenRLHF's `train_ppo_ray` with STARE in place.

The flags are OpenRLHF's and ours. What can be found wrong is found before Ray starts, the cheapest first. Then
OpenRLHF's own `train` runs, with our policy actor and our engine in the places of its own, and with our hook in every
process of the job.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from types import SimpleNamespace

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the modules are imported needs no traceback

# ruff: noqa: E402
from openrlhf_stare import dealing, replacing, runtime, tools, worker
from openrlhf_stare.driver import (
    checks,
    cluster,
    command,
    console,
    files,
    flags,
    look,
    paths,
    preflight,
    resources,
    run_folder,
    seams,
    signals,
)
from openrlhf_stare.notices import notice, printable
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse


def main() -> None:
    """Run the command. Exit status 2: flags, files, cluster or installation are wrong, and nothing is left running."""
    with console.opened(sys.argv[1:]), signals.told():
        try:
            sys.exit(run())
        except UsageError as error:
            print(f"{console.ERROR} {printable(str(error))}", file=sys.stderr)
            sys.exit(2)


def run() -> int:
    """Check the job, then train, or with --preflight ask the nodes, or with --look sample a few answers.

    Returns:
        The exit status.
    """
    seams.check(insist=seams.INSIST in sys.argv[1:])
    worker.install()  # announces our changes to OpenRLHF in this process

    flat = flags.parse()
    given = command.nested(flat)
    if not given.dry_run:
        refuse(cluster.address_for_others())
    warnings = checks.check(given)
    for warning in warnings:
        notice(warning)
    if not given.dry_run:  # which is for a cluster elsewhere, whatever this machine has
        refuse(runtime.cannot_work_here(given))
    # For the agent. OpenRLHF's own checks write "agent" in the reward's place.
    variables = tools.environment(given)
    os.environ.update(variables)

    args = command.settle(flat)
    refuse(paths.lost_with_the_job(args))
    paths.make_absolute(args)
    runtime.set_arguments(args, attention=given.ds.attn_implementation)
    refuse(resources.uneven_batches(args), resources.more_ranks_than_gpus(args), dealing.nothing_kept(args))
    refuse(resources.unequal_shares(args), dealing.no_step(args))
    for finding in (*dealing.some_left_out(args), *dealing.unfilled_steps(args)):
        warnings.append(str(finding))
        notice(warnings[-1])
    if args.preflight:
        return preflight.run(args, warnings, variables)
    beginning = None if args.look.on else run_folder.check(args)
    if not args.no_checks:
        variables |= files.check(args)
    if args.look.on:
        return look.run(args, variables)
    with run_folder.held(args.ckpt.path):
        console.start_job(args)
        if beginning:
            console.tell_twice(beginning)
        train(args, variables)
    return 0


def train(args: SimpleNamespace, variables: dict[str, str]) -> None:
    """OpenRLHF's `train` with our Ray settings. Its actors are ours by the table in substitutions.py.

    Args:
        args: the nested arguments, checked.
        variables: what the job's processes need in their environment.

    Raises:
        UsageError: the cluster is not there or cannot take the job.
        SystemExit: a process of the job died.
    """
    openrlhf_command = seams.import_command()
    import ray

    from openrlhf_stare.driver import deaths, waiting

    with replacing.replaced("ray.init", functools.partial(cluster.start, ray.init, args, variables)):
        try:
            with deaths.watched(), waiting.told():
                openrlhf_command.train(args)
        finally:
            console.catch_up()
            ray.shutdown()


if __name__ == "__main__":
    main()
