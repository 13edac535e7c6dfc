"""The CPUs that an engine may use for its tools: those of this process, shared with the other engines on the node."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable() -> int:
    """How many CPUs this process may use: those it may run on, or fewer where its container is granted less time."""
    allowed = len(os.sched_getaffinity(0))
    for quota_file, period_file in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = (CGROUP / quota_file).read_text().split()
            quota, period = words if period_file is None else (words[0], (CGROUP / period_file).read_text())
            if quota not in ("max", "-1"):
                return max(1, min(allowed, int(quota) // int(period)))
        except (OSError, ValueError):
            continue
    return allowed


def programs_at_a_time(engines: int, gpus_of_each: int) -> int:
    """How many programs an engine lets run at a time.

    Several for each of its CPUs, because those that sleep take none. The engines on this node are at most as many as
    its GPUs have room for.

    Args:
        engines: those of the whole job.
        gpus_of_each: the GPUs of one.
    """
    import ray

    here = engines
    if ray.is_initialized():
        node = ray.get_runtime_context().get_node_id()
        [gpus] = [node_["Resources"].get("GPU", 0) for node_ in ray.nodes() if node_["NodeID"] == node]
        here = max(1, min(engines, int(gpus) // gpus_of_each))
    return 8 + 4 * usable() // max(here, 1)
