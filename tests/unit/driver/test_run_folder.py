"""Who may use the folder of --ckpt.path, and what is said of a job that finds no checkpoint there."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_stare.actor_group import checkpoints
from openrlhf_stare.driver import run_folder
from openrlhf_stare.options import UsageError

HOLD = """
import sys
import zipfile
from openrlhf_stare.driver import run_folder

with run_folder.held(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def job(path: Path, *, resumes: bool = False, critic: str | None = None, universal: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        ckpt=SimpleNamespace(path=str(path), load_enable=resumes),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        critic=SimpleNamespace(model_name_or_path=critic, num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(
            use_universal_ckpt=universal, param_dtype="bf16", zero_stage=3, ring_attn_size=1, tensor_parallel_size=1
        ),
    )


def finished(checkpoint: Path) -> None:
    checkpoints.begin(checkpoint)
    (checkpoint / checkpoints.METRIC).write_text("{}")
    checkpoints.finish(checkpoint, checkpoints.sizes_of(checkpoint, [checkpoint / checkpoints.METRIC]))


# Checkpoints of another run


def test_a_new_job_in_a_folder_with_checkpoints_of_another_is_refused_with_the_remedy(tmp_path):
    for step in (9, 10):
        finished(tmp_path / f"_actor/global_step{step}")
    with pytest.raises(UsageError) as refused:
        run_folder.check(job(tmp_path))
    assert str(refused.value) == (
        f"--ckpt.path {tmp_path} has checkpoints of another run (global_step9, global_step10): add "
        "--ckpt.load_enable to go on with that run, or give another folder"
    )
    assert run_folder.check(job(tmp_path, resumes=True)) is None


def test_the_job_is_told_what_the_driver_found_to_resume_from(tmp_path):
    def found(**named) -> list[str]:
        args = job(tmp_path, resumes=True, **named)
        run_folder.check(args)
        return args.ckpt.resume_from

    assert found() == []
    for step in (9, 10):
        finished(tmp_path / f"_actor/global_step{step}")
    assert found() == found(critic="model") == [f"{tmp_path}/_actor/global_step10"]
    finished(tmp_path / "_critic/global_step9")
    assert found(critic="model") == [f"{tmp_path}/_actor/global_step9", f"{tmp_path}/_critic/global_step9"]
    assert found(universal=True) == []


def test_a_damaged_checkpoint_is_somebody_s_too_and_one_that_was_only_begun_is_not(tmp_path):
    checkpoints.begin(tmp_path / "_actor/global_step1")
    assert run_folder.check(job(tmp_path)) is None
    finished(tmp_path / "_actor/global_step2")
    (tmp_path / "_actor/global_step2" / checkpoints.METRIC).unlink()
    with pytest.raises(UsageError, match=r"\(global_step2\)"):
        run_folder.check(job(tmp_path))
    with pytest.raises(
        UsageError, match=r"No checkpoint under .* is complete any more \(global_step2, global_step1\)"
    ):
        run_folder.check(job(tmp_path, resumes=True))
    assert run_folder.check(job(tmp_path, resumes=True, universal=True)) is None


def test_a_folder_that_cannot_be_read_is_refused_with_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "_actor").mkdir()

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refused)  # the tests may run as root, whom nothing is refused
    sentence = (
        rf"--ckpt.path {tmp_path} cannot be read \(Permission denied: {tmp_path}/_actor\): choose another folder"
    )
    for resumes in (False, True):
        with pytest.raises(UsageError, match=sentence):
            run_folder.check(job(tmp_path, resumes=resumes))
    # Of what is beside the folder nothing is known, and it does not matter.
    assert run_folder.check(job(tmp_path / "new", resumes=True)) == (
        f"no checkpoint in {tmp_path}/new: started from the beginning"
    )


@pytest.mark.parametrize("resumes", [False, True])
def test_below_a_file_there_is_nothing(tmp_path, resumes):
    (tmp_path / "file").touch()
    path = tmp_path / "file/checkpoints"
    said = f"no checkpoint in {path}: started from the beginning" if resumes else None
    assert run_folder.check(job(path, resumes=resumes)) == said


# No checkpoint to resume from


def test_a_job_that_finds_no_checkpoint_says_so(tmp_path):
    path = tmp_path / "nowhere/checkpoints"
    said = run_folder.check(job(path, resumes=True, critic="model"))
    assert said == f"no checkpoint in {path}: started from the beginning"
    assert run_folder.check(job(path)) is None


@pytest.mark.parametrize("mistyped", ["run/chekpoints", "run/checkpoint", "rnu/checkpoints", "run_2/checkpoints"])
def test_a_folder_of_nearly_the_same_name_with_checkpoints_is_named(tmp_path, mistyped):
    finished(tmp_path / "run/checkpoints/_actor/global_step1")
    (tmp_path / "rum/checkpoints").mkdir(parents=True)  # has none
    said = run_folder.check(job(tmp_path / mistyped, resumes=True))
    assert said == (
        f"no checkpoint in {tmp_path / mistyped}: started from the beginning (there are checkpoints in "
        f"{tmp_path}/run/checkpoints: was that meant?)"
    )


