"""`python -m openrlhf_stare.train_ray`: OpenRLHF's `train_ppo_ray` with STARE in place.

OpenRLHF's own command module runs. Before it does, our policy actor takes the place of OpenRLHF's under the same name;
while it runs, our flags are added to its parser, the parsed values are checked, and Ray starts with our worker hook.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import runpy
import socket
import sys
from types import SimpleNamespace
from unittest.mock import patch

from openrlhf_stare import tools, worker
from openrlhf_stare.driver import checks, preflight, resources, seams
from openrlhf_stare.runtime import CPU_VARIABLE, on_cpu

COMMAND = "openrlhf.cli.train_ppo_ray"
ESTIMATOR_FLAG = "--algo.advantage.estimator"  # tells the command's parser from any other
CONNECT_SECONDS = 10

logger = logging.getLogger(__name__)


def main() -> None:
    """Run the command. Exit status 2: flags, cluster or installation are wrong, and nothing is left running."""
    try:
        worker.install()
        seams.check()
        run()
    except (checks.UsageError, seams.MissingSeam) as error:
        print(f"train_ray: error: {error}", file=sys.stderr)
        sys.exit(2)


def run() -> None:
    """OpenRLHF's command with our policy actor, flags, checks and Ray settings."""
    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    import openrlhf.trainer.ray.vllm_engine as vllm_engine
    import openrlhf.utils
    import openrlhf.utils.config
    import ray

    from openrlhf_stare.actor_group.policy_actor import StarePolicyActor
    from openrlhf_stare.driver import deaths, scaling
    from openrlhf_stare.fixes.failed_engine import StareRolloutActor

    parse_args, hierarchize = argparse.ArgumentParser.parse_args, openrlhf.utils.config.hierarchize
    get_strategy, init = openrlhf.utils.get_strategy, ray.init
    job = SimpleNamespace(args=None, warnings=[], variables={})

    def parse_args_with_ours(parser, *args, **kwargs):
        if ESTIMATOR_FLAG in parser._option_string_actions and not checks.has_flags(parser):
            checks.add_flags(parser)
        return parse_args(parser, *args, **kwargs)

    def check_as_soon_as_parsed(flat):
        job.args = hierarchize(flat)
        job.warnings = checks.check(job.args)
        for warning in job.warnings:
            logger.warning(warning)
        job.variables = tools.environment(job.args)
        # A dry run is for a cluster elsewhere, whatever this machine has.
        if on_cpu() and not job.args.dry_run:
            from openrlhf_stare import cpu

            cpu.check_arguments(job.args)
        return job.args

    def start_ray(runtime_env=None, **kwargs):
        if job.args.dry_run:
            return None
        runtime_env = runtime_env or {}
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **job.variables}
        runtime_env = job_wide(runtime_env)
        if job.args.preflight:
            # On a node without our package it would end every worker, before one could say what is missing.
            runtime_env.pop("worker_process_setup_hook", None)
        address = running_cluster()
        if address is None:
            # Without this, Ray's agents outlive a killed driver by a minute, in which they look for its control store.
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
        elif "://" not in address:  # ray://, for Ray's client, is left to Ray
            check_that_it_answers(address)
        return init(runtime_env=runtime_env, **local_cluster(job.args), **kwargs)

    def check_against_the_cluster(args):
        resources.check_batches(args)
        if on_cpu():
            from openrlhf_stare import cpu

            cpu.set_arguments(args)
        if args.preflight:
            os.environ.update(job.variables)  # an agent looks for them
            sys.exit(preflight.run(args, job.warnings, check_cluster))
        scaling.wait_for_resources(args)
        check_cluster(args, ray.cluster_resources())
        return get_strategy(args)

    with (
        patch.object(argparse.ArgumentParser, "parse_args", parse_args_with_ours),
        patch.object(openrlhf.utils.config, "hierarchize", check_as_soon_as_parsed),
        patch.object(openrlhf.utils, "get_strategy", check_against_the_cluster),
        patch.object(ray, "init", start_ray),
        patch.object(ppo_actor, "PolicyModelActor", ray.remote(num_gpus=1)(StarePolicyActor)),
        patch.object(vllm_engine, "RolloutRayActor", ray.remote(StareRolloutActor)),
    ):
        try:
            with deaths.watched():
                runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
        finally:
            ray.shutdown()


def check_cluster(args: SimpleNamespace, available: dict[str, float]) -> None:
    """Compare a job with the cluster's totals, `ray.cluster_resources()`.

    Raises:
        UsageError: the cluster is too small, or the CPU runtime is wrong for it.
    """
    resources.check(args, available)
    if on_cpu():
        from openrlhf_stare import cpu

        cpu.check_cluster(available)


def job_wide(runtime_env: dict) -> dict:
    """OpenRLHF's runtime environment with ours, less what a job submitted to Ray brings itself: its values win.

    Ray refuses any key that is in both, even with equal values.
    """
    submitted = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env") or {}
    if submitted.get("worker_process_setup_hook", worker.HOOK) != worker.HOOK:
        raise checks.UsageError(
            f"the job's runtime environment sets worker_process_setup_hook {submitted['worker_process_setup_hook']}, "
            f"where openrlhf-stare needs {worker.HOOK}: leave it out"
        )
    env_vars = {**runtime_env.get("env_vars", {}), CPU_VARIABLE: "0"}
    if on_cpu():
        from openrlhf_stare import cpu

        env_vars.update(cpu.environment())
    ours = {**runtime_env, "worker_process_setup_hook": worker.HOOK}
    ours = {key: value for key, value in ours.items() if key not in submitted}
    theirs = submitted.get("env_vars", {})
    ours["env_vars"] = {name: value for name, value in env_vars.items() if name not in theirs}
    return ours


def running_cluster() -> str | None:
    """The HOST:PORT that ray.init will join: given in RAY_ADDRESS, or of this machine's last `ray start`.

    None if it will start a Ray of its own.
    """
    from ray._private.services import canonicalize_bootstrap_address

    return canonicalize_bootstrap_address(None)


def check_that_it_answers(address: str) -> None:
    """Refuse a cluster that is not there: ray.init would try for ten minutes and more.

    A `ray start` that was killed leaves its address behind.

    Raises:
        UsageError: nothing accepts connections at the address.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        source = "RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") else "the last `ray start` on this machine"
        raise checks.UsageError(
            f"no Ray cluster answers at {address}, the address from {source} ({error}): start one there, "
            "or set RAY_ADDRESS=local for a Ray of this command's own"
        ) from None


def local_cluster(args: SimpleNamespace) -> dict:
    """The resources of the Ray that this command starts itself, where there is no GPU and no cluster to join."""
    if not on_cpu() or running_cluster():
        return {}
    needs = resources.required(args)
    return {"num_gpus": needs.gpus, "num_cpus": max(needs.cpus, os.cpu_count() or 1), "include_dashboard": False}


if __name__ == "__main__":
    main()
