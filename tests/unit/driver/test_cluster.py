"""The Ray that a job joins, and the settings that it gives to all its processes."""

import json
import signal
import socket
from types import SimpleNamespace

import pytest

from openrlhf_stare import worker
from openrlhf_stare.cpu import precision
from openrlhf_stare.driver import cluster
from openrlhf_stare.driver.cluster import check_that_it_answers, job_wide
from openrlhf_stare.gpu import compiler
from openrlhf_stare.options import UsageError

OPENRLHFS = {"env_vars": {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}}
CPU_VARIABLES = """DS_ACCELERATOR OMP_NUM_THREADS VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND
    VLLM_ENABLE_V1_MULTIPROCESSING TORCH_COMPILE_DISABLE OPENRLHF_STARE_CPU_DTYPE OPENRLHF_STARE_CPU_THREADS
    OPENRLHF_STARE_ADAM MALLOC_MMAP_MAX_ MALLOC_TRIM_THRESHOLD_""".split()


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    for name in CPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(precision, "has_units", lambda: False)


@pytest.fixture
def submit(monkeypatch):
    """Be the entry point of a job that was submitted with this runtime environment."""

    def submitted(runtime_env):
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": runtime_env}))

    return submitted


# Ray's runtime environment


def test_openrlhfs_variables_are_kept_and_ours_added():
    env = job_wide(OPENRLHFS)
    assert env["worker_process_setup_hook"] == "openrlhf_stare.worker.install"
    assert env["env_vars"] == {
        "TOKENIZERS_PARALLELISM": "true",
        "NCCL_DEBUG": "WARN",
        "OPENRLHF_STARE_CPU": "1",
        "OPENRLHF_STARE_CPU_DTYPE": "float32",
        "OPENRLHF_STARE_CPU_THREADS": "1,1",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCH_COMPILE_DISABLE": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "1099511627776",
    }
    assert OPENRLHFS == {"env_vars": {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}}


def test_with_a_gpu_the_workers_are_told_so_and_get_no_variable_of_the_cpu_runtime(monkeypatch):
    told = {"OPENRLHF_STARE_CPU": "0", "OPENRLHF_STARE_ADAM": "torch"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    monkeypatch.setattr(compiler, "missing", lambda: None)
    env = job_wide(OPENRLHFS)
    told["PYTHONWARNINGS"] = "ignore:The pynvml package is deprecated:FutureWarning"
    assert env["env_vars"] == {**OPENRLHFS["env_vars"], **told}
    assert env["worker_process_setup_hook"] == worker.HOOK


def test_what_the_user_has_set_wins(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert job_wide(OPENRLHFS)["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == "40"


def test_any_other_key_of_openrlhfs_is_kept():
    assert job_wide({"working_dir": "here"})["working_dir"] == "here"
    assert job_wide({})["env_vars"]["DS_ACCELERATOR"] == "cpu"


def test_the_values_of_a_submitted_job_win_and_its_keys_are_left_out_of_ours(submit):
    """Ray refuses a key that is in both, even with equal values."""
    submit({"working_dir": "there", "env_vars": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "OTHER": "1"}})
    env = job_wide({**OPENRLHFS, "working_dir": "here"})
    assert env.keys() == {"worker_process_setup_hook", "env_vars"}
    assert env["env_vars"].keys().isdisjoint({"NCCL_DEBUG", "OMP_NUM_THREADS", "OTHER"})
    assert env["env_vars"]["TOKENIZERS_PARALLELISM"] == "true"
    assert env["env_vars"]["DS_ACCELERATOR"] == "cpu"


@pytest.mark.parametrize("runtime_env", [None, {}, {"env_vars": {}}], ids=str)
def test_a_job_submitted_with_nothing_of_its_own(submit, runtime_env):
    expected = job_wide(OPENRLHFS)
    submit(runtime_env)
    assert job_wide(OPENRLHFS) == expected


def test_a_submitted_job_may_bring_our_hook(submit):
    submit({"worker_process_setup_hook": worker.HOOK})
    assert "worker_process_setup_hook" not in job_wide(OPENRLHFS)


def test_a_submitted_job_may_not_bring_another_hook(submit):
    submit({"worker_process_setup_hook": "my.module.hook"})
    with pytest.raises(UsageError, match="my.module.hook.*leave it out"):
        job_wide(OPENRLHFS)


def test_ray_merges_the_two_without_a_conflict(submit):
    from ray.runtime_env.runtime_env import _merge_runtime_env

    theirs = {"working_dir": "there", "env_vars": {"NCCL_DEBUG": "INFO"}, "worker_process_setup_hook": worker.HOOK}
    submit(theirs)
    merged = _merge_runtime_env(theirs, job_wide({**OPENRLHFS, "working_dir": "here"}))
    assert merged["working_dir"] == "there"
    assert merged["env_vars"]["NCCL_DEBUG"] == "INFO"
    assert merged["env_vars"]["OPENRLHF_STARE_CPU"] == "1"
    assert merged["worker_process_setup_hook"] == worker.HOOK


# The cluster to join


def test_auto_where_no_ray_runs_is_refused(monkeypatch):
    from ray._private import services

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda temp_dir: None)
    with pytest.raises(UsageError, match="RAY_ADDRESS auto finds no Ray .* set RAY_ADDRESS=local"):
        cluster.running_cluster()


def test_a_ray_of_another_version_is_told(monkeypatch):
    from ray._private.utils import check_version_info

    def init(**arguments):
        check_version_info({"ray_version": "2.0.0", "python_version": "3.9.0"}, "this machine", True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(cluster, "running_cluster", lambda: address)
        with pytest.raises(UsageError, match=f"^the Ray at {address} .*Ray: 2.0.0 .*: install the same on all nodes$"):
            cluster.start(init, SimpleNamespace(preflight=False), {})


@pytest.fixture
def joined(monkeypatch):
    """A job that needs 3 GPUs joins a cluster of 4, of which so many are free."""
    import ray

    from openrlhf_stare.driver import scaling

    def with_free(gpus: int) -> SimpleNamespace:
        monkeypatch.setattr(cluster, "running_cluster", lambda: "10.0.0.1:6379")
        monkeypatch.setattr(cluster, "check_that_it_answers", lambda address: None)
        monkeypatch.setattr(cluster, "unfit", lambda args, available: ())
        monkeypatch.setattr(cluster.resources, "required", lambda args: cluster.resources.Needs(3, 3, ()))
        monkeypatch.setattr(scaling, "wait_for_resources", lambda args: None)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 4.0, "CPU": 8.0})
        monkeypatch.setattr(ray, "available_resources", lambda: {"GPU": float(gpus), "CPU": 8.0} if gpus else {})
        return SimpleNamespace(preflight=False)

    return with_free


