"""Whether the models of a job compute in float32 or in bfloat16 on this CPU.

Without units for bfloat16 a CPU multiplies matrices in it many times slower than in float32. A job saves its models in
the type that it computed in: rounding to bfloat16 can undo what a few small steps have learned.
"""

from __future__ import annotations

from pathlib import Path

from openrlhf_stare.options import of_environment

# Set to float32 or bfloat16 it overrides the choice; the driver sets it for all the processes that it starts.
VARIABLE = "OPENRLHF_STARE_CPU_DTYPE"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
# OpenRLHF's name of bfloat16, and ours beside it of float32, which it has no name for.
SHORT = {BFLOAT16: "bf16", FLOAT32: "fp32"}
UNITS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last on ARM
CPU_INFO = Path("/proc/cpuinfo")


def chosen() -> str:
    """The type to compute in: as the variable says, else float32 unless the CPU has units for bfloat16.

    Raises:
        UsageError: the variable names another type.
    """
    return of_environment(VARIABLE, FLOAT32, BFLOAT16) or (BFLOAT16 if has_units() else FLOAT32)


def has_units() -> bool:
    """Whether the CPU multiplies in bfloat16 by itself, as far as Linux tells."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:  # not Linux
        return False
    return any(line.startswith(("flags", "Features")) and not UNITS.isdisjoint(line.split()) for line in lines)


def sentence() -> str:
    """What the user is told of a job in float32."""
    reason = f"as {VARIABLE} says" if has_units() else "since this CPU has no units for bfloat16 (AVX512-BF16 or AMX)"
    return f"The models compute in float32, {reason}, and are saved in it"
