"""Our door into vLLM's engine-core and worker processes (entry point of the group `vllm.general_plugins`).

Every vLLM process on the machine loads it, so it does nothing unless our environment variable is set.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time

# A process that ended by itself had an error of its own to tell, which has this time to come first.
GRACE_SECONDS = 5


def register() -> None:
    """Called by vLLM, once in each of its processes and in the Ray actor that starts them."""
    if "OPENRLHF_STARE_CPU" not in os.environ:
        return
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    threading.Thread(target=_end_after_a_failed_child, daemon=True).start()
    if os.environ["OPENRLHF_STARE_CPU"] == "1":
        from openrlhf_stare.runtime import prepare_process

        prepare_process()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    # Ray ends its actors with SIGKILL, and on a busy machine an engine core and its worker outlived theirs.
    parent.join()
    os._exit(1)


def _end_after_a_failed_child() -> None:
    # A core whose worker was killed while vLLM 0.29 started waited for its answer for ever, and with it the engine.
    # Only vLLM's processes count: a reward function may have some of its own.
    below: set[multiprocessing.process.BaseProcess] = set()
    while not (failed := [(process.name, process.exitcode) for process in below if process.exitcode]):
        time.sleep(1)
        below |= {p for p in multiprocessing.active_children() if p.name.startswith(("EngineCore", "VllmWorker"))}
    name, code = failed[0]
    if code > 0:  # not a signal
        time.sleep(GRACE_SECONDS)
    print(f"vLLM's {name} ended with exit code {code}; what waits for it ends too", file=sys.stderr, flush=True)
    os._exit(1)
