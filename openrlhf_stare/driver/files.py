"""What a job reads and writes, as the machine of this process sees it, without loading a model.

Each check returns what it found, or raises a `UsageError` whose sentence has the remedy. Their parameter `args` is the
nested arguments as OpenRLHF's `train` gets them.
"""

from __future__ import annotations

import fcntl
import glob
import importlib.util
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from openrlhf_stare import dealing, runtime, tools
from openrlhf_stare.driver import rows, run_folder
from openrlhf_stare.notices import notice, without_secrets
from openrlhf_stare.options import UsageError

HUB_SECONDS = 10  # for the Hub to answer at all, perhaps through a slow proxy: as long as its clients wait
FILE_SECONDS = 90  # for the import of a reward or agent file; from a slow file system the first takes long
ADDRESS_SECONDS = 2  # for a reward's server to take a connection
IMPORTED, WARNING = "imported", "warning: "  # what the process of a trial answers, besides "ok" and a refusal
OUTPUT_BYTES = 1 << 20  # of what such a file prints
TABLES = ("json", "jsonl", "csv", "parquet", "arrow")  # the endings that OpenRLHF reads as files of rows


def check(args: SimpleNamespace) -> dict[str, str]:
    """Check what a job reads and writes, as the driver's machine sees it, the cheapest first.

    Returns:
        What the job's processes need in their environment, after what was found.

    Raises:
        UsageError: the job could not start.
    """
    try:
        if not args.look.on:  # which writes nothing
            checkpoints(args, None)
            if not args.ckpt.load_enable and Path(args.ckpt.output_dir, "config.json").exists():
                notice(f"--ckpt.output_dir {args.ckpt.output_dir} has a model, which this job's will be written over")
        scripts = _scripts(args)
        for url, cause in unreachable(args).items():
            notice(
                f"--reward.remote_url {without_secrets(url)} takes no connection from the driver's machine ({cause}): "
                "start the server, unless the nodes that sample reach it"
            )
        variables = look_for_the_hub(args)
        with ExitStack() as trials:  # imported while this process imports what reads data and model
            outcomes = [trials.enter_context(_trial(*script)) for script in scripts]
            sets = _read(args)
            model(args)
            _refuse_too_few(args, sets)
            for doubt in (*_doubts(args, sets), *_cut_prompts(args, sets), *_reward_model(args)):
                notice(doubt)
            example = _example(args) if outcomes else None
            for outcome in outcomes:
                outcome(example)
    except UsageError as error:
        raise UsageError(f"{error} (--no_checks skips this check on the driver's machine)") from None
    return variables


def checkpoints(args: SimpleNamespace, token: str | None) -> str:
    """Whether checkpoints and model can be written, and those that are there are to be resumed from; `token` is a file
    that the driver sees in their folder."""
    run_folder.check(args)
    if _is_same(args.ckpt.output_dir, args.actor.model_name_or_path):
        raise UsageError(
            f"--ckpt.output_dir {args.ckpt.output_dir} is the folder of --actor.model_name_or_path, which the trained "
            "model would be written over: give another folder"
        )
    for flag, path in (("--ckpt.path", args.ckpt.path), ("--ckpt.output_dir", args.ckpt.output_dir)):
        try:
            tempfile.TemporaryFile(dir=_nearest_folder(path)).close()
        except OSError as error:
            raise UsageError(f"{flag} {path} cannot be written ({error.strerror}): choose another folder") from None
    if token and not os.path.exists(token):
        raise UsageError(
            f"--ckpt.path {args.ckpt.path} is not the folder that the driver sees, so a resumed job would not find "
            "all ranks' parts: put it on a file system that all nodes share"
        )
    return f"{args.ckpt.path} can be written"


