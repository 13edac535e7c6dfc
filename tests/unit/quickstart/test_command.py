"""The commands `openrlhf-stare quickstart` and `openrlhf-stare cpu-overrides`, as far as they go without a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_stare import runtime
from openrlhf_stare.driver import checks, flags, resources
from openrlhf_stare.driver import command as openrlhf_command
from openrlhf_stare.options import UsageError
from openrlhf_stare.quickstart import command

STARE = [sys.executable, "-m", "openrlhf_stare"]


@pytest.mark.parametrize(
    ("gpus", "needs", "colocated"),
    [
        (0, 3, False),  # processes that stand for GPUs
        (1, 1, True),
        (2, 2, False),
        (3, 3, False),
    ],
)
def test_the_job_fits_the_gpus_and_is_accepted(tmp_path, monkeypatch, gpus, needs, colocated):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "0" if gpus else "1")
    flat = flags.parse(command.job(gpus, tmp_path / "run", tmp_path / "prompts.jsonl", words=[]))
    assert checks.check(openrlhf_command.nested(flat)) == []
    args = openrlhf_command.settle(flat)
    assert resources.required(args).gpus == needs
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (colocated,) * 3
    assert args.vllm.enforce_eager == (gpus > 0) and (args.vllm.gpu_memory_utilization < 0.5) == (gpus > 0)
    assert not list(resources.uneven_batches(args))
    assert (args.policy_loss, args.entropy.schedule, args.entropy.target) == ("stare", "pi", "50%")
    assert all(Path(file).is_file() for file in args.reward.remote_url)


def test_another_loss_has_its_own_schedule(tmp_path):
    for words in (["--policy_loss", "openrlhf"], ["--policy_loss=kl_cov"]):
        assert "--entropy.schedule" not in command.job(0, tmp_path, tmp_path / "prompts.jsonl", words)


def test_the_cpu_can_be_insisted_on(monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    assert runtime.gpus() == 0


@pytest.mark.parametrize(("given", "steps"), [(None, 200), ("", 200), ("50", 50)])
def test_the_number_of_steps(monkeypatch, given, steps):
    monkeypatch.delenv("STEPS", raising=False)
    if given is not None:
        monkeypatch.setenv("STEPS", given)
    assert command.number_of_steps() == steps


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many"])
def test_what_is_no_number_of_steps(monkeypatch, given):
    monkeypatch.setenv("STEPS", given)
    with pytest.raises(UsageError, match="STEPS=.* is not a positive number"):
        command.number_of_steps()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "stare"),
        (["--policy_loss", "openrlhf"], "policy_loss-openrlhf"),
        (["--reward.remote_url", "/a b/reward.py"], "reward.remote_url-a-b-reward.py"),
        (["--x", "y" * 99], "x-" + "y" * 58),
        (["--logger.wandb.key", "f00", "--a", "b"], "a-b"),
        (["--a", "--logger.wandb.key=f00"], "a"),
    ],
)
def test_a_run_has_a_folder_that_is_named_after_its_flags(tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    run = command.new_folder(words)
    assert run.is_dir() and run.parent == tmp_path / "runs/quickstart" and run.name[16:] == name


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match=r"runs/quickstart/.*-stare cannot be made \(Not a directory\): go to"):
        command.new_folder([])


def test_help_and_the_overrides_need_no_torch(tmp_path):
    """As in an environment into which the wheel alone was installed."""
    (tmp_path / "torch.py").write_text("raise ImportError")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for words, said in (
        (["quickstart", "--help"], "STEPS=50 openrlhf-stare quickstart"),
        (["cpu-overrides"], "/cpu/"),
    ):
        done = subprocess.run([*STARE, *words], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and said in done.stdout, done
    assert "flash-attn ;" in Path(done.stdout.strip()).read_text()
