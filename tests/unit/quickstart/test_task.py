"""The quickstart's task: what is right, the model and the prompts, the table at the end."""

import dataclasses
import fcntl
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_stare import runtime
from openrlhf_stare.quickstart import command, reward, small_model, table, task

FEW_STEPS = 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("addends") / "model"
    small_model.make_checkpoint(task.TASK, folder, seed=0, steps=FEW_STEPS)
    return folder


# What is right


@pytest.mark.parametrize("query", ["12=5+7<eos>", "12=9+3<eos>", "02=0+2<eos>", "16=8+8<eos>"])
def test_any_two_digits_with_the_right_sum_are_right(query):
    assert reward.score(query) == 1.0


@pytest.mark.parametrize(
    "query",
    [
        "12=5+6<eos>",  # wrong sum
        "12=5+7",  # no end
        "12=5+7<eos><eos>",  # more after the end
        "12=5+7<eos>\n",
        "12=5+7 <eos>",  # more before the end
        "12=5+07<eos>",
        "12=12+0<eos>",
        "12=+5+7<eos>",
        "12=5+7<pad><eos>",
        "12=5-7<eos>",
        "12=a+b<eos>",
        "12=٥+٧<eos>",  # digits, but not ours
        "12=<eos>",
        "12=",
        "<eos>",
        "",
    ],
)
def test_everything_else_is_wrong_and_never_an_exception(query):
    assert reward.score(query) == 0.0


def test_every_prompt_has_several_right_answers():
    counts = [len(reward.right_pairs(total)) for total in range(reward.SMALLEST, reward.LARGEST + 1)]
    assert min(counts) == 3 and max(counts) == 10
    for total in range(reward.SMALLEST, reward.LARGEST + 1):
        assert all(reward.score(f"{total:02}={a}+{b}<eos>") == 1.0 for a, b in reward.right_pairs(total))


def test_reward_func_answers_in_the_form_that_openrlhf_reads():
    answer = reward.reward_func(["12=5+7<eos>", "12=5+6<eos>", "12="], ["12="] * 3, ["12"] * 3)
    assert answer["rewards"].tolist() == answer["scores"].tolist() == [1.0, 0.0, 0.0]
    assert answer["extra_logs"]["well_formed"].tolist() == [1.0, 1.0, 0.0]
    # OpenRLHF asks for one response at a time and makes a tensor out of [rewards]: it must be of shape (1,).
    single = reward.reward_func(["12=5+7<eos>"], ["12="], ["12"])
    assert torch.tensor([single["rewards"]]).shape == (1,)


# The model and the prompts


