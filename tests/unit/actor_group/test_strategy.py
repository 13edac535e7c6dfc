"""The strategy that the driver makes is ours, and is so in the process of a rank."""

import base64
import json
import subprocess
import sys
from types import SimpleNamespace

import ray

from openrlhf_stare import worker

worker.install()

from openrlhf.utils import get_strategy  # noqa: E402

from openrlhf_stare.actor_group.strategy import CheckpointedStrategy  # noqa: E402

# What a process does that Ray has just started: the hook, and then the argument of `init_model_from_pretrained`.
IN_A_PROCESS_OF_RAY = """
import base64, json, sys
from openrlhf_stare import worker
worker.install()
import ray
strategy = ray.cloudpickle.loads(base64.b64decode(sys.stdin.read()))
ours, theirs = type(strategy), type(strategy).__mro__[1]
print(json.dumps({
    "ours": ours.__name__,
    "theirs": f"{theirs.__module__}.{theirs.__name__}",
    "path": strategy.args.ckpt.path,
    "overridden": [name for name in ("save_ckpt", "load_ckpt", "save_model") if name in vars(ours)],
}))
"""


def test_the_drivers_strategy_is_ours_after_pickling():
    args = SimpleNamespace(
        ckpt=SimpleNamespace(path="/runs/one"),
        ds=SimpleNamespace(param_dtype="bf16", zero_stage=3),
        train=SimpleNamespace(),
    )
    strategy = get_strategy(args)
    assert type(strategy) is CheckpointedStrategy
    pickled = base64.b64encode(ray.cloudpickle.dumps(strategy)).decode()
    command = [sys.executable, "-c", IN_A_PROCESS_OF_RAY]
    result = subprocess.run(command, input=pickled, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "ours": "CheckpointedStrategy",
        "theirs": "openrlhf.utils.deepspeed.deepspeed.DeepspeedStrategy",
        "path": "/runs/one",
        "overridden": ["save_ckpt", "load_ckpt"],
    }
