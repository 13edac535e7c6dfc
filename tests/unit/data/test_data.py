"""`python -m openrlhf_stare.data`: from files with each data set's columns to what OpenRLHF reads."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from openrlhf_stare.data import __main__, sources
from openrlhf_stare.data.cleaning import EvaluationPrompts, normalised

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def verl_row(content: str, ground_truth: str, **columns) -> dict:
    return {
        "data_source": "math",
        "prompt": [{"role": "user", "content": content}],
        "ability": "MATH",
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        **columns,
    }


# A row of every data set, with its columns, and what becomes of it.
LAYOUTS = {
    "dapo": (verl_row(DAPO.format("Find\n\n$x$."), "34", extra_info={"index": "9a"}), "Find\n\n$x$.", "34"),
    "deepscaler": ({"problem": "Find $x$.", "answer": "-\\frac{2}{3}", "solution": "…"}, "Find $x$.", "-\\frac{2}{3}"),
    "skywork": (verl_row("Find $x$.", '["\\\\frac{1}{2}"]', extra_info={"index": 0}), "Find $x$.", "\\frac{1}{2}"),
    "polaris": ({"problem": "Find $x$.", "answer": "7", "difficulty": "3/8"}, "Find $x$.", "7"),
    "aime24": ({"id": 60, "problem": "Find $x$.", "solution": "…", "answer": "033"}, "Find $x$.", "033"),
    "aime25": ({"problem": "Find $x$.", "answer": "70", "id": "0"}, "Find $x$.", "70"),
    "amc23": ({"id": 0, "question": "Find $x$.", "answer": 27.0, "url": "…"}, "Find $x$.", "27.0"),
    "math500": (
        {"problem": "Find $x$.", "solution": "…", "answer": "\\text{Evelyn}", "subject": "Algebra", "level": 2},
        "Find $x$.",
        "\\text{Evelyn}",
    ),
    "minerva": ({"question": "Find $x$.", "answer": "4.5e33"}, "Find $x$.", "4.5 \\times 10^{33}"),
    "olympiad": (
        {"id": 1, "question": "Find $x$.", "context": "Let $x>0$.", "final_answer": ["$2$", "$3$"], "unit": None},
        "Let $x>0$.\n\nFind $x$.",
        "$2$, $3$",
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problem_file(path: Path, *problems: tuple[str, str]) -> Path:
    return write(path, [{"problem": problem, "answer": answer} for problem, answer in problems])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(output: str) -> dict[str, list[int]]:
    """The printed counts: source -> read, without answer, duplicates, in evaluation, written."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: [int(n) for n in row[1:]] for row in rows if row and row[0] in sources.SOURCES}


# Sources


def test_every_source_has_a_layout():
    assert LAYOUTS.keys() == sources.SOURCES.keys()


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_columns_of_every_data_set_are_read(name, ending, tmp_path):
    row, problem, label = LAYOUTS[name]
    file = write(tmp_path / f"{name}.{ending}", [row])
    assert list(sources.read(name, file)) == [(problem, label)]


def test_the_hub_is_asked_for_name_configuration_and_split(monkeypatch):
    """What the Hub holds is not known here; what it is asked for is."""
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda **arguments: asked.append(arguments) or [])
    for name in ("skywork", "olympiad"):
        assert list(sources.read(name)) == []
    assert asked == [
        {"path": "Skywork/Skywork-OR1-RL-Data", "name": None, "split": "math"},
        {"path": "Hothan/OlympiadBench", "name": "OE_TO_maths_en_COMP", "split": "train"},
    ]


@pytest.mark.parametrize(
    "answer, label",
    [
        (None, ""),
        (math.nan, ""),
        ("  ", ""),
        (34, "34"),
        (" $3$ ", "3"),
        ("$2$, $3$", "$2$, $3$"),
        ("1e-5", "1 \\times 10^{-5}"),
    ],
)
def test_labels(answer, label):
    assert sources.label(answer) == label


# Cleaning


