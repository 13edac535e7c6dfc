"""What of an installed GPU stack can be looked at without a GPU; launch/try_gpu_wheels.sh calls it.

Ends with an AssertionError, or another error, at the first thing that is not as it should be.
"""

import importlib
import os
import pkgutil

os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_RANK": "0"}

import openrlhf_stare
from openrlhf_stare import gpu, runtime, worker
from openrlhf_stare.driver import seams
from openrlhf_stare.gpu import adam, compiler


def say(text: str) -> None:
    print(f"gpu_wheels: {text}", flush=True)


def look_at_the_table() -> None:
    """All that the table relies on is in the sources, and what is to stand there always does."""
    assert seams.all_missing() == []
    standing = [row for row in runtime.substitutions() if not (row.during or row.of_instance)]
    for row in standing:
        module, ours = importlib.import_module(row.module), pkgutil.resolve_name(row.by)
        found = module
        for part in row.name.split("."):
            found = getattr(found, part)
        if hasattr(found, "__ray_metadata__"):
            found = found.__ray_metadata__.modified_class
        origin = found.__globals__["__name__"] if hasattr(found, "__globals__") else found.__module__
        assert origin.startswith("openrlhf_stare") or found is ours, row.place
    held = sorted({row.missing for row in runtime.substitutions()} - {None})
    say(f"{len(standing)} substitutions stand; without {' and '.join(held) or 'nothing'}")


def import_everything() -> None:
    names = [module.name for module in pkgutil.walk_packages(openrlhf_stare.__path__, "openrlhf_stare.")]
    names = [name for name in names if not name.startswith("openrlhf_stare.cpu") and "__main__" not in name]
    theirs = ["openrlhf.cli.train_ppo_ray", "liger_kernel.transformers"]
    if gpu.has_flash_attn():
        theirs.append("ring_flash_attn")
    for name in [*names, *theirs]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != "reasoning_gym":  # an extra, which the GPU stack does without
                raise
    say(f"{len(names)} modules of ours and {', '.join(theirs)} can be imported")


def take_steps_with_torchs_adam() -> None:
    """DeepSpeed takes `fused`, and its steps are those of torch's fused Adam."""
    import deepspeed
    import torch
    import torch.distributed as dist

    # A CPU's collectives, which would be compiled for a minute and which no GPU job has.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    params = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    optimizer = {"type": "Adam", "params": dict(params)}
    config = adam.fused_torch_adam(lambda: {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer})()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    ours = torch.nn.Linear(8, 8)
    plain = torch.nn.Linear(8, 8)
    plain.load_state_dict(ours.state_dict())
    engine, made, *_ = deepspeed.initialize(model=ours, config=config, dist_init_required=False)
    theirs = torch.optim.AdamW(plain.parameters(), fused=True, **params)
    assert type(made) is torch.optim.AdamW and made.defaults["fused"] is True
    for _ in range(5):
        x = torch.randn(4, 8)
        engine.backward(engine(x).square().mean())
        engine.step()
        plain(x).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
    assert torch.equal(ours.weight, plain.weight)
    dist.destroy_process_group()
    say("DeepSpeed takes torch's fused Adam, with the steps of torch's own")


def compile_deepspeeds_adam() -> None:
    if why := compiler.missing():
        say(f"DeepSpeed's Adam is not compiled, since {why}")
        return
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ["DS_ACCELERATOR"] = "cuda"
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
    from torch.utils.cpp_extension import load

    builder = FusedAdamBuilder()
    sources = [builder.deepspeed_src_path(path) for path in builder.sources()]
    include = [str(builder.deepspeed_src_path(path)) for path in builder.include_paths()]
    flags = ["-O3", *builder.version_dependent_macros()]
    load("fused_adam", sources, extra_include_paths=include, extra_cflags=flags, extra_cuda_cflags=flags)
    say(f"DeepSpeed's Adam compiles with {compiler.cuda_home()}")


if __name__ == "__main__":
    worker.install()
    look_at_the_table()
    import_everything()
    take_steps_with_torchs_adam()
    compile_deepspeeds_adam()