def test_a_folder_of_another_name_is_not_named(tmp_path):
    finished(tmp_path / "seven/checkpoints/_actor/global_step1")
    assert "was that meant" not in run_folder.check(job(tmp_path / "run/checkpoints", resumes=True))


# One job at a time


@pytest.fixture
def other(tmp_path):
    """Another job in the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def no_flock(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["flock", "no flock"])
def locks(request, monkeypatch) -> str:
    if request.param == "no flock":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    return request.param


def test_the_second_job_in_a_folder_is_refused_with_the_first_one_s_process(other, tmp_path, locks):
    before = (tmp_path / run_folder.LOCK).read_text()
    with pytest.raises(UsageError) as refused, run_folder.held(str(tmp_path)):
        pass
    sentence = (
        f"--ckpt.path {tmp_path} is used by another job (process {other.pid} on {socket.gethostname()}): end it or "
        "give another folder"
    )
    assert (
        str(refused.value)
        == sentence
        + {
            "flock": "",
            "no flock": f"; if it is gone, delete {tmp_path}/{run_folder.LOCK}",
        }[locks]
    )
    assert (tmp_path / run_folder.LOCK).read_text() == before


def test_a_killed_job_s_folder_is_taken_over_with_a_word(other, tmp_path, locks, capsys):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with run_folder.held(str(tmp_path)):
        assert json.loads((tmp_path / run_folder.LOCK).read_text())["pid"] == os.getpid()
    assert f"(process {other.pid} on {socket.gethostname()}) was ended by force" in capsys.readouterr().err


def test_after_a_job_has_ended_the_next_says_nothing(tmp_path, locks, capsys):
    for _ in range(2):
        with run_folder.held(str(tmp_path / "new/folder")):
            pass
    with pytest.raises(ZeroDivisionError), run_folder.held(str(tmp_path / "new/folder")):
        raise ZeroDivisionError
    with run_folder.held(str(tmp_path / "new/folder")):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["alive", "none"])
def test_another_process_of_the_same_number_is_not_the_owner(tmp_path, monkeypatch, pid, capsys):
    monkeypatch.setattr(fcntl, "flock", no_flock)
    owner = {"host": socket.gethostname(), "pid": pid, "started": 1}
    (tmp_path / run_folder.LOCK).write_text(json.dumps(owner))
    with run_folder.held(str(tmp_path)):
        assert json.loads((tmp_path / run_folder.LOCK).read_text())["pid"] == os.getpid()
    assert f"process {pid}" in capsys.readouterr().err


def test_of_another_host_s_process_nothing_is_known_without_flock(tmp_path, monkeypatch):
    (tmp_path / run_folder.LOCK).write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": 1}))
    with monkeypatch.context() as without:
        without.setattr(fcntl, "flock", no_flock)
        with pytest.raises(UsageError, match="process 1 on elsewhere"), run_folder.held(str(tmp_path)):
            pass
    with run_folder.held(str(tmp_path)):  # flock ends with its process on every host
        pass


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00\xff", '{"host": 1, "pid": "x"}'])
def test_a_damaged_lock_is_nobody_s(tmp_path, text, locks):
    (tmp_path / run_folder.LOCK).write_text(text)
    with run_folder.held(str(tmp_path)):
        assert json.loads((tmp_path / run_folder.LOCK).read_text())["pid"] == os.getpid()


def test_a_folder_that_cannot_be_written_is_refused():
    with pytest.raises(UsageError, match=r"--ckpt\.path /proc/nowhere cannot be written \("):
        with run_folder.held("/proc/nowhere"):
            pass


def finished_with(states: str, path: Path) -> None:
    """A checkpoint of one rank, whose optimizer has a file of that name."""
    checkpoint = path / "_actor/global_step1"
    finished(checkpoint)
    with zipfile.ZipFile(checkpoint / states, "w") as archive:
        archive.writestr("data.pkl", "")
    checkpoints.finish(checkpoint, checkpoints.sizes_of(checkpoint, [checkpoint / states]))


def test_a_checkpoint_of_a_job_that_computed_in_another_type_is_not_resumed_from(tmp_path):
    finished_with("zero_pp_rank_0_mp_rank_00_optim_states.pt", tmp_path)  # DeepSpeed's name in float32
    with pytest.raises(UsageError, match="whose job computed in float32, and this one computes in bfloat16: set "):
        run_folder.check(job(tmp_path, resumes=True))


def test_a_checkpoint_of_another_number_of_ranks_is_not_resumed_from(tmp_path):
    finished_with("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", tmp_path)
    with pytest.raises(UsageError, match="are 2 ranks, and .*/_actor/global_step1 was saved by 1: give what it was"):
        run_folder.check(job(tmp_path, resumes=True))


def test_a_critic_without_a_checkpoint_is_told_of(tmp_path):
    finished(tmp_path / "_actor/global_step1")
    assert run_folder.check(job(tmp_path, resumes=True)) is None
    said = run_folder.check(job(tmp_path, resumes=True, critic="model"))
    assert said == f"--ckpt.path {tmp_path} has no checkpoint of the critic, which starts anew"
