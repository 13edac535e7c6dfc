"""Which Ray a job joins or starts, and the runtime environment of all its processes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from openrlhf_stare import runtime, worker
from openrlhf_stare.driver import console, paths, resources, signals
from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError
from openrlhf_stare.replacing import replaced
from openrlhf_stare.rules import Finding, refuse

CONNECT_SECONDS = 10
# Of a Ray that the job starts for itself, which nobody else is to reach: its servers then listen there only.
ON_LOOPBACK = {"_node_ip_address": "127.0.0.1"}
RESOLVE = "ray._private.services.resolve_ip_for_localhost"
LISTEN_TO_SIGTERM = "ray._private.utils.set_sigterm_handler"


def start(
    init: Callable, args: SimpleNamespace, variables: dict[str, str], runtime_env: dict | None = None, **others: Any
) -> Any:
    """Join or start Ray for the job, and compare the two.

    Args:
        init: `ray.init`; this function stands in for it while OpenRLHF's `train` runs.
        args: the nested arguments that OpenRLHF's `train` gets.
        variables: what the job's processes need in their environment, besides what `runtime_env` has.
        runtime_env, others: OpenRLHF's arguments of `ray.init`.

    Raises:
        UsageError: no cluster answers where one should be, or it cannot take the job.
    """
    import ray

    address = running_cluster()
    if address is None:
        # Without this, Ray's agents outlive a killed driver by a minute, in which they look for its control store.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
        needs = resources.required(args)
        for finding in (*runtime.engine_of_gpus(), *runtime.too_few_cores(needs.gpus)):
            raise UsageError(f"{finding}; the job needs {needs}")
        others |= ON_LOOPBACK
        if own := runtime.own_ray(needs.gpus, needs.cpus):
            others |= {**own, "include_dashboard": False}
    else:
        check_that_it_answers(address)
    runtime_env = runtime_env or {}
    env_vars = {**runtime_env.get("env_vars", {}), **variables}
    runtime_env = job_wide({**runtime_env, "env_vars": env_vars})
    if args.preflight:
        # On a node without our package it would end every worker, before one could say what is missing.
        runtime_env.pop("worker_process_setup_hook", None)
    try:
        with replaced(RESOLVE, as_it_is), replaced(LISTEN_TO_SIGTERM, signals.keep_listening):
            context = init(runtime_env=runtime_env, **others)
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        said = " ".join(str(error).split())
        raise UsageError(f"the Ray at {address} is another one ({said}): install the same on all nodes") from None
    if not args.preflight:  # which has a row for it
        from openrlhf_stare.driver import scaling  # imports Ray

        scaling.wait_for_resources(args)
        refuse(*unfit(args, ray.cluster_resources()))
        if sentence := taken_by_others(args, ray.available_resources()):
            notice(sentence)
        console.end_phase("Ray")
    return context


def as_it_is(host: str) -> str:
    """127.0.0.1 stays what it is, where Ray would take the machine's address on the network."""
    return host


def unfit(args: SimpleNamespace, available: dict[str, float]) -> tuple[Iterator[Finding], ...]:
    """What is wrong with the cluster that was joined, of these totals, `ray.cluster_resources()`, for the job."""
    import ray

    nodes = (node["Resources"] for node in ray.nodes() if node["Alive"])
    too_small = resources.too_small(args, available)
    return too_small, resources.unplaceable(args, nodes), runtime.driver_without_a_gpu(available)


def taken_by_others(args: SimpleNamespace, free: dict[str, float]) -> str | None:
    """What a job waits for whose GPUs are there and not free, `free` being `ray.available_resources()`; else None."""
    needs = resources.required(args)
    if needs.gpus <= free.get("GPU", 0):
        return None
    return (
        f"The job needs {needs.gpus} GPUs, and {free.get('GPU', 0):g} are free: it waits until other jobs end "
        "(`ray job list`)"
    )


def job_wide(runtime_env: dict) -> dict:
    """OpenRLHF's runtime environment with ours, less what a job submitted to Ray brings itself: its values win.

    Ray refuses any key that is in both, even with equal values.
    """
    submitted = paths.submitted_environment()
    if submitted.get("worker_process_setup_hook", worker.HOOK) != worker.HOOK:
        raise UsageError(
            f"the job's runtime environment sets worker_process_setup_hook {submitted['worker_process_setup_hook']}, "
            f"where openrlhf-stare needs {worker.HOOK}: leave it out"
        )
    env_vars = {**runtime_env.get("env_vars", {}), **runtime.environment()}
    ours = {**runtime_env, "worker_process_setup_hook": worker.HOOK}
    ours = {key: value for key, value in ours.items() if key not in submitted}
    theirs = submitted.get("env_vars", {})
    ours["env_vars"] = {name: value for name, value in env_vars.items() if name not in theirs}
    return ours


def address_for_others() -> Iterator[Finding]:
    """RAY_ADDRESS is the address of a cluster's control store."""
    address = os.environ.get("RAY_ADDRESS", "")
    remedy = "give the HOST:PORT of its head, such as 10.0.0.1:6379, on a machine of the cluster"
    if address.startswith("ray://"):
        yield Finding(f"RAY_ADDRESS {address}", "is for Ray's client, through which OpenRLHF cannot train", remedy)
    if address.startswith(("http://", "https://")):
        yield Finding(
            f"RAY_ADDRESS {address}",
            "is where jobs are submitted",
            f"submit this one with launch/cluster/submit.sh or `ray job submit`, or {remedy}",
        )
    if address not in ("", "auto", "local") and not re.fullmatch(r".+:[0-9]+", address):
        yield Finding(f"RAY_ADDRESS {address}", "is no HOST:PORT", remedy)


def running_cluster() -> str | None:
    """The HOST:PORT that ray.init will join: given in RAY_ADDRESS, or of this machine's last `ray start`.

    None if it will start a Ray of its own.

    Raises:
        UsageError: RAY_ADDRESS is `auto`, and no Ray runs here.
    """
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return canonicalize_bootstrap_address(None)
    except ConnectionError:
        raise UsageError(
            f"RAY_ADDRESS {os.environ['RAY_ADDRESS']} finds no Ray that runs on this machine: start one, or set "
            "RAY_ADDRESS=local for a Ray of this command's own"
        ) from None


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
        raise UsageError(
            f"no Ray cluster answers at {address}, the address from {source} ({error}): start one there, "
            "or set RAY_ADDRESS=local for a Ray of this command's own"
        ) from None
