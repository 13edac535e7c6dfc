"""`python -m openrlhf_stare.train_ray`: OpenRLHF's `train_ppo_ray` with STARE in place.

The flags are OpenRLHF's and ours. What can be found wrong is found before Ray starts, the cheapest first. Then
OpenRLHF's own `train` runs, with our policy actor and our engine in the places of its own, and with our hook in every
process of the job.
"""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from unittest.mock import patch

from openrlhf_stare import dealing, runtime, tools, worker
from openrlhf_stare.driver import checks, cluster, command, console, files, flags, paths, preflight, resources, seams
from openrlhf_stare.notices import notice, printable
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse


def main() -> None:
    """Run the command. Exit status 2: flags, files, cluster or installation are wrong, and nothing is left running."""
    with console.opened(sys.argv[1:]):
        try:
            sys.exit(run())
        except UsageError as error:
            print(f"train_ray: error: {printable(str(error))}", file=sys.stderr)
            sys.exit(2)


def run() -> int:
    """Check the job, then train or, with --preflight, look at the nodes. Returns the exit status."""
    seams.check_version()
    worker.install()  # announces our changes to OpenRLHF in this process

    flat = flags.parse()
    given = command.nested(flat)
    warnings = checks.check(given)
    for warning in warnings:
        notice(warning)
    if not given.dry_run:  # which is for a cluster elsewhere, whatever this machine has
        refuse(runtime.needs_a_gpu(given))
    # For the agent. OpenRLHF's own checks write "agent" in the reward's place.
    variables = tools.environment(given)
    os.environ.update(variables)

    args = command.settle(flat)
    paths.make_absolute(args)
    runtime.set_arguments(args)
    refuse(resources.uneven_batches(args), resources.more_ranks_than_gpus(args), dealing.nothing_kept(args))
    for finding in dealing.some_left_out(args):
        warnings.append(str(finding))
        notice(warnings[-1])
    if args.preflight:
        return preflight.run(args, warnings, variables)
    if not args.no_checks:
        variables |= files.check(args)
    seams.check()
    console.start_job(args)
    train(args, variables)
    return 0


def train(args: SimpleNamespace, variables: dict[str, str]) -> None:
    """OpenRLHF's `train` with our two actors and our Ray settings.

    Args:
        args: the nested arguments, checked.
        variables: what the job's processes need in their environment.

    Raises:
        UsageError: the cluster is not there or cannot take the job.
        SystemExit: a process of the job died.
    """
    import openrlhf.cli.train_ppo_ray as openrlhf_command
    import openrlhf.trainer.ray.vllm_engine as vllm_engine
    import ray

    from openrlhf_stare.actor_group.policy_actor import StarePolicyActor
    from openrlhf_stare.driver import deaths
    from openrlhf_stare.fixes.failed_engine import StareRolloutActor

    start_ray = functools.partial(cluster.start, ray.init, args, variables)
    with (
        patch.object(openrlhf_command, "PolicyModelActor", ray.remote(num_gpus=1)(StarePolicyActor)),
        patch.object(vllm_engine, "RolloutRayActor", ray.remote(StareRolloutActor)),
        patch.object(ray, "init", start_ray),
    ):
        try:
            with deaths.watched():
                openrlhf_command.train(args)
        finally:
            console.catch_up()
            ray.shutdown()


if __name__ == "__main__":
    main()
