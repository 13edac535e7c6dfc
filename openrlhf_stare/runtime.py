"""The one place that chooses between the CPU runtime and none (a GPU needs none)."""

from __future__ import annotations

import os

# Set to 1 or 0 it overrides the choice; the driver sets it for all the processes it starts.
CPU_VARIABLE = "OPENRLHF_STARE_CPU"


def on_cpu() -> bool:
    """Whether this process is to use the CPU runtime: as the variable says, else whether torch sees no GPU."""
    if CPU_VARIABLE in os.environ:
        return os.environ[CPU_VARIABLE] == "1"
    import torch

    return not torch.cuda.is_available()


def prepare_process() -> None:
    """Make OpenRLHF importable in this process where there is no GPU; without effect where there is one."""
    if on_cpu():
        from openrlhf_stare import cpu

        os.environ.update(cpu.environment())
        cpu.install()
