"""An Adam that is compiled already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from openrlhf_stare.replacing import replaced

DEEPSPEEDS = "deepspeed.ops.adam.fused_adam.FusedAdam"


def fused_torch_adam(get_config: Callable) -> Callable:
    """OpenRLHF's configuration of DeepSpeed for a model that trains, with torch's Adam in place of the two that
    DeepSpeed compiles, for the GPU and for `--ds.adam_offload`."""

    @functools.wraps(get_config)
    def wrapped(*args: Any, **kwargs: Any) -> dict[str, Any]:
        config = get_config(*args, **kwargs)
        if optimizer := config.get("optimizer"):
            optimizer["params"]["torch_adam"] = True
            if optimizer["type"] in ("Adam", "AdamW"):
                optimizer["params"]["fused"] = True  # one kernel for all parameters, as DeepSpeed's
            config["zero_force_ds_cpu_optimizer"] = False  # or DeepSpeed refuses torch's Adam with offloading
        return config

    return wrapped


def asleep_too(offload_states: Callable) -> Callable:
    """How ZeRO-3 puts an optimizer's states on the CPU (`--ds.enable_sleep`), for torch's Adam too.

    DeepSpeed insists on a class of its own, though all it moves are the two moments, which torch's has under the same
    names. Torch's step counts stay on the GPU, where its kernel wants them.
    """

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        with replaced(DEEPSPEEDS, type(self.optimizer)):
            offload_states(self, *args, **kwargs)

    return wrapped
