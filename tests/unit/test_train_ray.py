"""The command as a user meets it who has mistyped something: a sentence, status 2, and no Ray."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 120  # for a moment that a test waits for


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


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        ("", {"RAY_ADDRESS": "ray://127.0.0.1:1"}, "RAY_ADDRESS ray://127.0.0.1:1 is for Ray's client"),
        ("", {"RAY_ADDRESS": "http://127.0.0.1:8265"}, "RAY_ADDRESS http://127.0.0.1:8265 is where jobs are"),
        ("--use_ms", {}, "--use_ms needs the package modelscope, which is not installed"),
        (
            "--rollout.n_samples_per_prompt 3 --rollout.batch_size 2 --rollout.micro_batch_size 2",
            {},
            "--rollout.batch",
        ),
        ("--train.batch_size 3", {}, "--train.batch_size 3 cannot be split into micro-batches of "),
        (
            "--train.dynamic_batch_enable --rollout.batch_size 16 --train.batch_size 4096",
            {},
            "--train.batch_size 4096 leaves nothing to train on",
        ),
        (
            "--train.dynamic_batch_enable --advantage_estimator gae --critic.num_gpus_per_node 3",
            {},
            "--train.dynamic_batch_enable makes batches for the 2 data-parallel ranks of the actor",
        ),
        (
            "--train.colocate_all --vllm.num_engines 2 --advantage_estimator gae --critic.num_gpus_per_node 4",
            {},
            "--train.colocate_all has the 4 ranks of the critic",
        ),
        (
            "--ckpt.output_dir model",
            {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"working_dir": "/"}}'},
            "--ckpt.output_dir model is relative, and a job that was submitted with a working directory",
        ),
        (
            "--actor.num_gpus_per_node 64 --train.batch_size 1024 --no_checks",
            {},
            "the 65 GPUs of the job would be 65 processes",
        ),
        # OpenRLHF's defaults: eight ranks of a critic, too.
        (
            "--advantage_estimator gae --actor.num_gpus_per_node 256 --rollout.batch_size 4096 "
            "--train.batch_size 4096 --no_checks",
            {},
            "the 265 GPUs",
        ),
    ],
)
def test_what_could_not_start_or_would_train_nothing(refusal, words, variables, sentence):
    said = refusal(*words.split(), **variables)
    assert said.startswith(sentence) and "Traceback" not in said
    if "256" in words:
        assert "8 for the critic, which --advantage_estimator gae needs and group_norm does not" in said


HANGS = "import pathlib, time\npathlib.Path(__file__ + '.started').touch()\ntime.sleep(1000)\n"


@pytest.mark.parametrize("console", ["full", "compact"])
@pytest.mark.parametrize(
    ("number", "status", "last"),
    [(signal.SIGTERM, 143, "train_ray: error: ended by SIGTERM"), (signal.SIGINT, -2, "train_ray: interrupted")],
)
def test_a_signal_during_the_checks_ends_them_with_a_sentence(job, tmp_path, console, number, status, last):
    reward = tmp_path / "hangs.py"
    reward.write_text(HANGS)
    with started(*job, "--reward.remote_url", str(reward), "--console", console) as process:
        wait_for(process, Path(f"{reward}.started").exists, "the file was not imported")
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == status and said.splitlines()[-1] == last and "Traceback" not in said


def test_ctrl_c_has_its_status_whatever_runs_at_the_exit():
    code = """
import atexit, ctypes
from openrlhf_stare.driver import signals
with signals.told():
    # Python forgets here that it was interrupted.
    atexit.register(lambda: ctypes.pythonapi.PyRun_SimpleString(b"print('cleaned up')"))
    raise KeyboardInterrupt
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-2, "cleaned up\n", "train_ray: interrupted\n")


@pytest.mark.parametrize(
    "lost",
    [
        "class Interrupted:\n        def __del__(self):\n            {signal}\n    Interrupted()",
        "try:\n        {signal}\n    except:\n        pass",
    ],
    ids=["__del__", "except"],
)
@pytest.mark.parametrize(
    ("number", "status", "last"),
    [(signal.SIGTERM, 143, "train_ray: error: ended by SIGTERM"), (signal.SIGINT, -2, "train_ray: interrupted")],
)
def test_a_signal_at_a_moment_that_loses_it_ends_the_command_once(lost, number, status, last):
    """As imports have such moments, some in a thousand."""
    code = f"""
import os, signal, time
from openrlhf_stare.driver import signals
signal.signal(signal.SIGINT, signal.SIG_DFL)
with signals.told():
    {lost.format(signal=f"os.kill(os.getpid(), {number:d})")}
    print("lost", flush=True)
    try:
        time.sleep(60)
    finally:
        time.sleep(3 * signals.AGAIN_SECONDS)
        print("cleaned up", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (status, "lost\ncleaned up\n", f"{last}\n")


@pytest.mark.parametrize("seconds", [0, 0.3, 0.6, 1.0, 1.5])
def test_ctrl_c_while_modules_are_imported_gives_no_traceback(job, seconds):
    with started(*job) as process:
        for caught in (True, False):  # from when Python itself is there, until the command leaves SIGINT to the kernel
            told = f"SIGINT was not {'caught' if caught else 'left to the kernel'}, or too briefly to be seen"
            wait_for(process, lambda caught=caught: catches_sigint(process.pid) is caught, told, every=0.001)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGINT and "Traceback" not in said


def catches_sigint(pid: int) -> bool:
    [mask] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


def wait_for(process: subprocess.Popen, is_there: Callable[[], bool], missed: str, every: float = 0.1) -> None:
    """Wait until it is there, or the process has ended, whose status the test looks at."""
    end = time.monotonic() + SECONDS
    while not is_there() and process.poll() is None:
        if time.monotonic() > end:
            pytest.fail(f"{missed} in {SECONDS} s")
        time.sleep(every)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen]:
    """The command, which hears Ctrl-C even if the tests run in the background of a script."""
    with subprocess.Popen(
        [sys.executable, "-m", "openrlhf_stare.train_ray", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # for whose end a test that failed would wait


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
