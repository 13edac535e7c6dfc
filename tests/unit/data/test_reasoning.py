"""Prompts from reasoning-gym's generators: what the command's words mean, and what is in the files."""

import json
import sys

import pytest

from openrlhf_stare.data import DataError
from openrlhf_stare.data.reasoning import Task, main, parse, prepare


@pytest.mark.parametrize(
    "word, task",
    [
        ("chain_sum", Task("chain_sum", {}, 7)),
        ("chain_sum:min_terms=2,max_terms=3,size=40", Task("chain_sum", {"min_terms": 2, "max_terms": 3}, 40)),
        (
            'countdown:operators=["+","-"],shuffle=false,kind=short',
            Task("countdown", {"operators": ["+", "-"], "shuffle": False, "kind": "short"}, 7),
        ),
    ],
)
def test_a_word_names_a_task_its_settings_and_its_size(word, task):
    assert parse(word, 7) == task


@pytest.mark.parametrize(
    "word, said", [("sums:largest", "'largest' of sums:largest is not a setting"), ("sums:size=0", "0 p")]
)
def test_a_word_that_cannot_be_read_is_refused(word, said):
    with pytest.raises(DataError, match=said):
        parse(word, 7)


def test_the_rows_are_mixed_and_none_that_is_held_out_is_trained_on(tiny_gym):
    tasks = [Task("sums", {"largest": 20}, 30), Task("sums", {"largest": 99}, 10)]
    files = prepare(tasks, held_out=5, seed=3)
    train, held_out = files["train"], files["eval"]
    assert (len(train), len(held_out)) == (40, 10)
    for row in train + held_out:
        entry = json.loads(row["label"])
        assert row["input"] == entry["question"] and row["datasource"] == "sums"
    for_task = [row["input"] for row in held_out]
    assert len(set(for_task)) == 10
    assert not {row["input"] for row in train if "99" not in row["input"]} & set(for_task[:5])
    numbers = [json.loads(row["label"])["metadata"]["source_index"] for row in train]
    assert numbers != sorted(numbers)
    assert prepare(tasks, 5, 3) == files != prepare(tasks, 5, 4)


def test_what_is_held_out_is_of_the_kinds_that_training_is_of(tiny_gym):
    """And not of those alone whose questions seldom come twice."""
    held_out = prepare([Task("uneven", {}, 100)], held_out=20, seed=0)["eval"]
    few = [row for row in held_out if max(json.loads(row["label"])["metadata"]["terms"]) <= 5]
    assert 7 <= len(few) <= 13


@pytest.mark.parametrize(
    "task, said",
    [
        (Task("summs", {}, 5), "summs is not a task of reasoning-gym: choose among sums"),
        (Task("sums", {"biggest": 3}, 5), "sums cannot be used with the settings .*biggest"),
        (Task("sums", {"largest": 0}, 5), "sums cannot be used with the settings .*largest must be positive"),
        (Task("words", {}, 5), "words cannot be used .*not JSON serializable"),
        (
            Task("sums", {"largest": 1}, 5),
            "sums has too few different questions for 5 training prompts and 4 held-out",
        ),
    ],
)
def test_what_cannot_be_made_is_told(tiny_gym, task, said):
    with pytest.raises(DataError, match=said):
        prepare([task], held_out=4, seed=0)


def test_the_command_writes_both_files(tiny_gym, tmp_path, capsys):
    main(["sums:largest=50,size=12", "--held-out", "4", "--out", str(tmp_path / "data"), "--template", "tag"])
    rows = {name: (tmp_path / f"data/{name}.jsonl").read_text().splitlines() for name in ("train", "eval")}
    assert len(rows["train"]) == 12 and len(rows["eval"]) == 4
    assert json.loads(rows["train"][0])["input"].endswith("?\n\nPut the final answer between <answer> and </answer>.")
    assert "12 training prompts, 12 of them different, and 4 held out" in capsys.readouterr().out


def test_without_reasoning_gym_the_command_ends_with_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SystemExit, match="2"):
        main(["sums", "--out", str(tmp_path)])
    assert 'pip install "openrlhf-stare[tasks]"' in capsys.readouterr().err
