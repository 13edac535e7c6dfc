"""The command as a user meets it who has mistyped something: a sentence, status 2, and no Ray."""

import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def job(tiny_task, tmp_path) -> list[str]:
    """The flags of a job that could start."""
    return f"""--actor.model_name_or_path {tiny_task["MODEL"]} --data.prompt_dataset {tiny_task["DATA"]}
        --data.input_key input --data.label_key label --data.max_len 32 --reward.remote_url {tiny_task["REWARD"]}
        --advantage_estimator group_norm --rollout.n_samples_per_prompt 8 --algo.kl.init_coef 0
        --actor.num_gpus_per_node 2 --vllm.num_engines 1 --ckpt.path {tmp_path}/checkpoints
        --ckpt.output_dir {tmp_path}/model""".split()


@pytest.fixture
def refusal(job, tmp_path):
    """What the command says of that job with the given flags."""

    def run(*words: str, **variables: str) -> str:
        sessions = tmp_path / "ray"
        sessions.mkdir()
        environment = {**os.environ, "RAY_TMPDIR": str(sessions), "RAY_ADDRESS": "local", **variables}
        command = [sys.executable, "-m", "openrlhf_stare.train_ray", *job, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2, done.stderr
        assert list(sessions.iterdir()) == []  # no Ray was started
        assert done.stderr.count("train_ray: error:") == 1 and "Traceback" not in done.stderr
        assert "Retry" not in done.stderr
        return done.stderr.strip().splitlines()[-1].removeprefix("train_ray: error: ")

    return run


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--stare.variant", "X1", "is not one of O1, C2"),
        ("--vllm.tensor_parallel_size", "2", "needs GPUs, and torch sees none here"),
        ("--actor.model_name_or_path", "/nowhere/model", "is not a folder on this machine"),
        ("--data.prompt_dataset", "/nowhere/prompts.jsonl", "is not a file on this machine"),
        ("--reward.remote_url", "/nowhere/reward.py", "is not a file on this machine"),
        ("--train.agent_func_path", "/nowhere/agent.py", "is not a file on this machine"),
        ("--data.max_len", "2048", "is more than the 64 positions of "),
        ("--ckpt.path", "/proc/nowhere", "cannot be written"),
    ],
)
def test_a_mistake_ends_the_command_before_ray(refusal, flag, value, sentence):
    assert refusal(flag, value).startswith(f"{flag} {value} {sentence}")


def test_an_assertion_of_openrlhf_ends_the_command_before_ray(refusal):
    said = refusal("--rollout.n_samples_per_prompt", "1")
    assert said == "OpenRLHF refuses these flags: group_norm requires n_samples_per_prompt > 1"


def test_a_hub_that_does_not_answer_is_asked_once(refusal, monkeypatch):
    """Its clients would try six times, and half a minute."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    said = refusal("--actor.model_name_or_path", "nobody/nothing", HF_ENDPOINT="http://127.0.0.1:1")
    assert said.startswith("--actor.model_name_or_path nobody/nothing cannot be read (")


NO_TRAINING = """
from openrlhf_stare import train_ray
train_ray.console.start_job = lambda *args: None
train_ray.train = lambda args, variables: print(variables)
train_ray.run()
"""


def test_without_the_hub_the_job_s_processes_are_told_so_too(job, tiny_task, tmp_path, monkeypatch):
    """On a Ray that is running they do not get the driver's environment. The model was downloaded before."""
    downloaded, commit = tmp_path / "hub/models--nobody--tiny", "0" * 40
    shutil.copytree(tiny_task["MODEL"], downloaded / "snapshots" / commit)
    (downloaded / "refs").mkdir()
    (downloaded / "refs/main").write_text(commit)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": "http://127.0.0.1:1"}
    command = [sys.executable, "-c", NO_TRAINING, *job, "--actor.model_name_or_path", "nobody/tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["{'HF_HUB_OFFLINE': '1'}"], done.stderr


def test_what_the_driver_does_not_see_need_not_stop_it(refusal):
    """The model is not looked for, so the cluster is the first to be missed."""
    said = refusal("--no_checks", "--actor.model_name_or_path", "/nowhere/model", RAY_ADDRESS="127.0.0.1:1")
    assert said.startswith("no Ray cluster answers at ") and "the address from RAY_ADDRESS" in said