def test_autotokenizer_brings_back_the_same_character_tokenizer(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    assert len(tokenizer) == len(task.TASK.vocabulary) == 16
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(task.TASK.vocabulary)}
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    for text in ["12=", "12=5+7<eos>", "0123456789+=", "+==+", "<pad>12=<bos>5<unk>"]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.convert_ids_to_tokens(ids) == small_model.make_tokenizer(task.TASK.vocabulary).tokenize(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer(text).input_ids == ids  # nothing is added
    assert len(tokenizer("12=5+7<eos>").input_ids) == 7
    assert tokenizer.decode(tokenizer("12=5+7<eos>").input_ids, skip_special_tokens=True) == "12=5+7"


def test_the_checkpoint_loads_as_the_model_that_the_task_asks_for(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    config = model.config
    assert config.model_type == "qwen2" and model.dtype == runtime.dtype()
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (2, 128, 16)
    assert config.hidden_size // config.num_attention_heads == 32
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert torch.isfinite(model(**tokenizer(["12="], return_tensors="pt")).logits).all()


def test_the_same_seed_gives_the_same_model_and_leaves_the_global_generator_alone(checkpoint, tmp_path):
    before = torch.get_rng_state()
    same = small_model.make_checkpoint(task.TASK, tmp_path / "same", seed=0, steps=FEW_STEPS)
    small_model.make_checkpoint(task.TASK, tmp_path / "other", seed=1, steps=FEW_STEPS)
    assert torch.equal(torch.get_rng_state(), before)

    def weights(folder: Path) -> bytes:
        return (folder / "model.safetensors").read_bytes()

    assert weights(tmp_path / "same") == weights(checkpoint) != weights(tmp_path / "other")
    record = json.loads((checkpoint / "addends.json").read_text())
    for key in ("greedy_reward", "sampled_reward", "entropy"):
        assert record[key] == same[key]


def test_a_task_that_was_edited_gets_a_model_of_its_own(tmp_path):
    def backwards(draw: torch.Generator, wrong: float) -> str:
        prompt, answer = task.TASK.example(draw, wrong).removesuffix("<eos>").split("=")
        return f"{prompt}={answer[::-1]}<eos>"

    def made_anew(**changes) -> bool:
        edited = dataclasses.replace(task.TASK, **changes)
        small_model.make_checkpoint(edited, tmp_path / "model", seed=0, steps=FEW_STEPS)
        mark = tmp_path / "model/mark"  # goes with the model; a file's number can be given to the next one
        anew = not mark.exists()
        mark.touch()
        return anew

    assert made_anew() and not made_anew()
    assert made_anew(example=backwards)
    assert made_anew(characters="-" + task.TASK.characters)
    assert made_anew(prompts=task.TASK.prompts[1:]) and not made_anew(prompts=task.TASK.prompts[1:])


def test_the_model_is_made_in_the_type_that_is_trained_and_anew_for_another(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    for computed in ("float32", "bfloat16"):
        monkeypatch.setenv("OPENRLHF_STARE_CPU_DTYPE", computed)
        record = small_model.make_checkpoint(task.TASK, tmp_path / "model", seed=0, steps=FEW_STEPS)
        weights = load_file(tmp_path / "model/model.safetensors")
        config = json.loads((tmp_path / "model/config.json").read_text())
        assert {str(value.dtype) for value in weights.values()} == {f"torch.{computed}"}
        assert record["recipe"]["dtype"] == config["dtype"] == computed


def test_a_finished_model_is_kept_unless_the_recipe_changes(tmp_path):
    folder = tmp_path / "model"
    small_model.make_checkpoint(task.TASK, folder, steps=1)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"kept")
    small_model.make_checkpoint(task.TASK, folder, steps=1)
    assert weights.read_bytes() == b"kept"
    assert small_model.make_checkpoint(task.TASK, folder, steps=2)["recipe"]["steps"] == 2
    assert weights.read_bytes() != b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]  # nothing half-made is left


def test_a_model_that_another_process_is_making_is_waited_for(checkpoint, tmp_path):
    folder = tmp_path / "model"
    with ThreadPoolExecutor(1) as pool, open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        making = pool.submit(small_model.make_checkpoint, task.TASK, folder, seed=0, steps=FEW_STEPS)
        assert wait([making], timeout=2).not_done
        shutil.copytree(checkpoint, folder)
        (folder / "model.safetensors").write_bytes(b"the other's")
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert making.result(timeout=60) == json.loads((checkpoint / "addends.json").read_text())
    assert (folder / "model.safetensors").read_bytes() == b"the other's"


def test_the_command_warms_up_for_as_long_as_it_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make.py", str(tmp_path), "--warm-up", "2", "--prompts", "3"])
    task.main()
    assert "2 warm-up steps" in capsys.readouterr().out
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 3


def test_an_interrupted_preparation_leaves_no_prompts(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["make.py", str(tmp_path), "--prompts", "3"])
    monkeypatch.setattr(small_model, "make_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.main()
    assert not list(tmp_path.iterdir())


def test_prompts_go_through_all_totals_in_shuffled_rounds(tmp_path):
    prompts = task.make_prompts(47, seed=0)
    small_model.write_prompts(tmp_path / "prompts.jsonl", prompts)
    assert [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()] == prompts
    assert len(prompts) == 47
    assert all(prompt["input"] == prompt["label"] + "=" for prompt in prompts)
    rounds = [[prompt["label"] for prompt in prompts[i : i + 15]] for i in (0, 15, 30)]
    assert all(sorted(labels) == [f"{total:02}" for total in range(2, 17)] for labels in rounds)
    assert rounds[0] != rounds[1]
    assert task.make_prompts(47, seed=0) == prompts != task.make_prompts(47, seed=1)


# The table


def write_run(folder: Path, **curves: list[float]) -> Path:
    """A TensorBoard log with OpenRLHF's prefix; in the names of the arguments, __ stands for the slash."""
    writer = SummaryWriter(str(folder / "run"))
    for name, values in curves.items():
        for step, value in enumerate(values, start=1):
            writer.add_scalar("train/" + name.replace("__", "/"), value, step)
    writer.close()
    facts = {"is_idle": False, "needs_advantages": True, "pursues_target": True}
    settings = {"strengths": ["stare/reweight_w"], "sets": None, "facts": facts, "flags": {}, "arguments": {}}
    (folder / "run/settings.json").write_text(json.dumps(settings))
    return folder


GOOD = {
    "rollout__reward_mean": [0.3 + 0.03 * step for step in range(20)],
    "entropy__mean": [0.9] * 10 + [0.4] * 10,
    "entropy__target": [0.4] * 20,
    "entropy__gate_on": [0.0] * 15 + [1.0] * 5,
    "stare__reweight_w": [1.0] * 18 + [2.0, 4.0],
    "vllm_kl": [0.0] * 19 + [-0.0004],
    "timing__step_total": [9.0] + [0.7] * 19,
}


def run_table(monkeypatch, capsys, *arguments, computed: str = "bfloat16") -> tuple[int, str, str]:
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    monkeypatch.setenv("OPENRLHF_STARE_CPU_DTYPE", computed)
    monkeypatch.setattr(sys, "argv", ["table.py", *map(str, arguments)])
    status = table.main()
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_table_of_a_good_run(tmp_path, monkeypatch, capsys):
    status, out, err = run_table(monkeypatch, capsys, write_run(tmp_path, **GOOD), "--check")
    assert (status, err) == (0, "")
    *lines, verdict = out.splitlines()
    held = "entropy 0.400 nats, target 0.400, over the second half of the steps, 100 % of them within ±25 %: held"
    assert verdict == f"verdict: {held}"
    rows = {line[:24].strip(): line[24:].split() for line in lines}
    assert rows == {
        "": ["start", "middle", "end"],
        "reward": ["0.315", "0.585", "0.855"],
        "entropy (nats)": ["0.900", "0.650", "0.400"],
        "gate": ["0.000", "0.000", "1.000"],
        "stare/reweight_w": ["1.000", "1.000", "3.000"],
        "target entropy": ["0.400"],
        "steps with an open gate": ["5/20"],
        "|vllm_kl|, last step": ["4.0e-04"],
        "seconds a step, median": ["0.70"],
    }


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"rollout__reward_mean": [0.3] * 20}, "The mean reward went from 0.300 to 0.300"),
        ({"rollout__reward_mean": [0.3] * 10 + [float("nan")] * 10}, "The mean reward went from 0.300 to nan"),
        ({"rollout__reward_mean": []}, "No reward was logged"),
        ({"entropy__gate_on": [0.0] * 20}, "The gate never opened"),
        ({"vllm_kl": [0.0] * 19 + [-0.01371]}, "|vllm_kl| was up to 1.4e-02, not below 0.01"),
        ({"vllm_kl": [0.0] * 9 + [0.02] + [0.0] * 10}, "|vllm_kl| was up to 2.0e-02"),  # and not at the end alone
        ({"vllm_kl": [0.0] * 19 + [float("nan")]}, "|vllm_kl| was up to nan"),
        ({"vllm_kl": []}, "vllm_kl was not logged"),
    ],
)
def test_check_names_the_promise_that_a_run_does_not_keep(tmp_path, monkeypatch, capsys, changed, said):
    run = write_run(tmp_path, **{**GOOD, **changed})
    status, _, err = run_table(monkeypatch, capsys, run, "--check")
    assert status == 1 and err.startswith("table: ") and said in err and len(err.splitlines()) == 1
    status, _, err = run_table(monkeypatch, capsys, run)
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("words", "steps", "status"),
    [
        ([], "200", 1),
        ([], "20", 0),  # too few for what is promised
        (["--actor.adam.lr", "0"], "200", 0),  # not the run that the figures are known for
    ],
)
def test_the_quickstarts_status_is_that_of_the_check(tmp_path, monkeypatch, capsys, words, steps, status):
    """Of a run whose reward did not rise; the training itself is tried in tests/pipeline."""
    monkeypatch.chdir(tmp_path)
    environment = {"OPENRLHF_STARE_CPU": "1", "OPENRLHF_STARE_CPU_DTYPE": "bfloat16", "STEPS": steps}
    for name, value in (environment | {"HF_HUB_OFFLINE": "1", "RAY_ADDRESS": "local"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "look_for_the_stack", lambda words: None)
    monkeypatch.setattr(command, "make_task", lambda run, prompts: run / "prompts.jsonl")

    def train(words: list[str]) -> None:
        run = Path(words[words.index("--logger.tensorboard_dir") + 1])
        write_run(run, **{**GOOD, "rollout__reward_mean": [0.3] * 20})

    monkeypatch.setattr(command, "train", train)
    assert command.main(words) == status
    assert ("The mean reward went from 0.300 to 0.300" in capsys.readouterr().err) == bool(status)


def test_in_float32_vllm_kl_is_held_to_far_less(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path, **GOOD)
    status, _, err = run_table(monkeypatch, capsys, run, "--check", computed="float32")
    assert status == 1 and "|vllm_kl| was up to 4.0e-04, not below 1e-06" in err


def test_a_run_without_stare_has_no_rows_for_it_and_no_gate_to_open(tmp_path, monkeypatch, capsys):
    its = ("entropy__gate_on", "entropy__target", "stare__reweight_w")
    without = {name: values for name, values in GOOD.items() if name not in its}
    status, out, _ = run_table(monkeypatch, capsys, write_run(tmp_path, **without), "--check")
    rows = [line[:24].strip() for line in out.splitlines()]
    assert status == 0
    assert rows == ["", "reward", "entropy (nats)", "|vllm_kl|, last step", "seconds a step, median"]


def test_a_run_of_one_step_has_a_table(tmp_path, monkeypatch, capsys):
    one = {name: values[:1] for name, values in GOOD.items()}
    status, out, _ = run_table(monkeypatch, capsys, write_run(tmp_path, **one))
    assert status == 0 and "0.300    0.300    0.300" in out


def test_a_damaged_log_is_said_to_be_damaged(tmp_path, monkeypatch, capsys):
    write_run(tmp_path, **GOOD)
    (events,) = tmp_path.rglob("events.out.*")
    events.write_bytes(events.read_bytes()[:-5])
    status, out, err = run_table(monkeypatch, capsys, tmp_path)
    assert status == 0 and "0.315    0.585    0.855" in out
    assert err == f"table: {events.name} is damaged after step 19, and what comes below is not shown (DataLossError)\n"


def test_a_folder_of_no_run_or_of_two_is_refused(tmp_path, monkeypatch, capsys):
    status, _, err = run_table(monkeypatch, capsys, tmp_path)
    assert status == 1 and "the logs of 0 runs" in err
    write_run(tmp_path / "a", **GOOD), write_run(tmp_path / "b", **GOOD)
    status, _, err = run_table(monkeypatch, capsys, tmp_path)
    assert status == 1 and "the logs of 2 runs" in err
