"""Waiting for a cluster that is still too small for the job, where it grows by itself or the user asks for it."""

from __future__ import annotations

import json
import math
import time
from types import SimpleNamespace

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental.internal_kv import _internal_kv_get

from openrlhf_stare.driver import resources
from openrlhf_stare.notices import notice

POLL_SECONDS = 2
TELL_SECONDS = 30


def wait_for_resources(args: SimpleNamespace) -> None:
    """Wait while the cluster that this process has joined is too small for the job, and say so.

    The wait lasts `--wait_for_resources` seconds at most; unless that is given, for ever where an autoscaler can add
    nodes, which is asked for them, and not at all elsewhere. Whether the cluster suffices is left to the caller.

    Args:
        args: the nested arguments as OpenRLHF's `train` gets them.
    """
    needs, start = resources.required(args), time.monotonic()
    if needs.fit(ray.cluster_resources()):
        return
    grows, limit = autoscales(), args.wait_for_resources
    if limit is None:
        limit = math.inf if grows else 0
    if grows:
        # OpenRLHF asks for one part after the other; this makes the nodes for all of them start at once.
        request_resources(bundles=[{"CPU": 1, "GPU": 1}] * needs.gpus + [{"CPU": 1}] * (needs.cpus - needs.gpus))
    told = -math.inf
    try:
        while (waited := time.monotonic() - start) < limit and not needs.fit(total := ray.cluster_resources()):
            if waited - told >= TELL_SECONDS:
                told = waited
                how = "its autoscaler has been asked for the rest" if grows else "waiting for more nodes"
                end = "--wait_for_resources SECONDS would end this" if limit == math.inf else f"at most {limit:.0f} s"
                notice(
                    f"The cluster has {total.get('GPU', 0):g} of {needs.gpus} GPUs and {total.get('CPU', 0):g} of "
                    f"{needs.cpus} CPUs that the job needs; {how} ({waited:.0f} s; {end})"
                )
            time.sleep(POLL_SECONDS)
    finally:
        if grows:
            request_resources(bundles=[])  # it would hold the nodes when the job is over, too


def autoscales() -> bool:
    """Whether an autoscaler, such as KubeRay's or that of `ray up`, adds nodes to the cluster.

    Every cluster has a report of one. Where it can add none, it names each node's type `node_` and the node's id.
    """
    if is_autoscaler_v2():
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        types = [node.ray_node_type_name for node in [*status.active_nodes, *status.idle_nodes]]
    else:
        report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or "{}").get("autoscaler_report")
        types = (report or {}).get("active_nodes", {})
    return any(name and not name.startswith("node_") for name in types)
