"""The work-arounds, one function each. The first line of each says what breaks without it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

from openrlhf_stare.cpu import precision, threads


class _CpuDevice(str):
    """The string "cpu", which prints as index 0 where OpenRLHF's replay buffer writes f"cuda:{device}"."""

    def __new__(cls):
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return format(0, spec)

    def __reduce__(self):
        return (_CpuDevice, ())


def answer_for_cuda(cuda: ModuleType) -> None:
    """torch.cuda's device functions raise on a CPU build, and OpenRLHF calls them everywhere."""
    device = _CpuDevice()
    cuda.current_device = lambda: device
    cuda.set_device = lambda device: None
    cuda.synchronize = lambda device=None: None
    cuda.current_stream = lambda device=None: None


@contextmanager
def flash_attn_stand_ins() -> Iterator[None]:
    """openrlhf.models.ring_attn_utils imports five names from flash_attn, which no CPU has.

    They stand in while that module is imported and no longer: transformers, vLLM and OpenRLHF's log-probs look for
    flash_attn too and must not find it.
    """
    from openrlhf_stare.cpu import padding

    names = {name: ModuleType(name) for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils")}
    names["flash_attn.utils.distributed"] = ModuleType("flash_attn.utils.distributed")
    for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
        setattr(names["flash_attn.bert_padding"], name, getattr(padding, name))
    names["flash_attn.utils.distributed"].all_gather = padding.all_gather
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def collectives_over_gloo(module: ModuleType) -> None:
    """DeepSpeed compiles a C++ extension for collectives in shared memory, which a CPU without a compiler cannot."""
    module.build_shm_op = lambda: None


def name_for_float32(module: ModuleType) -> None:
    """OpenRLHF knows bf16 and fp16 only, and a CPU without units for bfloat16 is many times slower in either."""
    import torch

    convert = module.convert_to_torch_dtype

    def convert_to_torch_dtype(param_dtype: str) -> torch.dtype:
        return torch.float32 if param_dtype == precision.SHORT[precision.FLOAT32] else convert(param_dtype)

    module.convert_to_torch_dtype = convert_to_torch_dtype


def strategy_on_cpu(module: ModuleType) -> None:
    """OpenRLHF's strategy asks for a "cuda" device mesh and a "cuda" EMA, and for what `_config_on_cpu` changes."""
    init_device_mesh = module.init_device_mesh
    module.init_device_mesh = lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)

    moving_average = module.DeepspeedStrategy.moving_average

    def moving_average_on_cpu(self, model, model_ema, beta=0.992, device="cpu"):
        return moving_average(self, model, model_ema, beta, "cpu")

    module.DeepspeedStrategy.moving_average = moving_average_on_cpu

    setup_distributed = module.DeepspeedStrategy.setup_distributed

    def setup_with_threads(self, *args, **kwargs):
        import torch

        if number := threads.of(threads.OF_RANK):
            torch.set_num_threads(number)
        return setup_distributed(self, *args, **kwargs)

    module.DeepspeedStrategy.setup_distributed = setup_with_threads

    for name in ("get_train_ds_config", "get_eval_ds_config"):
        setattr(module, name, _config_on_cpu(getattr(module, name)))


def save_in_the_flags_type(module: ModuleType) -> None:
    """A model that computes in float32 would be saved in it, twice as large as `--ds.param_dtype` says."""
    save_model = module.DeepspeedStrategy.save_model

    def save_model_in_its_type(self, model, tokenizer, output_dir, **kwargs):
        from openrlhf.utils.utils import convert_to_torch_dtype

        plain, dtype = self._unwrap_model(model), convert_to_torch_dtype(self.args.ds.saved_dtype)
        save_pretrained, computed = plain.save_pretrained, plain.dtype

        def save_rounded(folder, state_dict, **options):
            rounded = {id(value): value.to(dtype) for value in state_dict.values() if value.is_floating_point()}
            # Tied weights are one tensor under two names, and stay one.
            state_dict = {name: rounded.get(id(value), value) for name, value in state_dict.items()}
            save_pretrained(folder, state_dict=state_dict, **options)
            plain.config.dtype = dtype  # OpenRLHF writes the configuration once more

        with patch.object(plain, "save_pretrained", save_rounded):
            save_model(self, model, tokenizer, output_dir, **kwargs)
        plain.config.dtype = computed

    module.DeepspeedStrategy.save_model = save_model_in_its_type


