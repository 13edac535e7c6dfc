"""What OpenRLHF adds to vLLM's worker, on a CPU."""

from __future__ import annotations

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap


class CpuWorkerWrap(WorkerWrap):
    """OpenRLHF's `WorkerWrap`, which receives weights on the CPU and says which of them vLLM has repacked."""

    def update_weight(self, name, dtype, shape, empty_cache=False):
        assert dtype == self.model_config.dtype, f"mismatch dtype: src {dtype}, dst {self.model_config.dtype}"
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])

    def repacked_layers(self) -> list[str]:
        plain = torch.nn.functional.linear
        return [
            name
            for name, layer in self.model_runner.model.named_modules()
            # The experts of a mixture are repacked too, by code of their own that no row of the table undoes.
            if getattr(layer, "cpu_linear", plain) is not plain or hasattr(layer, "w13_weight")
        ]
