"""What OpenRLHF needs besides a GPU, and what is taken where that is missing: flash-attn, or a compiler for CUDA.

The two stand-ins are rows of the table in `substitutions.py`.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_stare.gpu import compiler
from openrlhf_stare.notices import notice
from openrlhf_stare.options import of_environment
from openrlhf_stare.rules import Finding
from openrlhf_stare.substitutions import COMPILER, FLASH_ATTN

# Whose Adam trains: torch or deepspeed. Set, it overrides the choice; the driver sets it for all the processes that it
# starts, since one optimizer step is made by all ranks alike.
ADAM_VARIABLE = "OPENRLHF_STARE_ADAM"
FLASH_ATTENTION = "flash_attention_2"  # OpenRLHF's default, and what it insists on for packed sequences
PYNVML = "The pynvml package is deprecated"  # a FutureWarning of torch.cuda, when it is imported
FLASHINFER = "VLLM_USE_FLASHINFER_SAMPLER"


def environment() -> dict[str, str]:
    """The variables that every process of a job needs here; a value that is set already wins."""
    quiet, asked = f"ignore:{PYNVML}:FutureWarning", os.environ.get("PYTHONWARNINGS", "")
    variables = {
        ADAM_VARIABLE: asked_adam() or ("torch" if compiler.missing() else "deepspeed"),
        "PYTHONWARNINGS": asked if quiet in asked else ",".join(filter(None, (quiet, asked))),
    }
    if compiler.missing():  # vLLM warms up with FlashInfer's sampler, which is compiled at its first use
        variables[FLASHINFER] = os.environ.get(FLASHINFER, "0")
    return variables


def asked_adam() -> str | None:
    """Whose Adam the user, or for the job's processes the driver, asks for; None for whatever can be had.

    Raises:
        UsageError: it is neither torch nor deepspeed.
    """
    return of_environment(ADAM_VARIABLE, "torch", "deepspeed")


def prepare_process() -> None:
    """What no variable can carry: DeepSpeed looks for ninja on the PATH, where it is not if the environment is not
    activated, and that is another folder on another node."""
    be_quiet()
    scripts, path = sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((scripts, path))


def be_quiet() -> None:
    """What PYTHONWARNINGS does, in a process that has started without it."""
    warnings.filterwarnings("ignore", PYNVML, FutureWarning)


def missing() -> tuple[str, ...]:
    """What is not here of all that the table has rows for."""
    without_compiler = (COMPILER,) if environment()[ADAM_VARIABLE] == "torch" else ()
    return without_compiler if has_flash_attn() else (FLASH_ATTN, *without_compiler)


def has_flash_attn() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def needs_flash_attn(args: SimpleNamespace) -> Iterator[Finding]:
    """The flags that cannot work without it, where it is not installed."""
    if args.ds.ring_attn_size > 1 and not has_flash_attn():
        yield Finding(
            f"--ds.ring_attn_size {args.ds.ring_attn_size}",
            "needs flash_attn, which is not installed",
            "use 1, or install it with FLASH_ATTN=1 bash launch/install.sh gpu, which takes a CUDA toolkit",
        )


def tell_of_torchs_adam() -> None:
    why = compiler.missing()
    cause = f", since {why}" if why else f", as {ADAM_VARIABLE} says"
    notice(f"the optimizer is torch's fused Adam, which takes the same steps as DeepSpeed's{cause}")


def set_arguments(args: SimpleNamespace, attention: str) -> None:
    """Without flash-attn give the models torch's attention, and say what that costs.

    Args:
        args: the nested arguments, once OpenRLHF has checked and adjusted them; with packed sequences it has put
            flash attention in the place of any other.
        attention: `--ds.attn_implementation` as the user gave it.
    """
    if not has_flash_attn():
        args.ds.attn_implementation = "sdpa" if attention == FLASH_ATTENTION else attention
        notice(
            f"flash_attn is not installed, so attention is {args.ds.attn_implementation}, slower on long and on "
            "packed sequences, and the training pass without --actor.fused_head takes more memory; docs/cluster.md "
            "says how to add it"
        )
