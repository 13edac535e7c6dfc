"""An Adam that is compiled already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


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