@pytest.mark.parametrize("free", [0, 2, 3])
def test_a_job_whose_gpus_are_taken_says_what_it_waits_for(joined, capsys, free):
    cluster.start(lambda **settings: None, joined(free), {})
    sentence = f"The job needs 3 GPUs, and {free} are free: it waits until other jobs end (`ray job list`)"
    assert (sentence in capsys.readouterr().err) == (free < 3)


@pytest.mark.parametrize("free", [0, 2, 3])
def test_the_preflight_says_that_gpus_are_taken(joined, monkeypatch, free):
    from openrlhf_stare.driver import preflight

    args = joined(free)
    args.preflight = True
    monkeypatch.setattr(preflight, "_alive", lambda: [{}])
    monkeypatch.setattr(preflight.cluster, "start", lambda *of: None)
    [row] = preflight._ask_cluster(args, {})
    taken = f"the job needs 3 GPUs, and {free} of 4 are free: end the other jobs (`ray job list`)"
    assert row.ok == (free == 3) and row.found.startswith("3 of 4 GPUs, 3 of 8 CPUs" if row.ok else taken)


def test_a_cluster_that_listens_is_joined():
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_that_it_answers(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(("given", "source"), [("127.0.0.1:1", "RAY_ADDRESS"), (None, "the last `ray start`")])
def test_a_cluster_that_is_gone_is_refused_at_once(monkeypatch, given, source):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given:
        monkeypatch.setenv("RAY_ADDRESS", given)
    sentence = f"no Ray cluster answers at 127.0.0.1:1, the address from {source}.*RAY_ADDRESS=local"
    with pytest.raises(UsageError, match=sentence):
        check_that_it_answers("127.0.0.1:1")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://10.0.0.1:10001", "is for Ray's client, through which OpenRLHF cannot train: give the HOST:PORT"),
        ("http://10.0.0.1:8265", "is where jobs are submitted: submit this one with launch/cluster/submit.sh"),
        ("10.0.0.1", "is no HOST:PORT: give the HOST:PORT of its head"),
        ("head:abc", "is no HOST:PORT: give"),
        *((address, None) for address in ("10.0.0.1:6379", "[::1]:6379", "local", "auto", "")),
    ],
)
def test_an_address_of_another_kind_is_refused(monkeypatch, address, said):
    monkeypatch.setenv("RAY_ADDRESS", address)
    found = [str(finding) for finding in cluster.address_for_others()]
    assert found == [] if said is None else found[0].startswith(f"RAY_ADDRESS {address} {said}")


def test_sigterm_stays_ours_while_ray_starts(monkeypatch):
    import ray._private.utils

    monkeypatch.setattr(cluster, "running_cluster", lambda: "10.0.0.1:6379")
    monkeypatch.setattr(cluster, "check_that_it_answers", lambda address: None)
    before = signal.getsignal(signal.SIGTERM)
    init = lambda **settings: ray._private.utils.set_sigterm_handler(lambda number, frame: None)  # noqa: E731
    cluster.start(init, SimpleNamespace(preflight=True), {})
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("running", [None, "10.0.0.1:6379"])
def test_only_a_ray_of_the_jobs_own_is_told_to_listen_on_loopback(monkeypatch, running):
    monkeypatch.setattr(cluster, "running_cluster", lambda: running)
    monkeypatch.setattr(cluster, "check_that_it_answers", lambda address: None)
    monkeypatch.setattr(cluster.resources, "required", lambda args: cluster.resources.Needs(1, 2, ()))
    given: dict = {}
    cluster.start(lambda **settings: given.update(settings), SimpleNamespace(preflight=True), {})
    assert given.get("_node_ip_address") == (None if running else "127.0.0.1")
