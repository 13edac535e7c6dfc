"""The addends task with an untrained model, for what looks at a model's files and does not run it."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory) -> dict[str, str]:
    """The environment variables that swap it into a recipe."""
    spec = importlib.util.spec_from_file_location("make_addends", ROOT / "launch/addends/make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    folder = tmp_path_factory.mktemp("tiny_task")
    small_model = sys.modules[make.Task.__module__]  # launch/ is not a package
    tokenizer = small_model.make_tokenizer(make.TASK.vocabulary)
    tokenizer.save_pretrained(folder / "model")
    small_model.make_model(tokenizer, seed=0).config.save_pretrained(folder / "model")
    (folder / "prompts.jsonl").write_text(json.dumps({"input": "12=", "label": "12"}) + "\n")
    return {
        "MODEL": str(folder / "model"),
        "DATA": str(folder / "prompts.jsonl"),
        "EVAL_DATA": str(folder / "prompts.jsonl"),
        "REWARD": str(ROOT / "launch/addends/reward.py"),
        "RUN": str(folder / "run"),
        "CHAT_TEMPLATE": "0",
        "PROMPT_TOKENS": "24",
        "RESPONSE_TOKENS": "8",
    }