def model(args: SimpleNamespace) -> str:
    """The model's configuration and tokenizer, and whether `--data.max_len` fits its positions; that critic and reward
    model, where there are any, can be read."""
    name = args.actor.model_name_or_path
    if not name:
        raise UsageError("--actor.model_name_or_path is not given: name the model to train")
    configs = {flag: _config(flag, of, args.use_ms) for flag, of in _models(args).items()}
    config = configs["--actor.model_name_or_path"]
    if config is None:
        return f"{name}, of ModelScope"
    _tokenizer(name)  # can be read
    sizes, head = runtime.head_sizes(), _head_size(config)
    if sizes and head and head not in sizes and not args.dry_run:
        raise UsageError(
            f"--actor.model_name_or_path {name} has attention heads of the size {head}, and vLLM's CPU engine takes "
            f"{', '.join(map(str, sizes))}: use another model, or a machine with a GPU"
        )
    if sizes and _experts(config) > 1 and not args.dry_run:
        raise UsageError(
            f"--actor.model_name_or_path {name} is a mixture of experts, which the actor's weights do not "
            "reach in vLLM's CPU engine: use a dense model, or a machine with a GPU"
        )
    if args.actor.fused_head:
        _refuse_with_fused_head(name, config)
    if args.ds.packing_samples and (cause := runs_on(config)):
        raise UsageError(
            f"--ds.packing_samples, which --train.dynamic_batch_enable and --ds.ring_attn_size switch on, does not go "
            f"with {name}, {cause}: leave these out"
        )
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    allowed = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0")
    is_plain = rope.get("rope_type", "default") == "default"
    if positions and args.data.max_len > positions and is_plain and not allowed:
        raise UsageError(
            f"--data.max_len {args.data.max_len} is more than the {positions} positions of {name}, which vLLM "
            f"refuses: use at most {positions}"
        )
    if args.data.apply_chat_template and not _with_template(name, config).chat_template:
        raise UsageError(f"--data.apply_chat_template finds no chat template in {name}: leave the flag out")
    return f"{name} ({config.model_type}, {positions} positions)"


def _reward_model(args: SimpleNamespace) -> Iterator[str]:
    """Of a reward model, why its rewards would mean nothing. OpenRLHF gives a model without a head a new one, and any
    reward model the policy's tokens."""
    name, policy = args.reward.model_name_or_path, args.actor.model_name_or_path
    if "reward" not in dealing.models(args) or (args.use_ms and not (os.path.isdir(name) and os.path.isdir(policy))):
        return
    flag = "--reward.model_name_or_path"
    config = _config(flag, name, args.use_ms)
    kinds = [kind for kind in config.architectures or () if kind.endswith("ForCausalLM")]
    if kinds and not hasattr(config, "value_head_prefix"):
        yield (
            f"{flag} {name} is a language model ({kinds[0]}), as far as its configuration says, to which a new head "
            "is given whose rewards are random: give a reward model"
        )
    if name != policy and _tokenizer(name, flag).get_vocab() != _tokenizer(policy).get_vocab():
        yield (
            f"{flag} {name} has another vocabulary than --actor.model_name_or_path {policy}, and OpenRLHF gives it "
            "the policy's tokens as they are: give one of the same family"
        )


def _refuse_with_fused_head(name: str, config: Any) -> None:
    if hasattr(config, "vision_config"):
        raise UsageError(f"--actor.fused_head does not go with {name}, which sees images: leave it out")
    from openrlhf_stare.algorithms.fused_head import Logits  # which takes torch along

    try:
        Logits.of_model(config)
    except ValueError as error:
        raise UsageError(f"--actor.fused_head does not go with {name} ({error}): leave it out") from None


def _models(args: SimpleNamespace) -> dict[str, str]:
    """The names of the job's models by their flags, each name once."""
    names = {"--actor.model_name_or_path": args.actor.model_name_or_path or ""}
    there = dealing.models(args)
    for model in ("reward", "critic"):  # in this order: without a name of its own a critic has the reward model's
        name = getattr(args, model).model_name_or_path
        if model in there and name and name not in names.values():
            names[f"--{model}.model_name_or_path"] = name
    return names


def _config(flag: str, name: str, is_of_modelscope: bool) -> Any:
    """A model's configuration; None for one of ModelScope, which the job's processes ask."""
    from transformers import AutoConfig

    if _is_path(name) and not os.path.isdir(name):
        raise UsageError(f"{flag} {name} is not a folder on this machine: give one that is")
    if is_of_modelscope and not os.path.isdir(name):
        return None
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=True)
    except Exception as error:  # a model's own code raises what it likes
        reason = _first_line(error)
        if not os.path.isdir(name):
            reason = f"there is no folder {name}; a model of the Hub by that name was not found either: {reason}"
        raise UsageError(
            f"{flag} {name} cannot be read ({reason}): give a Hub id that this machine can reach, or a folder that it "
            "sees"
        ) from None