@pytest.mark.parametrize(
    "other", ["find the sum\n\\(\\dfrac{1}2 + x^{2}\\)", "Find the sum: $\\left.\\frac{1}{2}\\,+x^2\\right.$"]
)
def test_case_spaces_punctuation_and_looks_do_not_make_another_problem(other):
    assert normalised(other) == normalised("Find the sum $\\frac{1}{2}+x^2$.")


@pytest.mark.parametrize("other", ["Solve $x+1=0$.", "Solve $x-2=0$.", "Solve $x-1<0$."])
def test_numbers_and_operators_make_another_problem(other):
    assert normalised(other) != normalised("Solve $x-1=0$.")


HARD = (
    "Every morning Aya goes for a nine kilometer long walk and stops at a coffee shop afterwards. Find the number of "
    "minutes the walk takes her, including the time spent in the coffee shop."
)
PHRASE = "The answer can be written as m/n where m and n are relatively prime positive integers. Find m+n."


@pytest.mark.parametrize(
    "prompt, held",
    [
        (HARD, True),
        (f"(AIME 2024, Problem 1) {HARD} Give an integer.", True),
        (HARD.replace("nine", "8"), True),  # the same problem with another number
        ("Find the number of minutes the walk takes her, including the stop.", False),
        (f"How likely is it that two of five dice show the same? {PHRASE}", False),
        (f"Two dice are thrown, and the sum of what they show is prime with some probability. {PHRASE}", True),
        ("What is $2+3$?", True),
        ("What is $2+4$?", False),
        ("", False),
    ],
)
def test_a_prompt_is_held_with_half_of_the_runs_of_one_evaluation_problem(prompt, held):
    dice = f"Two dice are thrown, and the sum of what they show is prime with some probability. {PHRASE}"
    evaluation = EvaluationPrompts(map(normalised, [HARD, dice, "What is $2+3$?"]))
    assert (normalised(prompt) in evaluation) == held


# The command


def test_the_files_and_the_counts(tmp_path, capsys):
    dapo = [verl_row(DAPO.format("Find $x$ with $x+1=3$."), "2", extra_info={"index": "a"})] * 3
    dapo.append(verl_row(DAPO.format(HARD), "204", extra_info={"index": "b"}))
    again = ("find $x$, with $x + 1 = 3$", "2")
    files = [
        f"dapo={write(tmp_path / 'dapo.parquet', dapo)}",
        f"deepscaler={problem_file(tmp_path / 'deepscaler.jsonl', again, ('New?', '5'), ('Unsolved?', ''))}",
        f"aime24={problem_file(tmp_path / 'aime24.jsonl', (HARD, '204'), ('Other?', '1'), (' ', '1'))}",
    ]
    __main__.main([*files, "--out", str(tmp_path / "out")])

    output = capsys.readouterr().out
    assert table(output) == {"aime24": [3, 1, 0, 0, 2], "dapo": [4, 0, 2, 1, 1], "deepscaler": [3, 1, 1, 0, 1]}
    out = tmp_path / "out"
    assert output.splitlines()[-1] == (
        f"OpenRLHF's flags: --data.prompt_dataset {out}/train.jsonl --data.input_key input --data.label_key label "
        f"--eval.dataset {out}/aime24.jsonl"
    )
    train = lines(out / "train.jsonl")
    assert [(row["datasource"], row["label"]) for row in train] == [("dapo", "2"), ("deepscaler", "5")]
    assert train[0]["input"].startswith("Find $x$ with $x+1=3$.\n\n") and train[0]["input"].endswith("\\boxed{}.")
    assert [row["datasource"] for row in lines(out / "aime24.jsonl")] == ["aime24", "aime24"]


@pytest.mark.parametrize("template", __main__.TEMPLATES)
def test_the_template_stands_around_the_problem_as_it_is(template, tmp_path, capsys):
    problem = "Let $f(x)=\\{x\\}$ and {a}."
    file = problem_file(tmp_path / "d.jsonl", (problem, "1"))
    __main__.main([f"deepscaler={file}", "--out", str(tmp_path), "--template", template])
    (row,) = lines(tmp_path / "train.jsonl")
    assert problem in row["input"]
    assert ("\\boxed{}" in row["input"]) == (template != "none")
    assert "not cleaned" in capsys.readouterr().out  # no evaluation source was given


