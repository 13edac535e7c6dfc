"""Writes the byte code of what a job imports, and of little else: .venv/bin/python launch/byte_code.py

The installer calls it once. Without it each of a job's processes compiles some thousand modules at its first start,
and at every start where PYTHONDONTWRITEBYTECODE is set.
"""

import gc
import multiprocessing
import py_compile
import re
import sysconfig
import warnings
from pathlib import Path

# Of the packages with more source than SMALL these, and all of the smaller ones.
LARGE = """PIL accelerate aiohttp cuda datasets deepspeed fsspec google grpc huggingface_hub liger_kernel llvmlite
mistral_common mpmath networkx numba
numpy openai openrlhf opentelemetry pandas peft pyarrow pydantic ray rich setuptools sympy tensorboard torch torchgen
torchaudio torchvision transformers triton tvm_ffi vllm""".split()
SMALL = 500_000  # bytes
# What of them no job imports, or of models one file of some hundred.
LEFT_OUT = re.compile(
    "/tests/|/(tensorboard|torch)/_vendor/|/numpy/f2py/|/openai/resources/|/sympy/physics/|/torch/testing/"
    "|/ray/(autoscaler|data|llm|rllib|serve|train|tune)/|/vllm/(benchmarks|models|model_executor/models)/"
    "|/transformers/models/(?!auto/)"
)


def write(file: str) -> None:
    warnings.simplefilter("ignore", SyntaxWarning)  # of others' sources, under Python 3.12
    py_compile.compile(file, quiet=2)  # some are templates


if __name__ == "__main__":
    files, installed = [], Path(sysconfig.get_path("purelib"))
    for package in installed.iterdir():
        sources = list(package.rglob("*.py")) if package.is_dir() else [package] * (package.suffix == ".py")
        if package.name in LARGE or sum(file.stat().st_size for file in sources) < SMALL:
            files += [str(file) for file in sources if not LEFT_OUT.search(f"/{file.relative_to(installed)}")]
    with multiprocessing.Pool(initializer=gc.disable) as pool:
        pool.map(write, files, chunksize=32)
