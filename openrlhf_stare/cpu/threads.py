"""How many threads each rank and each engine of a job computes with on this machine's cores."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare import dealing
from openrlhf_stare.tools import cores

# The threads of a rank and of an engine, with a comma between. Not set where the user has set OMP_NUM_THREADS.
VARIABLE = "OPENRLHF_STARE_CPU_THREADS"
OF_RANK, OF_ENGINE = 0, 1
# Weights in bytes. Of less, a matrix is too small for its product to be worth sharing.
SMALL = 64 * 2**20


def choose(usable: int, ranks: int, engines: int, weights: int | None, at_once: bool) -> tuple[int, int]:
    """The threads of a rank and of an engine, which are never more than the cores when all that work at once do.

    Args:
        usable: cores.
        ranks, engines: processes of either kind on this machine.
        weights: bytes of the model's weights; None if they are not known, as of a model that is not downloaded yet.
        at_once: whether engines sample while ranks train; else either kind waits for the other.
    """
    if weights is not None and weights < SMALL:
        return 1, 1
    if at_once:
        ranks = engines = ranks + engines
    return max(1, usable // ranks), max(1, usable // engines)


def set_for_job(args: SimpleNamespace) -> None:
    """Choose for a job with OpenRLHF's nested arguments, for all processes that get this one's environment."""
    if VARIABLE not in os.environ:
        return
    # As if all were on this machine, where a Ray of the job's own has them.
    models = [getattr(args, name) for name in dealing.models(args)]
    ranks = sum(model.num_nodes * model.num_gpus_per_node for model in models)
    weights = weights_in(args.actor.model_name_or_path)
    chosen = choose(cores.usable(), max(ranks, 1), args.vllm.num_engines, weights, args.train.async_enable)
    os.environ[VARIABLE] = ",".join(map(str, chosen))


def of(kind: int) -> int | None:
    """The threads of OF_RANK or OF_ENGINE; None: as OMP_NUM_THREADS says."""
    return int(os.environ[VARIABLE].split(",")[kind]) if VARIABLE in os.environ else None


def weights_in(folder: str | None) -> int | None:
    """The bytes of the weights in a model's folder; None of a model of the Hub."""
    if not folder or not os.path.isdir(folder):
        return None
    return sum(file.stat().st_size for ending in ("safetensors", "bin") for file in Path(folder).glob(f"*.{ending}"))
