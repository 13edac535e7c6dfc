"""Two Ray nodes with addresses of their own: network namespaces, joined by a virtual cable, started by launch/cluster.

The second node has OpenRLHF but not our package, which the submitted job brings along.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from jobs import ON_POLICY_KL, ROOT, end_processes, job_flags, marked, run_job

from openrlhf_stare.actor_group.checkpoints import newest_complete

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)
ACTIVE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # as with the virtual environment active
SUBMITTER = {**ACTIVE, "RAY_ADDRESS": "http://127.0.0.1:8265"}  # on the head node
TIME_LIMIT = 480  # seconds for a job that takes about a minute and a half on two free cores
PREFLIGHT = [sys.executable, "-m", "openrlhf_stare.train_ray", "--preflight"]


class Node:
    """A machine of its own, as far as its network and Ray's files go."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.files, self.mark = f"{name}{os.getpid()}", address, folder / name, ""
        self.files.mkdir()
        Path("/tmp/ray").mkdir(exist_ok=True)
        self._ip("netns", "add", self.name)

    def plug_in(self) -> None:
        """Once the cable is there."""
        for link in ("lo", "eth0"):
            self._ip("-n", self.name, "link", "set", link, "up")
        self._ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        # Programs ask for the way out to learn their own address.
        self._ip("-n", self.name, "route", "add", "default", "dev", "eth0")

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` on this node."""
        # Not from the checkout, which Ray would show to the workers of all nodes. With a TMPDIR of the user's, Ray's
        # files would be there, and both nodes' the same.
        script = 'mount --bind "$0" /tmp/ray && cd "$0" && RAY_TMPDIR=/tmp exec "$@"'
        return ["ip", "netns", "exec", self.name, "sh", "-c", script, str(self.files), *words]

    def start_ray(self, script: str, *words: str, **variables: str) -> None:
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, **ACTIVE, **marked(self.mark)}
        # gloo would take the interface that the machine's name leads to.
        environment |= {"NODE_IP": self.address, "GLOO_SOCKET_IFNAME": "eth0", "HF_HUB_OFFLINE": "1", **variables}
        environment["RAY_health_check_failure_threshold"] = "2"  # a lost node is given up after 6 s, and not after 15
        environment.pop("RAY_ADDRESS", None)
        with open(self.files / "ray.log", "a") as log:
            command = self.command(
                "bash", str(ROOT / f"launch/cluster/{script}.sh"), *words, "--block", "--num-cpus=4"
            )
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def end_ray(self) -> None:
        """As when the machine loses its power."""
        end_processes(self.mark, grace=0)

    def received(self) -> int:
        """Bytes that came over the cable."""
        [link] = json.loads(self._ip("-n", self.name, "-s", "-j", "link", "show", "eth0"))
        return link["stats64"]["rx"]["bytes"]

    def remove(self) -> None:
        self.end_ray()
        self._ip("netns", "delete", self.name)

    @staticmethod
    def _ip(*words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """The head with two GPUs, for an engine and a rank, and a worker with one, for the other rank."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "without").mkdir()
    (folder / "without/openrlhf_stare.py").write_text("raise ModuleNotFoundError('not on this node')\n")
    with ExitStack() as left:
        head, worker = Node("head", "10.77.0.1", folder), Node("worker", "10.77.0.2", folder)
        for node in (head, worker):
            left.callback(node.remove)
        cable = f"link add eth0 netns {head.name} type veth peer name eth0 netns {worker.name}"
        Node._ip(*cable.split())
        head.plug_in()
        worker.plug_in()
        head.start_ray("start_head", "--num-gpus=2")
        join(head, worker, folder / "without")
        yield head, worker


def join(head: Node, worker: Node, without: Path) -> None:
    """Start Ray on the worker and wait until both nodes are there."""
    count = f"import ray; ray.init('{head.address}:6379', log_to_driver=False); "
    count += "exit(sum(node['Alive'] for node in ray.nodes()) < 2)"
    for attempt in range(10):
        if attempt % 5 == 0:  # it gives up after a while if the head is not there yet
            worker.end_ray()
            worker.start_ray("start_worker", head.address, "--num-gpus=1", PYTHONPATH=str(without))
        with suppress(subprocess.TimeoutExpired):  # Ray itself tries for minutes
            command = head.command(sys.executable, "-c", count)
            if subprocess.run(command, capture_output=True, timeout=60).returncode == 0:
                return
        time.sleep(2)
    raise AssertionError("the two nodes did not make a cluster: " + (worker.files / "ray.log").read_text()[-2000:])


def submit(head: Node) -> list[str]:
    return head.command("bash", str(ROOT / "launch/cluster/submit.sh"))


def two_node_flags(model: Path, run: Path) -> list[str]:
    flags = job_flags(model, run) + ["--data.max_samples", "40", "--ckpt.save_steps", "1"]
    return flags + ["--actor.num_nodes", "2", "--actor.num_gpus_per_node", "1"]


def test_the_preflight_names_the_node_that_lacks_the_package(addends, tmp_path, nodes):
    head, worker = nodes
    flags, address = two_node_flags(addends, tmp_path), {"RAY_ADDRESS": f"{head.address}:6379"}
    job = run_job(flags, tmp_path, timeout=120, command=head.command(*PREFLIGHT), env=address)
    assert job.status == 2 and not job.left_over, job.output[-4000:]
    failed = [line.split() for line in job.output.splitlines() if " FAIL " in line]
    assert [line[:2] for line in failed] == [["package", worker.address]], job.output[-4000:]
    assert "submit with launch/cluster/submit.sh, which carries it" in job.output
    assert re.search(rf"^model +{head.address} +ok ", job.output, re.MULTILINE)


def test_a_submitted_preflight_brings_the_package_to_every_node(addends, tmp_path, nodes):
    head, worker = nodes
    flags = [*two_node_flags(addends, tmp_path), "--preflight"]
    job = run_job(flags, tmp_path, timeout=120, command=submit(head), env=SUBMITTER)
    assert job.status == 0, job.output[-4000:]
    for check in ("package", "versions", "checkpoints", "model", "data", "reward"):
        assert re.search(rf"^{check} +{head.address} {worker.address} +ok ", job.output, re.MULTILINE), job.output
    assert "3 of 3 GPUs" in job.output and "preflight: ready" in job.output


def test_a_job_on_two_nodes_that_loses_one_goes_on_when_it_is_back(addends, tmp_path, nodes):
    head, worker = nodes
    flags, log, before = two_node_flags(addends, tmp_path), tmp_path / "output.log", worker.received()
    killed = []

    def end_the_worker_after_three_steps(process, mark):
        deadline = time.monotonic() + TIME_LIMIT
        while process.poll() is None and not killed and time.monotonic() < deadline:
            if "Global step 3:" in log.read_text(errors="replace"):
                killed.append(time.monotonic())
                worker.end_ray()
            time.sleep(0.2)

    job = run_job(
        flags,
        tmp_path,
        timeout=TIME_LIMIT,
        command=submit(head),
        env=SUBMITTER,
        meanwhile=end_the_worker_after_three_steps,
    )
    assert killed, job.output[-4000:]
    print(f"ended {time.monotonic() - killed[0]:.0f} s after the node, {worker.received() - before} bytes came")
    # A rank on each node: this node's lines bear no address, the other's do.
    assert re.search(rf"StarePolicyActor pid=\d+, ip={worker.address}", job.output), job.output[-4000:]
    assert worker.received() - before > 10 * (addends / "model/model.safetensors").stat().st_size
    assert len(job.scalars["actor_grad_norm"]) >= 3
    assert all(abs(value) < ON_POLICY_KL for value in job.scalars["vllm_kl"])
    # The end.
    assert job.status not in (0, 124), job.output[-4000:]
    assert re.search(
        rf"train_ray: error: (an actor rank|the trainer) \(\w+, process \d+ on {worker.address}\) died:"
        r".*node.*--ckpt.load_enable",
        job.output,
    ), job.output[-4000:]
    kept, _ = newest_complete([tmp_path / "checkpoints/_actor"])
    assert kept in {f"global_step{step}" for step in range(2, 10)}
    # The node is back.
    join(head, worker, worker.files.parent / "without")
    flags += ["--ckpt.load_enable", "--console", "compact"]
    job = run_job(flags, tmp_path, timeout=TIME_LIMIT, command=submit(head), env=SUBMITTER)
    assert job.status == 0, job.output[-4000:]
    assert re.search("^step 10/10 .* reward ", job.output, re.MULTILINE), job.output
    assert f"Resuming from checkpoint {kept}" in job.output
    assert newest_complete([tmp_path / "checkpoints/_actor"])[0] == "global_step10"
