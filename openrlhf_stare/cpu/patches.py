"""What stands in the place of something that needs a GPU; the table in `substitutions.py` says where."""

from __future__ import annotations

import functools
from collections.abc import Callable

from openrlhf_stare.cpu import precision, threads


class _CpuDevice(str):
    """The string "cpu", which prints as index 0 where OpenRLHF's replay buffer writes f"cuda:{device}"."""

    def __new__(cls):
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return format(0, spec)

    def __reduce__(self):
        return (_CpuDevice, ())


_DEVICE = _CpuDevice()


def current_device() -> str:
    return _DEVICE


def set_device(device) -> None:
    pass


def synchronize(device=None) -> None:
    pass


def current_stream(device=None) -> None:
    return None


def build_no_extension() -> None:
    return None


def mesh_of_cpus(init_device_mesh: Callable) -> Callable:
    return lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)


def moving_average_on_cpu(moving_average: Callable) -> Callable:
    def on_cpu(self, model, model_ema, beta=0.992, device="cpu"):
        return moving_average(self, model, model_ema, beta, "cpu")

    return on_cpu


def type_named_fp32(convert: Callable) -> Callable:
    """OpenRLHF's names of types, with one for float32."""
    import torch

    def convert_to_torch_dtype(param_dtype: str) -> torch.dtype:
        return torch.float32 if param_dtype == precision.SHORT[precision.FLOAT32] else convert(param_dtype)

    return convert_to_torch_dtype


def with_threads_of_a_rank(setup_distributed: Callable) -> Callable:
    def setup(self, *args, **kwargs):
        import torch

        if number := threads.of(threads.OF_RANK):
            torch.set_num_threads(number)
        return setup_distributed(self, *args, **kwargs)

    return setup


def config_on_cpu(get_config: Callable) -> Callable:
    """DeepSpeed's configuration, with ZeRO-3 gathers that do not race and an Adam that needs no compiler.

    The race is silent: ZeRO-3's coalesced gather waits on the last of its handles only, which is enough on one NCCL
    stream and not on gloo, so now and then a parameter is read before it has arrived. DeepSpeed's own setting gathers
    one parameter at a time.
    """

    @functools.wraps(get_config)
    def wrapped(*args, **kwargs):
        config = get_config(*args, **kwargs)
        config["zero_optimization"]["stage3_allgather_sequential"] = True
        if "optimizer" in config:
            config["optimizer"]["params"]["torch_adam"] = True
            config["zero_force_ds_cpu_optimizer"] = False  # or DeepSpeed refuses torch's Adam with offloading
        return config

    return wrapped


class GlooGroup:
    """A gloo group outside torch's default one, with the `broadcast` of vLLM's PyNcclCommunicator."""

    def __init__(self, address: str, port: int, rank: int, world_size: int, device: object = None) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.group = stateless_init_torch_distributed_process_group(address, port, rank, world_size, "gloo")

    def broadcast(self, tensor, src: int, stream=None) -> None:
        import torch.distributed

        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        self.group.broadcast([tensor], options).wait()


def plain_linear(layer, remove_weight: bool) -> None:
    """vLLM's CPU backend repacks linear and lm_head weights after loading; later weight syncs then fail for the
    linears and are silently ignored for lm_head, so that the engine samples from a stale policy."""
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def what_can_be_used(determine: Callable) -> Callable:
    """Memory for a whole sequence for each that the model generates at a time, at most."""

    def determine_available_memory(self) -> int:
        layers = self.model_runner.get_kv_cache_spec().values()
        sequence = sum(layer.max_memory_usage_bytes(self.vllm_config) for layer in layers)
        at_once = self.scheduler_config.max_num_seqs + 1  # vLLM keeps a block for itself
        return min(determine(self), at_once * sequence)

    return determine_available_memory
