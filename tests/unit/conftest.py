"""The addends task with an untrained model, for what looks at a model's files and does not run it, and a tiny
reasoning-gym."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory) -> dict[str, str]:
    """The environment variables that swap it into a recipe."""
    # Here, since most of the unit tests need neither torch nor transformers for it.
    from openrlhf_stare.quickstart import flags, small_model, task

    folder = tmp_path_factory.mktemp("tiny_task")
    tokenizer = small_model.make_tokenizer(task.TASK.vocabulary)
    tokenizer.save_pretrained(folder / "model")
    small_model.make_model(tokenizer, seed=0).config.save_pretrained(folder / "model")
    (folder / "prompts.jsonl").write_text((json.dumps({"input": "12=", "label": "12"}) + "\n") * 16)
    return {
        "MODEL": str(folder / "model"),
        "DATA": str(folder / "prompts.jsonl"),
        "EVAL_DATA": str(folder / "prompts.jsonl"),
        "REWARD": flags.REWARD,
        "RUN": str(folder / "run"),
        "CHAT_TEMPLATE": "0",
        "PROMPT_TOKENS": "24",
        "RESPONSE_TOKENS": "8",
    }


@pytest.fixture
def tiny_gym(monkeypatch):
    """tests/unit/tiny_gym in reasoning-gym's place, in this process and in those that it starts."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
            del sys.modules[name]

    folder = str(Path(__file__).with_name("tiny_gym"))
    forget()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)
    yield
    forget()
