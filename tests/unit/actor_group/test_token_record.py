"""The token record: what a line says, and that neither its size nor a full disk is a danger to the run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare import StareOptions, surprisal_thresholds, token_weights
from openrlhf_stare.actor_group import token_record
from openrlhf_stare.actor_group.token_record import TokenRecord, record_folder, token_texts
from openrlhf_stare.methods.base import Tokens
from openrlhf_stare.methods.stare import Stare

PROMPT = 3  # tokens


class Characters:
    """A tokenizer of one letter a token, `a` being token 0; like SentencePiece's it drops a text's first space."""

    def decode(self, ids, **options):
        assert options["skip_special_tokens"] is False
        return "".join(" " if token == 26 else chr(ord("a") + token) for token in ids).removeprefix(" ")


class Bytes:
    def decode(self, ids, **options):
        return bytes(ids).decode(errors="replace")


def response(log_probs, advantages, mask=None, reward=1.0, ids=None):
    """A response as the replay buffer holds it, after a prompt of PROMPT tokens."""
    prompt = torch.zeros(PROMPT - 1)
    mask = torch.ones(len(log_probs)) if mask is None else torch.tensor(mask)
    ids = list(range(len(log_probs))) if ids is None else ids
    return SimpleNamespace(
        sequences=torch.tensor([23, 24, 25, *ids]),
        action_log_probs=torch.cat([prompt, torch.tensor(log_probs)]),
        advantages=torch.cat([prompt, torch.tensor(advantages)]),
        action_mask=torch.cat([prompt, mask]).long(),
        info={"reward": torch.tensor(reward)},
        index=None,
    )


def rollout(responses: int = 6, length: int = 5, seed: int = 0) -> list:
    generator = torch.Generator().manual_seed(seed)
    log_probs = -3 * torch.rand(responses, length, generator=generator)
    advantages = torch.randn(responses, 1, generator=generator).expand(-1, length)
    return [
        response(log_probs[i].tolist(), advantages[i].tolist(), reward=float(i), ids=[i] * length)
        for i in range(responses)
    ]


def opened(items: list, strengths: dict | None = None, **options) -> tuple[Stare, dict]:
    """STARE with the rollout opened, and its figures."""
    method = Stare(StareOptions(**options))
    masks = [item.action_mask.bool() for item in items]
    log_probs = torch.cat([item.action_log_probs[mask] for item, mask in zip(items, masks, strict=True)])
    advantages = torch.cat([item.advantages[mask] for item, mask in zip(items, masks, strict=True)])
    tokens = Tokens(log_probs, advantages, torch.ones_like(log_probs, dtype=torch.bool))
    starts = {strength.name: strength.start for strength in method.strengths}
    return method, method.open_rollout(tokens, strengths or starts, None)


def lines(folder: Path, name: str = "tokens.jsonl") -> list[dict]:
    def no_such_number(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=no_such_number) for line in (folder / name).read_text().splitlines()]


def test_a_line_has_the_text_and_a_number_per_token(tmp_path):
    item = response([-0.5, -1.0, 0.0], [2.0, -1.0, 0.0], reward=0.25)
    TokenRecord(tmp_path, 1, Characters()).write(1, [item])
    (line,) = lines(tmp_path)
    assert line.pop("time") > 1e9
    assert line == {
        "step": 1,
        "prompt": "xyz",
        "tokens": ["a", "b", "c"],
        "surprisal": [0.5, 1.0, 0.0],
        "advantage": [2.0, -1.0, 0.0],
        "omega": [1.0, 1.0, 1.0],
        "reward": 0.25,
        "tau_positive": None,
        "tau_negative": None,
    }


@pytest.mark.parametrize("variant", ["O1", "C2"])
def test_the_weights_are_those_of_training_and_follow_from_the_line(tmp_path, variant):
    items = rollout()
    log_probs = torch.cat([item.action_log_probs[PROMPT - 1 :] for item in items])
    advantages = torch.cat([item.advantages[PROMPT - 1 :] for item in items])
    method, figures = opened(items, variant=variant, top_p_ratio=0.2)
    TokenRecord(tmp_path, len(items), Characters()).write(1, items, method, figures)
    written = lines(tmp_path)

    expected = token_weights(log_probs, advantages, torch.ones_like(log_probs), config=method.options)
    taus = surprisal_thresholds(-log_probs, advantages, top_p_ratio=0.2)
    assert (written[0]["tau_positive"], written[0]["tau_negative"]) == tuple(map(pytest.approx, map(float, taus)))
    recorded = torch.tensor([weight for line in written for weight in line["omega"]])
    assert torch.equal(recorded, expected) and len(expected.unique()) == {"O1": 2, "C2": 3}[variant]
    # Written with all its digits, a surprisal compares with a threshold as the tensors do.
    for line in written:
        for s, a, weight in zip(line["surprisal"], line["advantage"], line["omega"], strict=True):
            assert (weight > 1) == (a > 0 and s >= line["tau_positive"])
            assert (weight < 1) == (variant == "C2" and a < 0 and s >= line["tau_negative"])


def test_with_the_gate_off_every_weight_is_1(tmp_path):
    items = rollout()
    method, figures = opened(items, {"reweight_w": 1.0})
    TokenRecord(tmp_path, 1, Characters()).write(1, items, method, figures)
    (line,) = lines(tmp_path)
    assert set(line["omega"]) == {1.0} and line["tau_positive"] == pytest.approx(figures["stare/tau_positive"])


def test_a_tools_output_has_text_and_no_numbers(tmp_path):
    item = response([-1.0, -2.0, -3.0, -4.0], [1.0] * 4, mask=[1, 0, 0, 1])
    TokenRecord(tmp_path, 1, Characters()).write(1, [item])
    (line,) = lines(tmp_path)
    assert line["tokens"] == ["a", "b", "c", "d"]
    assert line["surprisal"] == [1.0, None, None, 4.0]
    assert line["advantage"] == line["omega"] == [1.0, None, None, 1.0]


def test_what_is_not_finite_is_null(tmp_path):
    item = response([-1.0, -math.inf], [math.nan, 1.0], reward=math.nan)
    method, figures = opened([response([-1.0], [-1.0])])
    assert figures["stare/tau_positive"] == math.inf
    TokenRecord(tmp_path, 1, Characters()).write(1, [item], method, figures)
    (line,) = lines(tmp_path)
    assert line["surprisal"] == [1.0, None] and line["advantage"] == [None, 1.0] and line["reward"] is None
    assert line["omega"] == [1.0, 1.0] and line["tau_positive"] is None


def test_the_responses_are_spread_over_the_buffer_and_those_left_out_are_not_recorded(tmp_path):
    items = rollout(9)
    items[0].action_mask.zero_()
    record = TokenRecord(tmp_path, 4, Characters())
    record.write(1, items)
    assert [line["reward"] for line in lines(tmp_path)] == [1, 3, 5, 7]
    record.write(2, items[:2])  # fewer than asked for
    record.write(3, items[:1])  # none
    record.write(4, [])
    assert [line["step"] for line in lines(tmp_path)] == [1, 1, 1, 1, 2]
    assert len({line["time"] for line in lines(tmp_path)[:4]}) == 1, "a rollout has one time"


def test_the_folder_is_beside_the_tensorboard_logs_or_that_of_the_checkpoints():
    args = SimpleNamespace(
        logger=SimpleNamespace(tensorboard_dir="logs", wandb=SimpleNamespace(run_name="run")),
        ckpt=SimpleNamespace(path="checkpoints"),
    )
    assert record_folder(args) == Path("logs/run")
    args.logger.tensorboard_dir = None
    assert record_folder(args) == Path("checkpoints")


def test_the_size_is_bounded_and_the_newest_parts_are_kept(tmp_path):
    record = TokenRecord(tmp_path, 2, Characters(), part_bytes=1000, parts=3)
    for step in range(1, 51):
        record.write(step, rollout())
    parts = ["tokens.2.jsonl", "tokens.1.jsonl", "tokens.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(parts)
    assert all(0 < (tmp_path / part).stat().st_size <= 1000 for part in parts)
    steps = [line["step"] for part in parts for line in lines(tmp_path, part)]
    assert steps[-1] == 50 and steps == sorted(steps) and len(steps) > 4
    assert set(steps) == set(range(steps[0], 51)), "nothing is missing in between"


def test_a_resumed_run_appends(tmp_path):
    TokenRecord(tmp_path, 1, Characters()).write(1, rollout())
    TokenRecord(tmp_path, 1, Characters()).write(2, rollout())
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_full_disk_costs_the_record_with_one_warning(tmp_path, capsys, monkeypatch):
    def full(path, mode):
        raise OSError(28, "No space left on device")

    record = TokenRecord(tmp_path, 2, Characters())
    monkeypatch.setattr(token_record, "open", full, raising=False)
    record.write(1, rollout())
    record.write(2, rollout())
    (warning,) = capsys.readouterr().err.splitlines()
    assert "step 1" in warning and "training goes on" in warning and "No space left" in warning
    monkeypatch.undo()
    record.write(3, rollout())  # there is room again
    assert [line["step"] for line in lines(tmp_path)] == [3, 3]


def test_a_folder_that_cannot_be_made_costs_the_record_only(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    TokenRecord(tmp_path / "file" / "run", 1, Characters()).write(1, rollout())
    assert "training goes on" in capsys.readouterr().err


# The text of a token


@pytest.mark.parametrize("text", ["plain", "é", "a日本b", "🙂🙂", "\r\n\t<eos>"])
def test_the_tokens_join_to_the_text(text):
    texts = token_texts(list(text.encode()), Bytes())
    assert "".join(texts) == text
    assert len(texts) == len(text.encode())


def test_parts_of_a_character_wait_for_its_last_byte():
    assert token_texts(list("a日b".encode()), Bytes()) == ["a", "", "", "日", "b"]


def test_bytes_that_make_no_character_do_not_wait_for_ever():
    texts = token_texts([255] * 40 + list(b"ok"), Bytes())
    assert texts[-1] == "k" and "".join(texts).endswith("ok") and "�" in texts[3]


def test_a_space_that_the_tokenizer_drops_at_a_texts_start_is_kept_inside():
    assert token_texts([0, 26, 1], Characters()) == ["a", " ", "b"]
