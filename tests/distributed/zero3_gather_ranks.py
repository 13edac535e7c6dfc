"""The program of the ranks of test_zero3_gather.py: `python zero3_gather_ranks.py STORE OUTPUT`.

A script of its own, because processes that spawn starts must be able to import what they run.
It writes, as JSON, how many gathered values were wrong in each round, on both ranks together: {config: [counts]}.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.multiprocessing as mp

from openrlhf_stare import cpu, worker
from openrlhf_stare.runtime import CPU_VARIABLE

WORLD = 2
ROUNDS = 3
# The first gather is long and the last one is short, and gloo's threads work on two at a time: a wait for the last
# handle alone returns while the first is under way. One value in STRIDE is looked at, so as to look at once.
SIZES = (32 * 2**20, 1024, 2)
STRIDE = 4096


def configs() -> dict[str, dict]:
    """The DeepSpeed configurations of training and evaluation, with our patch and as OpenRLHF makes them."""
    import openrlhf.utils.deepspeed.deepspeed as patched
    import openrlhf.utils.deepspeed.deepspeed_utils as plain

    made = {}
    for name, module in (("patched", patched), ("plain", plain)):
        made[f"{name} train"] = module.get_train_ds_config(offload=False, adam_offload=False, stage=3, zpg=1)
        made[f"{name} eval"] = module.get_eval_ds_config(offload=False, stage=3)
    return {name: {**config, "train_micro_batch_size_per_gpu": 1} for name, config in made.items()}


def wrong_values(config: dict, rank: int) -> list[int]:
    """For each round: write known values into the parameters, gather all of them together, count the wrong ones."""
    import deepspeed
    import torch.distributed as dist

    class Parameters(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.ParameterList(torch.zeros(size, dtype=torch.bfloat16) for size in SIZES)

    with deepspeed.zero.Init(config_dict_or_path=config):
        parameters = list(Parameters().parameters())
    wrong = []
    for number in range(1, ROUNDS + 1):
        for parameter in parameters:  # one by one, where nothing races
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if rank == 0:
                    parameter.data.fill_(number)
        with deepspeed.zero.GatheredParameters(parameters):
            read = [parameter.data[::STRIDE].clone() for parameter in parameters]
        dist.barrier()  # gloo's waits for every gather under way, so that no round ends in the next one
        wrong.append(sum(int((values != number).sum()) for values in read))
    return wrong


def run(rank: int, store: str, output: str) -> None:
    os.environ.update(cpu.environment(), LOCAL_RANK="0")  # each its own, as in Ray's workers
    worker.install()
    import deepspeed
    import torch.distributed as dist

    torch.set_num_threads(1)
    deepspeed.init_distributed(
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
        auto_mpi_discovery=False,
    )
    assert dist.get_backend() == "gloo"
    wrong = {}
    for name, config in configs().items():
        counts = torch.tensor(wrong_values(config, rank))
        dist.all_reduce(counts)
        wrong[name] = counts.tolist()
    if rank == 0:
        Path(output).write_text(json.dumps(wrong))
    dist.destroy_process_group()
    # DeepSpeed still holds the group, and so gloo's threads run on. One of them that frees the last collective's
    # tensors while Python shuts down aborts the process, so Python does not shut down.
    os._exit(0)


if __name__ == "__main__":
    os.environ[CPU_VARIABLE] = "1"
    mp.spawn(run, args=tuple(sys.argv[1:]), nprocs=WORLD)