def test_evaluation_sets_stay_as_published(tmp_path):
    file = problem_file(tmp_path / "a.jsonl", ("Same?", "1"), ("Same?", "1"))
    __main__.main([f"aime24={file}", f"aime25={file}", "--out", str(tmp_path)])
    assert [len(lines(tmp_path / f"{name}.jsonl")) for name in ("aime24", "aime25")] == [2, 2]
    assert not (tmp_path / "train.jsonl").exists()


def test_openrlhf_reads_the_files(tmp_path):
    """OpenRLHF's own loader, on two files at once, with labels that look like numbers."""
    from openrlhf.datasets import PromptDataset
    from openrlhf.datasets.utils import blending_datasets

    numbers, words = ("One?", "033"), ("Two?", "\\text{no}")
    first, second = problem_file(tmp_path / "1.jsonl", numbers), problem_file(tmp_path / "2.jsonl", words)
    __main__.main([f"aime24={first}", f"aime25={second}", "--out", str(tmp_path)])
    flags = SimpleNamespace(input_key="input", label_key="label", apply_chat_template=False)
    strategy = SimpleNamespace(print=print, is_rank_0=lambda: True, args=SimpleNamespace(data=flags))
    paths = ",".join(str(tmp_path / f"{name}.jsonl") for name in ("aime24", "aime25"))
    dataset = PromptDataset(blending_datasets(paths, strategy=strategy), None, strategy)
    assert [(source, label) for source, _, label, _ in map(dataset.__getitem__, range(2))] == [
        ("aime24", "033"),
        ("aime25", "\\text{no}"),
    ]