def _config_on_cpu(get_config):
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


def weight_sync_over_gloo(module: ModuleType) -> None:
    """Weight sync goes through a PyNccl group, and NCCL needs GPUs."""
    module.stateless_init_process_group = lambda address, port, rank, world_size, device: GlooGroup(
        address, port, rank, world_size
    )


class GlooGroup:
    """A gloo group outside torch's default one, with the `broadcast` of vLLM's PyNcclCommunicator."""

    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.group = stateless_init_torch_distributed_process_group(address, port, rank, world_size, "gloo")

    def broadcast(self, tensor, src: int, stream=None) -> None:
        import torch.distributed

        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        self.group.broadcast([tensor], options).wait()


def keep_plain_weights(module: ModuleType) -> None:
    """vLLM's CPU backend repacks linear and lm_head weights after loading; later weight syncs then fail for the
    linears and are silently ignored for lm_head, so that the engine samples from a stale policy."""
    module.dispatch_cpu_unquantized_gemm = _plain_linear


def _plain_linear(layer, remove_weight: bool) -> None:
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def reserve_what_can_be_used(module: ModuleType) -> None:
    """vLLM writes zeros to all of VLLM_CPU_KVCACHE_SPACE, which takes seconds for a GiB, even where the model can use
    little of it: a whole sequence for each that it generates at a time."""
    determine = module.CPUWorker.determine_available_memory

    def determine_available_memory(self) -> int:
        layers = self.model_runner.get_kv_cache_spec().values()
        sequence = sum(layer.max_memory_usage_bytes(self.vllm_config) for layer in layers)
        at_once = self.scheduler_config.max_num_seqs + 1  # vLLM keeps a block for itself
        return min(determine(self), at_once * sequence)

    module.CPUWorker.determine_available_memory = determine_available_memory


def receive_weights_on_cpu(module: ModuleType) -> None:
    """vLLM's worker receives weights into device="cuda"."""
    import torch

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
            # The experts of a mixture are repacked too, by code of their own that no patch here undoes.
            if getattr(layer, "cpu_linear", plain) is not plain or hasattr(layer, "w13_weight")
        ]

    module.WorkerWrap.update_weight = update_weight
    module.WorkerWrap.repacked_layers = repacked_layers


def engine_that_proves_its_patches(module: ModuleType) -> None:
    """vLLM only logs a plugin that fails or is filtered, and the engine would then train on stale weights.

    OpenRLHF's engines hold their weights in bfloat16, and take them in no other type.
    """
    plain_class = module.RolloutRayActor.__ray_metadata__.modified_class

    class CpuRolloutActor(plain_class):
        async def __init__(self, *args, **kwargs):
            if number := threads.of(threads.OF_ENGINE):
                os.environ["OMP_NUM_THREADS"] = str(number)  # vLLM's process has this one's environment
            await super().__init__(*args, **{**kwargs, "dtype": precision.chosen()})
            remedy = "let vLLM load the plugin openrlhf_stare (VLLM_PLUGINS filters it?), or set no VLLM_PLUGINS"
            try:
                answers = await self.llm.collective_rpc("repacked_layers")
            except Exception as error:
                raise RuntimeError(f"openrlhf-stare is not in place in vLLM's worker: {remedy}") from error
            if any(answers):
                raise RuntimeError(
                    f"vLLM repacked the weights of {answers[0][0]}, so no weight sync would reach it: "
                    f"use a dense model, and {remedy}"
                )

    import ray

    module.RolloutRayActor = ray.remote(CpuRolloutActor)
