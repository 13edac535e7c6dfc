"""What the acceptance on a GPU would run, by the number of GPUs, and what it makes of a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def accept(
    checkout: Path, gpus: int, fails: str = "nothing", **variables: str
) -> tuple[subprocess.CompletedProcess, list[str], str]:
    """The script with stand-ins for nvidia-smi, the installer, the quickstart and Python, which write down their
    words. Returns what was run and the table."""
    (checkout / "bin").mkdir()
    (checkout / ".venv/bin").mkdir(parents=True)
    shutil.copytree(ROOT / "launch/addends", checkout / "launch/addends")
    for name in ("gpu_acceptance.sh", "run_job.sh"):
        shutil.copy(ROOT / "launch" / name, checkout / "launch")
    numbers = "\n".join(f"echo {number}" for number in range(gpus)) or "echo 'No devices were found'; exit 6"
    programs = {
        "bin/nvidia-smi": f"""case "$*" in
*=index*) {numbers} ;;
*--loop-ms*) sleep 0.5; printf '1200\\n2400\\n'; exec sleep 60 ;;
*) echo 'NVIDIA H100, 81559 MiB, 580.1' ;;
esac""",
        "launch/install.sh": f'echo "install $*" >>{checkout}/ran',
        "launch/quickstart.sh": f"""echo "quickstart on $CUDA_VISIBLE_DEVICES $*" >>{checkout}/ran
case "quickstart $*" in *{fails}*) echo 'train_ray: error: broke | down'; exit 1 ;; esac
sleep 0.2
echo 'quickstart: report: runs/quickstart/some/report.html'""",
        ".venv/bin/python": f"""case "$*" in
"- "*) echo "| $2: timing/step_total | $3 |" ;;
*" -") echo versions ;;
*) echo "$*" >>{checkout}/ran; echo "figures of $*" ;;
esac""",
    }
    for place, script in programs.items():
        (checkout / place).write_text(f"#!/bin/sh\n{script}\n")
        (checkout / place).chmod(0o755)
    environment = os.environ | {"PATH": f"{checkout}/bin:{os.environ['PATH']}"} | variables
    command = ["bash", checkout / "launch/gpu_acceptance.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    ran = (checkout / "ran").read_text().splitlines() if (checkout / "ran").exists() else []
    tables = list(checkout.glob("runs/gpu_acceptance/*/table.md"))
    return done, ran, tables[0].read_text() if tables else ""


def what(ran: list[str]) -> list[str]:
    return [line.split("tests/benchmarks/")[-1].split(" --")[0] for line in ran if "gpu_parts" not in line]


ONE = ["install gpu", "overhead.py", "selection.py", "quickstart on 0 ", *["quickstart on 0"] * 2]
TWO = ["quickstart on 0,1 ", "quickstart on 0,1", "selection.py", "overhead.py"]


@pytest.mark.parametrize(
    ("gpus", "expected"), [(1, ONE), (2, [*ONE, *TWO]), (8, [*ONE, *TWO, "quickstart on 0,1,2 "])]
)
def test_as_much_is_tried_as_the_gpus_allow(tmp_path, gpus, expected):
    done, ran, table = accept(tmp_path, gpus)
    assert done.returncode == 0 and done.stderr == "", done
    assert what(ran) == expected
    assert "NVIDIA H100, 81559 MiB, 580.1" in table and "**failed**" not in table
    assert "| quickstart_one: most memory in use on a GPU | 2400 MiB |" in table
    assert "| quickstart_one: timing/step_total | runs/quickstart/some |" in table
    assert "figures of tests/benchmarks/overhead.py --only steps --device cuda --ranks 1" in table
    assert table in done.stdout


def test_of_a_shared_machine_it_takes_the_gpus_that_are_the_user_s(tmp_path):
    done, ran, _ = accept(tmp_path, 8, CUDA_VISIBLE_DEVICES="5,3")
    expected = [word.replace("0,1", "5,3").replace("on 0", "on 5") for word in [*ONE, *TWO]]
    assert done.returncode == 0 and what(ran) == expected


def test_what_fails_is_in_the_table_and_the_rest_is_tried(tmp_path):
    done, ran, table = accept(tmp_path, 1, fails="--actor.fused_head")
    assert done.returncode == 1 and len(ran) == 7
    assert "| quickstart_one_fused_head | **failed**: train_ray: error: broke / down |" in table
    assert "| quickstart_one_openrlhf | done in" in table


@pytest.mark.parametrize(("gpus", "variables"), [(0, {}), (1, {"CUDA_VISIBLE_DEVICES": "-1"})])
def test_without_a_gpu_it_says_so(tmp_path, gpus, variables):
    done, ran, _ = accept(tmp_path, gpus, **variables)
    assert (done.returncode, done.stderr) == (
        2,
        "gpu_acceptance: nvidia-smi lists no GPU here, or CUDA_VISIBLE_DEVICES hides all\n",
    ) and ran == []