def _tokenizer(name: str, flag: str = "--actor.model_name_or_path") -> Any:
    """The tokenizer of the model to train, or of another, which the flag names."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # some classes are made without their files
            raise ValueError("its files are not there")
    except Exception as error:
        raise UsageError(
            f"{flag} {name} has no tokenizer that can be read ({_first_line(error)}): save its base model's there"
        ) from None
    return tokenizer


def _with_template(name: str, config: Any) -> Any:
    """What has the chat template of the model to train: as for OpenRLHF the processor of one that takes images."""
    if not hasattr(config, "vision_config"):
        return _tokenizer(name)
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(name, trust_remote_code=True)
    except Exception as error:
        raise UsageError(
            f"--actor.model_name_or_path {name} has no processor that can be read ({_first_line(error)}): save its "
            "base model's there"
        ) from None


def _of_the_text(config: Any) -> Any:
    """The part of a model that sees more than text which is about its text."""
    return getattr(config, "text_config", None) or config


def _head_size(config: Any) -> int | None:
    """Of the attention; None where the configuration does not say it."""
    config = _of_the_text(config)
    size, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    return getattr(config, "head_dim", None) or (size // heads if size and heads else None)


# Models of transformers 5.15 that take positions of a text for those of a grid. Others, as Qwen3-VL, keep both.
POSITIONS_OF_A_GRID = (
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "paddleocr_vl", "ernie4_5_vl_moe"),
    *("glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
)


def runs_on(config: Any) -> str:
    """Why a response would see the one that is packed before it; "" where it does not.

    OpenRLHF 0.11.2 tells a model where packed sequences begin by their positions alone. Attention that takes those of
    a text for those of a grid, and layers with a state, do not look at them.
    """
    if config.model_type in POSITIONS_OF_A_GRID:
        return f"a {config.model_type}, whose attention would not keep packed responses apart"
    layers = getattr(_of_the_text(config), "layer_types", None) or ()
    others = sorted({layer for layer in layers if not layer.endswith("attention") or layer == "linear_attention"})
    return f"whose {others[0]} layers would run on from one packed response into the next" if others else ""


def _experts(config: Any) -> int:
    """How many a layer chooses from; 0 or 1 for a dense model."""
    config = _of_the_text(config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return max(getattr(config, name, None) or 0 for name in names)


def data(args: SimpleNamespace) -> str:
    """The rows of every data set, of one that is no local file the first, and whether they have the columns."""
    return ", ".join(rows.name for rows in _read(args))


def _read(args: SimpleNamespace) -> list[rows.Rows]:
    """What was seen of every data set, of prompts and of an evaluation.

    Raises:
        UsageError: OpenRLHF could not read one, or not put them together.
    """
    sets = [
        (flag, name, split_flag, split)
        for flag, names, split_flag, split in (
            ("--data.prompt_dataset", args.data.prompt_dataset, "--data.prompt_split", args.data.prompt_split),
            ("--eval.dataset", args.eval.dataset, "--eval.split", args.eval.split),
        )
        for name in _names(names)
    ]
    if not args.data.prompt_dataset:
        raise UsageError("--data.prompt_dataset is not given: name the prompts")
    keys = {"--data.input_key": args.data.input_key, "--data.label_key": args.data.label_key}
    keys = {flag: key for flag, key in keys.items() if key}
    seen = []
    for flag, name, split_flag, split in sets:
        if not name:
            raise UsageError(f"{flag} has an empty name between or after its commas: leave the comma out")
        is_file = _ending(name) in TABLES and "://" not in name
        if is_file and not glob.glob(name):
            raise UsageError(f"{flag} {name} is not a file on this machine: give one that is")
        if args.use_ms and not os.path.exists(name):  # ModelScope's, which the job's processes ask
            continue
        row = _first_with_columns(flag, name, split_flag, split, keys)
        if is_file:
            seen.append(rows.check(flag, name, split, list(keys.values()), row, args))
        elif problem := rows.no_prompt(row, args):
            raise UsageError(f"{flag} {name}: the first row has {problem}")
        else:
            seen.append(rows.Rows(flag, name, row))
    for flag in dict.fromkeys(one.flag for one in seen):
        if problem := rows.unlike([one for one in seen if one.flag == flag]):
            raise UsageError(f"{flag}: {problem}")
    return seen


def _prompts(args: SimpleNamespace, sets: list[rows.Rows]) -> int | None:
    """How many prompts the data sets have together, each cut to `--data.max_samples`; None where they are mixed by
    probability, or not all were counted."""
    counts = [one.count for one in sets if one.flag == "--data.prompt_dataset"]
    if args.data.prompt_probs or not counts or None in counts:
        return None
    return sum(min(count, args.data.max_samples) for count in counts if count is not None)


def _refuse_too_few(args: SimpleNamespace, sets: list[rows.Rows]) -> None:
    """Prompts of which no rollout would have an optimizer step: all of each would be left out, to the job's end."""
    prompts, samples = _prompts(args, sets), args.rollout.n_samples_per_prompt
    if prompts is None or args.look.on:
        return
    prompts = min(prompts, args.data.max_samples)
    if prompts < args.rollout.batch_size and not dealing.evenly_dealt(prompts * samples, args):
        unit = dealing.dealing_unit(args, whole_steps=True)
        raise UsageError(
            f"--data.prompt_dataset {args.data.prompt_dataset} has {prompts} prompts for {prompts * samples} "
            f"responses, of which no optimizer step can be made, which takes {unit}: give {unit // samples} prompts "
            f"or more, or a smaller --train.batch_size than {args.train.batch_size}"
        )


