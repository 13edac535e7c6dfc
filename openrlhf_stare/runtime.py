"""The one place that chooses between the CPU runtime (`cpu/`) and none, and that imports it. A GPU needs none."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace

from openrlhf_stare.options import UsageError
from openrlhf_stare.substitutions import OPENRLHF, TABLE, Substitution

# Set to 1 or 0 it overrides the choice; the driver sets it for all the processes it starts.
CPU_VARIABLE = "OPENRLHF_STARE_CPU"
# A resource of the Ray that `own_ray` sets up, by which it is known.
OWN_RAY = "openrlhf_stare_on_cpu"


def on_cpu() -> bool:
    """Whether this process is to use the CPU runtime: as the variable says, else whether torch sees no GPU."""
    if CPU_VARIABLE in os.environ:
        return os.environ[CPU_VARIABLE] == "1"
    import torch

    return not torch.cuda.is_available()


def _chosen() -> ModuleType | None:
    """The CPU runtime, or None."""
    if not on_cpu():
        return None
    from openrlhf_stare import cpu

    return cpu


def environment() -> dict[str, str]:
    """The variables that carry the choice, and what follows from it, to every process of a job."""
    cpu = _chosen()
    return {CPU_VARIABLE: "1", **cpu.environment()} if cpu else {CPU_VARIABLE: "0"}


def prepare_process() -> None:
    """Make OpenRLHF importable in this process where there is no GPU; without effect where there is one."""
    if cpu := _chosen():
        os.environ.update(environment())
        cpu.install()


def substitutions() -> tuple[Substitution, ...]:
    """The rows of the table that hold in this process."""
    return TABLE if on_cpu() else OPENRLHF


def check_arguments(args: SimpleNamespace) -> None:
    """Refuse the flags that cannot work on a CPU, if this is one.

    Raises:
        UsageError: a flag asks for what needs a GPU.
    """
    if cpu := _chosen():
        cpu.check_arguments(args)


def set_arguments(args: SimpleNamespace) -> None:
    """Give the flags that have one possible value on a CPU that value, if this is one."""
    if cpu := _chosen():
        cpu.set_arguments(args)


def check_cluster(available: dict[str, float]) -> None:
    """Refuse a cluster with real GPUs whose driver sees none.

    Raises:
        UsageError: the driver's choice of the CPU runtime is wrong for the cluster.
    """
    accelerators = [name for name in available if name.startswith("accelerator_type:")]
    if accelerators and on_cpu() and OWN_RAY not in available:
        raise UsageError(
            f"torch sees no GPU where the driver runs, but the Ray cluster has {', '.join(accelerators)}: "
            f"set {CPU_VARIABLE}=0 in the job's environment"
        )


def float32() -> bool:
    """Whether the models of a job compute in float32 on this machine, whatever `--ds.param_dtype` says."""
    cpu = _chosen()
    return bool(cpu) and cpu.float32()


def own_ray(gpus: int, cpus: int) -> dict:
    """The resources of the Ray that a driver on the CPU runtime starts by itself: GPUs and CPUs as numbers, whatever
    the machine has. Otherwise Ray counts them itself."""
    if not on_cpu():
        return {}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray starts with no more GPUs than it lists
    return {"num_gpus": gpus, "num_cpus": max(cpus, os.cpu_count() or 1), "resources": {OWN_RAY: 1}}
