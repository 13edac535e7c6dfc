"""A cluster that is too small at first: Ray's real autoscaler, which starts raylets on this machine as its nodes."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from jobs import ROOT, end_processes, job_flags, marked, run_job
from ray.util import get_node_ip_address

# 2 + 1 GPUs and 4 CPUs is what `job_flags` ask for; the head has none of the GPUs.
WORKER = {"resources": {"CPU": 2, "GPU": 2, "object_store_memory": 10**8}, "node_config": {}, "max_workers": 2}
HEAD_ID = "f" * 51 + "00000"
CONFIG = {
    "cluster_name": "growing",
    "max_workers": 2,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 1,
    # Named as an external one, since Ray's wheel lacks the file of defaults for its own name.
    "provider": {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "launch_multiple": True,
        "head_node_id": HEAD_ID,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "auth": {},
    "docker": {},
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "gpu": WORKER,
    },
    "file_mounts": {},
    **{name: [] for name in ("cluster_synced_files", "initialization_commands", "setup_commands", "rsync_filter")},
    **{name: [] for name in ("head_setup_commands", "worker_setup_commands", "head_start_ray_commands")},
    **{name: [] for name in ("worker_start_ray_commands", "rsync_exclude")},
    "file_mounts_sync_continuously": False,
}
# The name of its node type is what KubeRay and `ray up` give a head.
VERSION_2 = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_NODE_TYPE_NAME": "ray.head.default",
}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def cluster(tmp_path):
    """Start a head with one CPU and an autoscaler, and give its address."""
    mark = uuid.uuid4().hex

    def start(autoscaler: str) -> str:
        port, clients = free_port(), free_port()
        words = [f"--port={port}", "--num-cpus=1", "--num-gpus=0", "--include-dashboard=false", "--block"]
        environment = {**os.environ, **marked(mark), "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        environment.pop("RAY_ADDRESS", None)
        provider = {**CONFIG["provider"], "gcs_address": f"{get_node_ip_address()}:{port}"}
        (tmp_path / "autoscaler.yaml").write_text(json.dumps({**CONFIG, "provider": provider}))
        environment["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = HEAD_ID
        words.append(f"--autoscaling-config={tmp_path}/autoscaler.yaml")
        if autoscaler == "v2":
            environment |= VERSION_2
        with open(tmp_path / "ray.log", "w") as log:
            ray = Path(sys.executable).with_name("ray")
            command = [ray, "start", "--head", f"--ray-client-server-port={clients}", *words]
            subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        return f"127.0.0.1:{port}"

    yield start
    end_processes(mark, grace=0)


@pytest.mark.parametrize("autoscaler", ["v1", "v2"])
def test_a_cluster_that_grows_is_asked_and_waited_for(tmp_path, cluster, autoscaler):
    environment = {"RAY_ADDRESS": cluster(autoscaler), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("growing_driver.py"))]
    job = run_job(job_flags(tmp_path, tmp_path), tmp_path, timeout=120, command=command, env=environment)
    assert job.status == 0, job.output[-4000:] + (tmp_path / "ray.log").read_text()[-4000:]
    told = re.search(r"The cluster has 0 of 3 GPUs and 1 of 4 CPUs that the job needs; its autoscaler", job.output)
    assert told and "It has 4 GPUs" in job.output, job.output[-4000:]
