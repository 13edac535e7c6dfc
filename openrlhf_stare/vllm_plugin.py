"""vLLM's door into its engine-core and worker processes (entry point of the group `vllm.general_plugins`).

Every vLLM process on the machine loads it, so it does nothing unless our environment variable is set.
"""

import os


def register() -> None:
    if os.environ.get("OPENRLHF_STARE_CPU") == "1":
        from openrlhf_stare.runtime import prepare_process

        prepare_process()
