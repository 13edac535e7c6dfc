"""What lets OpenRLHF, DeepSpeed and vLLM run where there is no GPU. Imported only there.

`environment` and `set_arguments` say how a job is set up, `needs_a_gpu` what cannot work. The work-arounds are rows of
the table in `substitutions.py`, each of which waits for the import of what it changes.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare.cpu import precision, threads
from openrlhf_stare.notices import notice
from openrlhf_stare.rules import Finding


def environment() -> dict[str, str]:
    """The variables that every process of a job needs here; a value that is set already wins."""
    defaults = {
        "DS_ACCELERATOR": "cpu",
        precision.VARIABLE: precision.chosen(),
        # Of what is neither rank nor engine, nor has had its threads chosen yet.
        "OMP_NUM_THREADS": "1",
        # GiB. Without it vLLM budgets from one NUMA node and may refuse to start.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # vLLM's engine core runs its worker itself: one process less to start.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM's CPU sampler would compile a function with g++ at the first token, and dies where there is none.
        "TORCH_COMPILE_DISABLE": "1",
        # glibc would give a freed tensor of more than 32 MiB back to the kernel, which clears its pages for the next.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
    }
    if "OMP_NUM_THREADS" not in os.environ or threads.VARIABLE in os.environ:
        defaults[threads.VARIABLE] = "1,1"
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def float32() -> bool:
    """Whether models compute in float32 here, whatever `--ds.param_dtype` says."""
    return precision.chosen() == precision.FLOAT32


def needs_a_gpu(args: SimpleNamespace) -> Iterator[Finding]:
    """The flags that cannot work on a CPU; some would hang."""
    switches = {
        "--vllm.sync_with_ray": args.vllm.sync_with_ray,
        "--vllm.enable_sleep": args.vllm.enable_sleep and args.train.colocate_all,  # OpenRLHF ignores it otherwise
        "--ds.enable_sleep": args.ds.enable_sleep,
        "--ds.use_liger_kernel": args.ds.use_liger_kernel,
        "--ds.deepcompile": args.ds.deepcompile,
    }
    sizes = {
        "--vllm.tensor_parallel_size": args.vllm.tensor_parallel_size,
        "--ds.tensor_parallel_size": args.ds.tensor_parallel_size,
        "--ds.ring_attn_size": args.ds.ring_attn_size,
    }
    elsewhere = "or set OPENRLHF_STARE_CPU=0 in the job's environment if the Ray cluster has GPUs"
    for flag, given in switches.items():
        if given:
            yield Finding(flag, "needs a GPU, and torch sees none here", f"leave it out, {elsewhere}")
    for flag, size in sizes.items():
        if size > 1:
            yield Finding(f"{flag} {size}", "needs GPUs, and torch sees none here", f"use 1, {elsewhere}")


def head_sizes() -> list[int]:
    """The sizes of an attention head that vLLM's engine can have here, as its source says; importing it takes long."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm and vllm.submodule_search_locations
    source = Path(vllm.submodule_search_locations[0], "v1/attention/backends/cpu_attn.py").read_text()
    [answer] = [
        node.body[-1]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "get_supported_head_sizes"
    ]
    assert isinstance(answer, ast.Return) and answer.value
    return ast.literal_eval(answer.value)


def set_arguments(args: SimpleNamespace) -> None:
    """Give the flags that have one possible value on a CPU that value, once OpenRLHF has checked and adjusted them.

    Where models compute in float32 `args.ds.param_dtype` becomes "fp32", from which the type of all that trains and
    of what is saved follows.
    """
    args.ds.attn_implementation = "sdpa"  # flash attention is a GPU kernel
    args.vllm.enforce_eager = True  # there is no CUDA graph to capture
    args.vllm.sync_backend = "gloo"
    if float32():
        args.ds.param_dtype = precision.SHORT[precision.FLOAT32]
        notice(precision.sentence())
    threads.set_for_job(args)
