"""Writes the byte code of the large packages that a job on a CPU imports: .venv/bin/python launch/byte_code.py

The installer calls it once. Without it each of a job's processes compiles some thousand modules at its first start,
and at every start where PYTHONDONTWRITEBYTECODE is set. What no name here covers is compiled at its first import.
"""

import gc
import multiprocessing
import py_compile
import re
import sysconfig
from pathlib import Path

PACKAGES = """accelerate aiohttp datasets deepspeed google huggingface_hub mistral_common mpmath networkx numpy openai
openrlhf opentelemetry pandas peft pydantic ray rich setuptools sympy tensorboard torch transformers tvm_ffi vllm
xgrammar""".split()
# Folders that no job imports, or (models) one file of some hundred.
LEFT_OUT = re.compile(
    "/(_?tests?|testing|_vendor|autoscaler|benchmarks|entrypoints|f2py|models|physics|resources)/"
    "|/ray/(data|llm|rllib|serve|train|tune)/"
)


def write(file: str) -> None:
    py_compile.compile(file, quiet=2)  # some are templates


if __name__ == "__main__":
    installed = Path(sysconfig.get_path("purelib"))
    files = [str(file) for package in PACKAGES for file in (installed / package).rglob("*.py")]
    with multiprocessing.Pool(initializer=gc.disable) as pool:
        pool.map(write, [file for file in files if not LEFT_OUT.search(file)], chunksize=32)