def _doubts(args: SimpleNamespace, sets: list[rows.Rows]) -> Iterator[str]:
    """What OpenRLHF leaves out of the data without a word."""
    most, prompts = args.data.max_samples, _prompts(args, sets)
    if prompts is not None and prompts > most:
        yield (
            f"--data.max_samples {most} keeps the first {most} prompts of all data sets together, and leaves "
            f"{prompts - most} of the last ones out: give --data.prompt_probs to mix them"
        )
    for one in sets:
        if one.flag == "--eval.dataset" and one.count is not None and one.count > most:
            yield f"--data.max_samples {most} holds for --eval.dataset too: {most} of {one.count} prompts are used"
        if args.data.max_images_per_prompt > 0 and args.data.image_key not in one.first:
            yield (
                f"--data.image_key {args.data.image_key} is not a column of {one.name}, whose prompts are taken "
                f"without images: give one of {', '.join(one.first)}"
            )


def _cut_prompts(args: SimpleNamespace, sets: list[rows.Rows]) -> Iterator[str]:
    """Prompts for which there is not the room. Of each local file the one with the most characters is looked at.

    Raises:
        UsageError: one would end the job.
    """
    agent, name = args.train.agent_func_path, args.actor.model_name_or_path
    cuts_itself = agent and not tools.is_ours(agent)
    if cuts_itself or args.data.max_images_per_prompt > 0 or (args.use_ms and not os.path.isdir(name)):
        return
    answer = args.rollout.max_new_tokens or 1
    room = args.data.max_len - answer
    if room == 0 and agent:  # which gives such a prompt no turn
        return
    # Where there is no room OpenRLHF takes the last 0 tokens, which are all of them, and vLLM a prompt below max_len.
    longest = room or args.data.max_len - 1
    for one in sets:
        is_sampled = one.flag != "--eval.dataset" or args.eval.steps != -1
        if one.longest is None or (room == 0 and not is_sampled):
            continue
        prompt, _ = _preprocessed(one.longest, one.place, args)
        if len(prompt.encode()) <= longest:  # a token has a byte or more
            continue
        if (tokens := len(_tokenizer(name)(text=prompt, add_special_tokens=False)["input_ids"])) <= longest:
            continue
        problem = f"{one.flag} {one.place} has a prompt of {tokens} tokens, and --data.max_len {args.data.max_len}"
        if room == 0:
            raise UsageError(
                f"{problem} leaves nothing beside an answer of {answer}, so that OpenRLHF would not cut it and vLLM "
                "refuse it: raise --data.max_len, or leave such prompts out"
            )
        yield (
            f"{problem} leaves {room} beside an answer of {answer}: the beginnings of such prompts are cut off. Raise "
            "--data.max_len, or leave them out"
        )


