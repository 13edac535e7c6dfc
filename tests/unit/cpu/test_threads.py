"""How the cores are shared between ranks and engines."""

import os

import pytest

from openrlhf_stare import cpu
from openrlhf_stare.cpu import threads
from openrlhf_stare.driver import command, flags

LARGE = 500 * 2**20
JOB = """--vllm.num_engines 1 --reward.remote_url reward.py --rollout.n_samples_per_prompt 2
    --actor.num_gpus_per_node 2 --algo.kl.init_coef 0 --advantage_estimator group_norm""".split()


@pytest.mark.parametrize(
    ("cores", "in_turns", "at_once"),
    [(2, (1, 2), (1, 1)), (4, (2, 4), (1, 1)), (8, (4, 8), (2, 2)), (16, (8, 16), (5, 5))],
)
def test_two_ranks_and_an_engine_share_the_cores_with_a_large_model(cores, in_turns, at_once):
    assert threads.choose(cores, 2, 1, LARGE, at_once=False) == in_turns
    assert threads.choose(cores, 2, 1, LARGE, at_once=True) == at_once
    assert threads.choose(cores, 2, 1, None, at_once=False) == in_turns  # a model of the Hub


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("engines", [1, 2])
def test_what_works_at_once_fits_the_cores(cores, ranks, engines):
    of_rank, of_engine = threads.choose(cores, ranks, engines, LARGE, at_once=False)
    assert of_rank * ranks <= max(cores, ranks) and of_engine * engines <= max(cores, engines)
    of_rank, of_engine = threads.choose(cores, ranks, engines, LARGE, at_once=True)
    assert of_rank * ranks + of_engine * engines <= max(cores, ranks + engines)


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
def test_a_small_model_gets_one_thread(cores):
    assert threads.choose(cores, 2, 1, threads.SMALL - 1, at_once=False) == (1, 1)


@pytest.fixture
def job(monkeypatch, tmp_path):
    """The arguments of a job on 8 cores, with a model of so many bytes."""
    monkeypatch.setattr(threads.cores, "usable", lambda: 8)
    for name in ("OMP_NUM_THREADS", threads.VARIABLE):
        monkeypatch.delenv(name, raising=False)

    def of(size: int, *more: str):
        with open(tmp_path / "model.safetensors", "wb") as file:
            file.truncate(size)  # takes no room on the disk
        return command.settle(flags.parse([*JOB, "--actor.model_name_or_path", str(tmp_path), *more]))

    return of


@pytest.mark.parametrize(
    ("size", "more", "expected"),
    [
        (LARGE, "", "4,8"),
        (LARGE, "--train.async_enable", "2,2"),
        (LARGE, "--advantage_estimator gae --critic.num_gpus_per_node 2", "2,8"),
        (LARGE, "--actor.num_nodes 2", "2,8"),
        (LARGE, "--reward.remote_url= --reward.model_name_or_path /reward --reward.num_gpus_per_node 2", "2,8"),
        (2**20, "", "1,1"),
    ],
)
def test_the_processes_of_a_job_are_told(job, monkeypatch, size, more, expected):
    monkeypatch.setattr(os, "environ", os.environ | cpu.environment())  # as in every process with the CPU runtime
    threads.set_for_job(job(size, *more.split()))
    assert cpu.environment()[threads.VARIABLE] == expected
    assert cpu.environment()["OMP_NUM_THREADS"] == "1"  # of the processes that are neither


def test_omp_num_threads_wins(job, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    threads.set_for_job(job(LARGE))
    assert cpu.environment()["OMP_NUM_THREADS"] == "3" and threads.VARIABLE not in cpu.environment()
    assert threads.of(threads.OF_RANK) is None
