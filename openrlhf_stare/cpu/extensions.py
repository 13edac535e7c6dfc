"""`python -m openrlhf_stare.cpu.extensions`: builds the two C++ extensions that DeepSpeed needs on a CPU."""

from __future__ import annotations

import os

from openrlhf_stare import cpu


def main() -> None:
    os.environ.update(cpu.environment())
    cpu.install()
    from deepspeed.accelerator import get_accelerator

    for builder in ("FusedAdamBuilder", "ShareMemCommBuilder"):
        get_accelerator().create_op_builder(builder).load(verbose=False)


if __name__ == "__main__":
    main()
