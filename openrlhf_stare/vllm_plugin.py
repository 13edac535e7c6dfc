"""Our door into vLLM's engine-core and worker processes (entry point of the group `vllm.general_plugins`).

Every vLLM process on the machine loads it, so it does nothing unless our environment variable is set.
"""

from __future__ import annotations

import multiprocessing
import os
import threading


def register() -> None:
    """Called by vLLM, once in each of its processes and in the Ray actor that starts them."""
    if "OPENRLHF_STARE_CPU" not in os.environ:
        return
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if os.environ["OPENRLHF_STARE_CPU"] == "1":
        from openrlhf_stare.runtime import prepare_process

        prepare_process()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    # Ray ends its actors with SIGKILL, and on a busy machine an engine core and its worker outlived theirs.
    parent.join()
    os._exit(1)