def _first_with_columns(flag: str, name: str, split_flag: str, split: str, keys: dict[str, str]) -> dict:
    """The first row of a data set, which has the columns.

    Raises:
        UsageError: there is none, or it lacks one.
    """
    try:
        row = _first_row(name, split)
    except _NoSplit as error:
        raise UsageError(f"{split_flag} {split} is not a split of {name}: use one of {error}") from None
    except StopIteration:
        raise UsageError(f"{flag} {name} has no rows: give a data set that has some") from None
    except Exception as error:  # the readers of five formats and of the Hub raise what they like
        if _ending(name) in rows.JSON and (where := rows.malformed(name)):
            raise UsageError(f"{flag} {where}: fix that row") from None
        raise UsageError(
            f"{flag} {name} cannot be read ({_first_line(error)}): give a file that this machine sees, or a Hub "
            "id that it can reach"
        ) from None
    for key_flag, key in keys.items():
        if key not in row:
            raise UsageError(f"{key_flag} {key} is not a column of {name}: use one of {', '.join(row)}")
    return row


class _NoSplit(Exception):
    """The data set has others; the message names them."""


def _first_row(name: str, split: str) -> dict:
    """The first row of a data set, named as OpenRLHF names them: a file, a folder, or `Hub id@folder`.

    Raises:
        _NoSplit: it has no such split.
    """
    import datasets

    path, _, folder = (part.strip() for part in name.partition("@"))
    ending = _ending(path)
    if ending in TABLES:
        reader = "json" if ending == "jsonl" else ending
        data = datasets.load_dataset(reader, data_files=path, streaming=True)
    else:
        try:
            data = datasets.load_from_disk(path)
        except Exception:  # nothing that `datasets` saved: for OpenRLHF then a folder of data files, or a Hub id
            data = datasets.load_dataset(path, data_dir=folder or None, streaming=True)
    if not isinstance(data, dict):
        return next(iter(data))
    if split not in data:
        raise _NoSplit(", ".join(data))
    return next(iter(data[split]))


def _example(args: SimpleNamespace) -> tuple[str, object] | None:
    """Prompt and label of the first row, as the reward function gets them. None where the row is not at hand."""
    name = _names(args.data.prompt_dataset)[0]
    if args.use_ms and not os.path.exists(name):
        return None
    return _preprocessed(_first_row(name, args.data.prompt_split), f"{name}: its first row", args)


