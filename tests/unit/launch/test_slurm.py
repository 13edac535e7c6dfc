"""launch/cluster/slurm.sh against stand-ins of Slurm's own programs, which say what they were asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = {
    "scontrol": 'printf "%s\\n" $NODE_NAMES',
    # As on a Debian node, whose /etc/hosts gives its name an address that leads nowhere else.
    "hostname": "echo 127.0.1.1",
    # Every step is written down. Ray's are not run, and its nodes are there at once.
    "srun": """
words=$(printf '%s\t' "NODE_IP=${NODE_IP:-}" "$@")
printf '%s\\0' "${words//$'\\n'/ }" >>"$STEPS" # at once, since steps run at the same time
[[ $* == *start_*.sh* || $* == *"import ray"* ]] && exit
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
}


@pytest.fixture
def slurm(tmp_path):
    """Run the script on nodes of these names; its steps as lists of words, and what its recipe saw."""
    for name, body in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    recipe = tmp_path / "recipe.sh"
    recipe.write_text('echo "$RAY_ADDRESS $NODES $GPUS_PER_NODE $*" >>"$SEEN"\n')

    def run(*nodes: str, flags: tuple[str, ...] = ()) -> tuple[list[list[str]], list[str]]:
        steps, seen = tmp_path / "steps", tmp_path / "seen"
        variables = {
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NODE_NAMES": " ".join(nodes),
            "STEPS": str(steps),
            "SEEN": str(seen),
            "SLURM_JOB_NODELIST": "all of them",
            "SLURM_JOB_NUM_NODES": str(len(nodes)),
            "SLURM_JOB_ID": "123456",
            "SLURM_CPUS_PER_TASK": "64",
            "SLURM_GPUS_ON_NODE": "8",
        }
        command = ["bash", ROOT / "launch/cluster/slurm.sh", recipe, *flags]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [step.strip().split("\t") for step in steps.read_text().split("\0")[:-1]], seen.read_text().splitlines()

    return run


def test_every_step_gets_the_cpus_of_the_allocation(slurm):
    steps, _ = slurm("127.0.0.1", "127.0.0.2")
    assert len(steps) == 6 and all("--cpus-per-task=64" in step for step in steps)


def test_ray_listens_where_the_other_node_reaches_it(slurm):
    steps, seen = slurm("127.0.0.1", "127.0.0.2", flags=("--train.seed", "1"))
    [head] = [step for step in steps if step[-3].endswith("start_head.sh")]
    [worker] = [step for step in steps if "start_worker.sh" in step[-1]]
    # The address of this machine from which a packet to the other node would go out.
    assert head[0] == "NODE_IP=127.0.0.1" and "--nodelist=127.0.0.1" in head
    assert "start_worker.sh 127.0.0.1 " in worker[-1] and "--nodelist=127.0.0.2" in worker
    assert seen == ["127.0.0.1:23456 2 8 --train.seed 1 --preflight", "127.0.0.1:23456 2 8 --train.seed 1"]


def test_one_node_needs_no_other(slurm):
    steps, seen = slurm("127.0.0.1")
    assert not [step for step in steps if "start_worker.sh" in step[-1]]
    assert seen[-1] == "127.0.0.1:23456 1 8 "