# Bad input


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["dapo17k"], "dapo17k is not a source: choose among dapo, deepscaler"),
        (["aime24", "aime24=x.jsonl"], "aime24 is given twice"),
        (["aime24=missing.jsonl"], "missing.jsonl is not a file"),
        (["aime24={here}/a.csv"], "ends in none of .parquet, .jsonl"),
        (["aime24={here}/columns.jsonl"], "row 0 of {here}/columns.jsonl, with the columns question, answer, is not"),
        (["skywork={here}/skywork.jsonl"], "is not laid out as skywork on the Hub, Skywork/Skywork-OR1-RL-Data"),
        (["aime24={here}/broken.jsonl"], "row 1 of {here}/broken.jsonl is not valid JSON (JSONDecodeError: "),
        (["aime24={here}/broken.parquet"], "{here}/broken.parquet cannot be loaded (ArrowInvalid: "),
        (["aime24={here}/empty.jsonl"], "aime24.jsonl would be empty"),
    ],
)
def test_bad_input_ends_with_one_sentence(words, sentence, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("problem,answer\n")
    write(tmp_path / "columns.jsonl", [{"question": "?", "answer": "1"}])
    write(tmp_path / "skywork.jsonl", [verl_row("?", "not json")])
    (tmp_path / "broken.jsonl").write_text('{"problem": "Find", "answer": "1"}\n{"problem": "Find')
    (tmp_path / "broken.parquet").write_text("no parquet")
    problem_file(tmp_path / "empty.jsonl", ("?", ""))
    with pytest.raises(SystemExit) as ended:
        __main__.main([*(word.format(here=tmp_path) for word in words), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert said.startswith("data: ") and sentence.format(here=tmp_path) in said
    assert not list((tmp_path / "out").glob("*"))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "name, line, reason",
    [
        ("aime24", b'{"problem": 5, "answer": "1"}', "TypeError: the problem is not text but 5"),
        ("aime24", b'{"problem": ["a"], "answer": "1"}', "TypeError: the problem is not text but ['a']"),
        ("aime24", b'{"problem": "?", "answer": ["1"]}', "TypeError: the answer is neither text nor a number"),
        ("aime24", b'{"problem": "?", "answer": true}', "TypeError: the answer is neither text nor a number"),
        ("aime24", b'{"problem": "\xff\xfe", "answer": "1"}', "UnicodeDecodeError: "),
        ("aime24", b'{"problem": %s}' % DEEP.encode(), "RecursionError: "),
        ("aime24", b"null", "TypeError: "),
        ("aime24", b"[1]", "TypeError: "),
        ("dapo", json.dumps(verl_row(None, "1")).encode(), "TypeError: the prompt's content is not text but None"),
        ("dapo", b'{"prompt": []}', "IndexError: "),
        ("skywork", json.dumps(verl_row("?", '"57"')).encode(), "TypeError: the answers are not a list but '57'"),
        ("skywork", json.dumps(verl_row("?", '"12"')).encode(), "TypeError: the answers are not a list but '12'"),
        ("skywork", json.dumps(verl_row("?", "57")).encode(), "TypeError: the answers are not a list but 57"),
        ("skywork", json.dumps(verl_row("?", DEEP)).encode(), "RecursionError: "),
        ("olympiad", b'{"question": "?", "context": null, "final_answer": "12"}', "are not a list but '12'"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_as_it_should_be_is_named(name, line, reason, tmp_path, capsys):
    file = write(tmp_path / "rows.jsonl", [LAYOUTS[name][0]] * 2)
    with open(file, "ab") as rows:
        rows.write(line + b"\n")
    with pytest.raises(SystemExit) as ended:
        __main__.main([f"{name}={file}", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"data: row 2 of {file}") and reason in said and len(said) < 1000
    assert not list((tmp_path / "out").glob("*"))


def test_a_row_of_a_parquet_file_is_named_too(tmp_path, capsys):
    import pyarrow
    import pyarrow.parquet

    problems = pyarrow.array([b"fine", b"\xff"]).cast(pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"problem": problems, "answer": ["1", "2"]}), tmp_path / "a.parquet")
    with pytest.raises(SystemExit):
        __main__.main([f"aime24={tmp_path}/a.parquet", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err.startswith(f"data: row 1 of {tmp_path}/a.parquet is not laid out as aime24")


@pytest.mark.parametrize("place", ["aime24.jsonl", "train.jsonl", "../here/aime24.jsonl", "link.jsonl"])
def test_a_source_is_not_overwritten(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = problem_file(Path("train.jsonl" if place == "train.jsonl" else "aime24.jsonl"), ("One?", "1"))
    Path("link.jsonl").symlink_to(file)
    before = file.read_bytes()
    name = "deepscaler" if place == "train.jsonl" else "aime24"
    with pytest.raises(SystemExit) as ended:
        __main__.main([f"{name}={place}", "--out", "."])
    assert ended.value.code == 2 and file.read_bytes() == before
    assert capsys.readouterr().err == f"data: {name}={place} would be overwritten: give --out another folder\n"


@pytest.mark.parametrize("name", ["a*.jsonl", "a?.jsonl", "[ab].jsonl"])
def test_a_name_is_a_name_and_no_pattern(name, tmp_path):
    problem_file(tmp_path / "ab.jsonl", ("Other?", "2")), problem_file(tmp_path / "a.jsonl", ("Other?", "2"))
    file = problem_file(tmp_path / name, ("One?", "1"))
    assert list(sources.read("aime24", file)) == [("One?", "1")]


def test_a_json_file_holds_a_list_of_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"problem": "One?", "answer": 1}], indent=1))
    assert list(sources.read("aime24", tmp_path / "a.json")) == [("One?", "1")]


def test_a_long_problem_of_dapo_is_read_at_once(tmp_path):
    problem = "Solve the following math problem" + "\n\nx" * 100_000
    file = write(tmp_path / "dapo.jsonl", [verl_row(problem, "1")])
    start = time.process_time()
    assert list(sources.read("dapo", file)) == [(problem, "1")]
    assert time.process_time() - start < 2  # 0.01 s; a pattern that tries each pair of places takes hours


def test_a_hub_out_of_reach_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "openrlhf_stare.data", "aime24", "--out", str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("data: HuggingFaceH4/aime_2024 cannot be loaded: ")
