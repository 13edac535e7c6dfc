"""The strategy that the driver makes is ours, and is so in the process of a rank."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from openrlhf_stare import worker

worker.install()

from openrlhf.utils import get_strategy  # noqa: E402
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy  # noqa: E402

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
        "overridden": ["save_ckpt", "load_ckpt", "save_model"],
    }


def save(monkeypatch, folder: str, killed: bool = False) -> list[str]:
    """Save a model there; what is beside it meanwhile."""
    seen = []

    def openrlhfs(strategy, model, tokenizer, output_dir):
        os.makedirs(output_dir, exist_ok=True)
        Path(output_dir, "config.json").write_text("new")
        seen.extend(sorted(path.name for path in Path(folder).parent.iterdir()))
        if killed:
            raise KeyboardInterrupt

    monkeypatch.setattr(DeepspeedStrategy, "save_model", openrlhfs)
    CheckpointedStrategy.__new__(CheckpointedStrategy).save_model(None, None, folder)
    return seen


def test_a_model_has_its_name_once_it_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "global_step1_hf"
    with pytest.raises(KeyboardInterrupt):
        save(monkeypatch, str(folder), killed=True)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step1_hf.draft"]
    assert save(monkeypatch, f"{folder}/") == ["global_step1_hf.draft"]
    assert [str(path) for path in tmp_path.rglob("*")] == [str(folder), f"{folder}/config.json"]


def test_a_folder_that_is_there_keeps_what_is_not_the_model_s(tmp_path, monkeypatch):
    folder, link = tmp_path / "elsewhere", tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    link.symlink_to(folder)
    assert save(monkeypatch, str(link)) == ["elsewhere", "model"] and link.is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "notes.txt"]


def test_only_rank_0_which_writes_gives_the_name(tmp_path, monkeypatch):
    monkeypatch.setattr(CheckpointedStrategy, "is_rank_0", lambda self: False)
    save(monkeypatch, str(tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["model.draft"]