def _preprocessed(row: dict, place: str, args: SimpleNamespace) -> tuple[str, object]:
    """Prompt and label of a row, as OpenRLHF makes them.

    Raises:
        UsageError: a template does not take the row.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    template = None
    try:
        if args.data.apply_chat_template:
            name = args.actor.model_name_or_path
            config = _config("--actor.model_name_or_path", name, args.use_ms)
            template = _with_template(name, config).apply_chat_template
        keys = args.data.input_key, args.data.label_key
        return preprocess_data(row, args.data.input_template, *keys, apply_chat_template=template)
    except Exception as error:  # a template is a program
        raise UsageError(f"{place} gives no prompt ({sentence(error)}): fix the row, or the template") from None


def reward(args: SimpleNamespace) -> str:
    """What scores the responses; a Python file is imported, and its `reward_func` is tried on the first row."""
    if scripts := _scripts(args):
        try:
            example = _example(args)
        except Exception:  # which the checks of data and model say
            example = None
    for script in scripts:
        with _trial(*script) as outcome:
            outcome(example)
    if agent := args.train.agent_func_path:
        return f"agent {agent}"
    silent = unreachable(args)
    shown = {url: without_secrets(url) for url in args.reward.remote_url or ()}
    urls = [f"{name} (no connection: {silent[url]})" if url in silent else name for url, name in shown.items()]
    return ", ".join(urls) or f"reward model {args.reward.model_name_or_path}"


def unreachable(args: SimpleNamespace) -> dict[str, str]:
    """The addresses of rewards to which there is no connection from this machine, and why.

    No more than doubtful: the engines ask them, on nodes that may see another network, and a server may still start.
    """
    found = {}
    for url in args.reward.remote_url or ():
        if not url.strip().lower().startswith("http"):  # a Python file, or OpenRLHF's word for an agent
            continue
        try:
            parts = urlsplit(url.strip())
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname or "", port), ADDRESS_SECONDS).close()
        except (OSError, ValueError) as error:  # the second for what is no port or no name
            found[url] = str(error)
    return found


def _scripts(args: SimpleNamespace) -> list[tuple[str, str, str]]:
    """The Python files that score responses: path, what each is to define, and the flag.

    Raises:
        UsageError: one is not there.
    """
    if agent := args.train.agent_func_path:
        scripts = [(agent, "AgentExecutor", "--train.agent_func_path")]
    else:
        paths = [url for url in args.reward.remote_url or () if url.endswith(".py")]
        scripts = [(path, "reward_func", "--reward.remote_url") for path in paths]
    for path, _, flag in scripts:
        if not os.path.isfile(path):
            raise UsageError(f"{flag} {path} is not a file on this machine: give one that every node sees")
    return scripts


@contextmanager
def _trial(path: str, name: str, flag: str) -> Iterator[Callable[..., None]]:
    """The import of a file in a process of its own, since it may hang or end its process.

    The function given takes prompt and label of a row for its `reward_func` to be tried on, or None, and waits for the
    outcome. It raises `UsageError` if the file cannot be used.
    """
    command = [sys.executable, "-c", f"from {__name__} import _answer; _answer()", path, name, flag]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def end() -> None:
        """Kill the process and what the file started, which may outlive it: its session is a process group."""
        with suppress(OSError):  # none is left, or only another user's
            os.killpg(process.pid, signal.SIGKILL)

    def outcome(example: tuple[str, object] | None = None) -> None:
        pickle.dump(example, question)
        question.flush()
        os.write(asking, b"!")
        try:
            status = process.wait(FILE_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end()
        answer.seek(0)
        _judge(answer.read().splitlines(), status, path, name, flag)

    with (
        tempfile.TemporaryFile("w+") as answer,
        tempfile.TemporaryFile() as question,
        _forwarded(path) as output,
        _pipe() as (asked, asking),
        subprocess.Popen(
            [*command, str(question.fileno()), str(asked)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=output,
            start_new_session=True,
            pass_fds=(question.fileno(), asked),
        ) as process,
    ):
        try:
            yield outcome
        finally:
            if process.returncode is None:  # else its id may be another's by now
                end()


def _judge(lines: list[str], status: int | None, path: str, name: str, flag: str) -> None:
    """
    Args:
        lines: what the process of a trial has answered.
        status: None if it had not ended in time.

    Raises:
        UsageError: the file cannot be used.
    """
    if not lines and status is None:
        raise UsageError(
            f"{flag} {path} was not imported in {FILE_SECONDS} s: what takes long belongs in the first call of {name}"
        )
    if lines == [IMPORTED] and status is None:
        notice(f"{flag} {path} was not tried to its end: its first call takes more than {FILE_SECONDS} s")
    elif not lines or lines == [IMPORTED]:
        raise UsageError(f"{flag} {path} ends the process that imports it (status {status}): fix it")
    elif lines[-1].startswith(WARNING):
        notice(lines[-1].removeprefix(WARNING))
    elif lines[-1] != "ok":
        raise UsageError(lines[-1])


@contextmanager
def _forwarded(path: str) -> Iterator[BinaryIO]:
    """A file for what the process of a trial prints, which is then printed here, each line with the file's name.

    Without that the console would take a line that looks like the trainer's for one.
    """
    with tempfile.TemporaryFile() as output:
        try:
            yield output
        finally:
            output.seek(0)
            for line in output.read(OUTPUT_BYTES).decode(errors="replace").splitlines():
                print(f"({os.path.basename(path)}) {line}", file=sys.stderr)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _answer() -> None:
    """In the process of `_trial`: print `ok`, or what is wrong or doubtful, as the last line."""
    _end_with_the_driver()
    from openrlhf_stare import worker

    answer, sys.stdout = sys.stdout, sys.stderr  # the file's own lines are no answer
    worker.install()  # for what the file imports
    path, name, flag = sys.argv[1:4]
    question, asked = map(int, sys.argv[4:])

    try:
        function = _find(path, name, flag)
        if name == "AgentExecutor":
            executor = function()  # ours looks for its sandbox and its reward
            function = getattr(getattr(executor, "scorer", None), "reward_func", None)
        print(IMPORTED, file=answer, flush=True)
        os.read(asked, 1)  # until the row is there
        example = pickle.loads(os.pread(question, os.fstat(question).st_size, 0))
        said = _try_reward(function, f"{flag} {path}", *example) if function and example else "ok"
    except Exception as error:  # the file is the user's
        said = sentence(error)
    print(said, file=answer, flush=True)
    os._exit(0)  # a thread that the file started does not hold us up


def _try_reward(function: Callable, name: str, prompt: str, label: object) -> str:
    """Call a `reward_func` as OpenRLHF does, on an empty answer: `ok`, or a warning.

    Raises:
        UsageError: it cannot be called so, or what it returns is no reward.
    """
    try:
        inspect.signature(function).bind([prompt], [prompt], [label])
    except TypeError as error:
        raise UsageError(
            f"{name} has a reward_func that cannot be called ({error}): define reward_func(queries, prompts, labels)"
        ) from None
    from openrlhf_stare.rollout import reward_answers

    try:
        answer = function([prompt], [prompt], [label])
    except (Exception, SystemExit) as error:  # the file is the user's
        said = (
            f"{name} raises {sentence(error)} ({reward_answers.place_of(error)}) on the first row and an empty answer"
        )
        if isinstance(error, (NameError, ImportError)):  # whatever the answer
            raise UsageError(f"{said}: fix it") from None
        return f"{WARNING}{said}: a response for which it does so is left out of training"
    if problem := reward_answers.problem(answer):
        raise UsageError(
            f"{name} has a reward_func that returns {problem} on the first row and an empty answer, where "
            f"{reward_answers.WANTED}: return that"
        )
    if not reward_answers.has_finite_reward(answer):
        said = f"{name} gives no finite reward on the first row and an empty answer"
        if label == "":
            return f"{WARNING}{said}, where the label is empty as all are without --data.label_key: give that"
        return f"{WARNING}{said}: a response for which it does so is left out of training"
    return "ok"


def _end_with_the_driver() -> None:
    """In the process of `_trial`: have the kernel kill its group when its input ends, with the driver or its trial.

    A signal to the driver's group, such as a closed terminal's, does not reach this one. A thread that waits for the
    end could be kept from running, by an import that holds Python's lock.
    """
    pipe = os.dup(0)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the file has no input, as in the job


def _find(path: str, name: str, flag: str) -> Any:
    """What a file defines under the name, imported by its path as OpenRLHF does."""
    spec = importlib.util.spec_from_file_location("preflight_import", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{flag} {path} is not a Python file: give one whose name ends with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's
        raise UsageError(
            f"{flag} {path} cannot be imported ({type(error).__name__}: {_first_line(error)}): fix it, and put it "
            "where every node sees it"
        ) from None
    if not hasattr(module, name):
        raise UsageError(f"{flag} {path} does not define {name}: define it there")
    return getattr(module, name)


def look_for_the_hub(args: SimpleNamespace) -> dict[str, str]:
    """If something is to come from the Hub and that does not answer, turn to what was downloaded before.

    Its clients read the variable when they are imported. Without it each would try again for half a minute, in every
    process of the job.

    Returns:
        The variable if it was set here: the processes of a Ray that is running do not inherit this one's environment.
    """
    names = [*_models(args).values(), *_names(args.data.prompt_dataset), *_names(args.eval.dataset)]
    there = [name for name in names if _is_path(name) or _ending(name) in TABLES or os.path.exists(name)]
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if len(there) == len(names) or args.use_ms or "HF_HUB_OFFLINE" in os.environ:
        return {}
    import httpx  # which the Hub's clients use, so that certificates and proxies are theirs

    try:
        httpx.head(hub, timeout=HUB_SECONDS)  # any status is an answer
        return {}
    except Exception as error:  # whatever stops it would stop them
        notice(f"{hub} does not answer ({error}): only what was downloaded before is there (HF_HUB_OFFLINE=1)")
    variables = {"HF_HUB_OFFLINE": "1"}
    os.environ.update(variables)
    return variables


def _is_same(folder: str, other: str | None) -> bool:
    return other is not None and os.path.isdir(other) and os.path.realpath(folder) == os.path.realpath(other)


def _is_path(name: str) -> bool:
    """Whether a model's name can only be a folder: a Hub id is NAME or OWNER/NAME."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].removeprefix(".")


def _names(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def sentence(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, UsageError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _nearest_folder(path: str) -> Path:
    """The folder, or what exists nearest above it: a check leaves no folder behind."""
    asked = Path(path).absolute()
    return next(folder for folder in (asked, *asked.parents) if folder.exists())


@contextmanager
def token(path: str) -> Iterator[str | None]:
    """A file beside the checkpoints, for the nodes to say whether they see it; None where none can be written."""
    try:
        file = tempfile.NamedTemporaryFile(prefix=".preflight-", dir=_nearest_folder(path))
    except OSError:  # which the check of the checkpoints reports
        yield None
        return
    with file:
        yield file.name
