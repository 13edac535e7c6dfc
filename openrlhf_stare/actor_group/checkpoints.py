"""Checkpoints that outlive a crash: which one is complete, which one a job resumes from, which ones may be deleted.

Here are the folders alone, so that the driver can look at them too; `strategy.py` has what the ranks do. Rank 0 marks
a checkpoint as begun, with an empty manifest, before any rank writes to it. When all ranks have written, it puts a
list of the files and their sizes in place of that. A checkpoint is complete if its list is there and its files have
those sizes. Whether their contents are still those that were written costs reading them, and is looked at before
loading.

Actor and critic save the same tags side by side, in `_actor` and `_critic` under `--ckpt.path`, and a tag counts only
if it is complete in both. The newest of these is never deleted, unless the same tag is saved anew, and jobs resume
from it. As DeepSpeed does, this takes the path to be a folder that all nodes share.

`--ckpt.save_hf` writes the whole model beside each of the actor's checkpoints, and OpenRLHF keeps all of these for
ever. Here a model goes with its checkpoint. What a kill left of one is named a draft, and goes before the next save.

Only what a job wrote is deleted: folders with the name of a checkpoint and a checkpoint in them. A link is resumed
from, and neither counted nor deleted, since what it leads to is the user's.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError

MANIFEST = "manifest.json"
METRIC = "metric.json"  # OpenRLHF writes it to a checkpoint when all ranks have saved
DRAFT = ".draft"  # behind the name of what is not whole yet
TAG = re.compile(r"(best_)?global_step\d+")  # OpenRLHF's names


class NoCompleteCheckpoint(RuntimeError):
    """Checkpoints were finished under the path to resume from, and none of them is complete any more."""


def model_folders(args: SimpleNamespace) -> list[Path]:
    """Where a job with OpenRLHF's nested arguments keeps its checkpoints: the actor's folder, and the critic's if the
    job has a critic that was saved before. One that joins a run counts once both models have finished a checkpoint:
    until then it starts anew from the actor's."""
    actor, critic = Path(args.ckpt.path, "_actor"), Path(args.ckpt.path, "_critic")
    if not (args.critic.model_name_or_path and critic.exists()):
        return [actor]
    of_actor = finished_tags([actor])
    joins = any(not is_checkpoint(critic / tag) for tag in of_actor)
    return [actor] if joins and not set(of_actor) & set(finished_tags([critic])) else [actor, critic]


# ── one checkpoint ──


def begin(checkpoint: Path) -> None:
    """Make the folder anew, marked as begun."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
    elif is_checkpoint(checkpoint):
        delete(checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / MANIFEST).touch()


def sizes_of(checkpoint: Path, written: Iterable[Path]) -> dict[str, int | None]:
    """Bytes of each of these files of the checkpoint; None for one that was cut short on its way to the disk."""
    return {
        str(path.relative_to(checkpoint)): path.stat().st_size
        if path.suffix != ".pt" or zipfile.is_zipfile(path)
        else None
        for path in written
    }


def finish(checkpoint: Path, sizes: dict[str, int | None]) -> None:
    """Mark the checkpoint as complete, all at once; `sizes` are those of all ranks.

    Raises:
        OSError: a file was cut short on its way to the disk.
    """
    if broken := [name for name, size in sizes.items() if size is None]:
        raise OSError(f"Checkpoint {checkpoint} is incomplete on the disk: {', '.join(broken)} was cut short")
    contents = {"time": time.time(), "files": sizes}
    draft = draft_of(checkpoint / MANIFEST)
    draft.write_text(json.dumps(contents | {"crc32": _crc32(contents)}, indent=1))
    os.replace(draft, checkpoint / MANIFEST)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, complete or not, and nothing else that somebody keeps there."""
    if os.path.isfile(folder / MANIFEST) or os.path.isfile(folder / METRIC):
        return True
    return next(folder.glob("*_states.pt"), None) is not None  # OpenRLHF alone was killed while it saved


def is_complete(checkpoint: Path) -> bool:
    """Whether all of it is on the disk.

    Of a checkpoint saved by OpenRLHF without this plugin: whether its ranks had all saved, and none of its files lacks
    its end. A file that is gone altogether is missed then.
    """
    manifest = _manifest(checkpoint)
    try:
        if manifest is not None:
            sizes = manifest.get("files", {})
            return bool(sizes) and all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
        json.loads((checkpoint / METRIC).read_bytes())
        states = list(checkpoint.rglob("*.pt"))
        return bool(states) and all(map(zipfile.is_zipfile, states))  # torch.save's archives have their index last
    except (OSError, ValueError):
        return False


def is_whole(file: Path) -> bool:
    """Whether a file that `torch.save` wrote, an archive with checksums, has the contents that were written."""
    from torch._C import PyTorchFileReader

    try:
        PyTorchFileReader(str(file))  # looks closer at the index
        with zipfile.ZipFile(file) as archive:
            # Of an entry that is marked as a folder torch reads nothing, and does not say so.
            return archive.testzip() is None and not any(entry.external_attr for entry in archive.infolist())
    except Exception:  # a damaged index makes the reader raise all kinds of errors
        return False


def saved_model(checkpoint: Path) -> Path | None:
    """Where `--ckpt.save_hf` puts the whole model of the actor's checkpoint; None for the critic's."""
    actor = checkpoint.parent.name == "_actor"
    return checkpoint.parent.with_name(f"{checkpoint.name}_hf") if actor else None


def draft_of(path: Path) -> Path:
    """Where a file or folder is written that gets its name, `path`, once it is whole."""
    return path.with_name(path.name + DRAFT)


def _model_drafts(checkpoint: Path) -> list[Path]:
    """What a killed job has left of whole models beside the actor's checkpoints; none for the critic's checkpoint."""
    folder, end = checkpoint.parent.parent, f"_hf{DRAFT}"
    found = folder.glob(f"*{end}") if saved_model(checkpoint) else ()
    return [path for path in found if TAG.fullmatch(path.name.removesuffix(end)) and not path.is_symlink()]


def delete(checkpoint: Path) -> None:
    """Delete its saved model and the folder, so that what is left of it if we are killed meanwhile is not complete."""
    if model := saved_model(checkpoint):
        if model.is_symlink():
            model.unlink()
        elif model.exists():
            shutil.rmtree(model)
    (checkpoint / METRIC).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def _manifest(checkpoint: Path) -> dict | None:
    """What `finish` wrote; empty if the checkpoint was begun only or its manifest is damaged; None without one."""
    try:
        contents = json.loads((checkpoint / MANIFEST).read_bytes() or b"{}")
        crc32 = contents.pop("crc32", None)
        is_list, seconds = isinstance(contents["files"], dict), float(contents["time"])
        if is_list and math.isfinite(seconds) and crc32 in (None, _crc32(contents)):
            return {"time": seconds, "files": contents["files"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError):
        pass  # damaged, or begun only
    return {}


def _crc32(contents: dict) -> int:
    return zlib.crc32(json.dumps(contents).encode())


def was_finished(checkpoint: Path) -> bool:
    """Whether all ranks had saved it once, damaged or not since."""
    manifest = checkpoint / MANIFEST
    return os.path.getsize(manifest) > 0 if os.path.exists(manifest) else os.path.exists(checkpoint / METRIC)


def _saved_at(checkpoint: Path) -> float:
    """Seconds since 1970; 0 for what is not there."""
    manifest = _manifest(checkpoint)
    with suppress(OSError):  # the other model's ranks may be deleting theirs
        return manifest["time"] if manifest else checkpoint.stat().st_mtime
    return 0.0


def refuse_other_type(checkpoint: Path, param_dtype: str) -> None:
    """Refuse a checkpoint of a job that computed in another type: DeepSpeed would look for files of other names.

    Args:
        param_dtype: what this job computes in, as in `args.ds.param_dtype`.

    Raises:
        UsageError: the types differ.
    """
    words = {"bf16": "bfloat16", "fp32": "float32"}
    names = [file.name for file in checkpoint.glob("*optim_states.pt")]
    saved = "bf16" if any(name.startswith("bf16_") for name in names) else "fp32"
    if names and saved != param_dtype:
        raise UsageError(
            f"--ckpt.load_enable finds {checkpoint}, whose job computed in {words[saved]}, and this one computes in "
            f"{words[param_dtype]}: set OPENRLHF_STARE_CPU_DTYPE={words[saved]} to go on with it on a CPU, or start "
            "from the model that it saved, without --ckpt.load_enable"
        )


def refuse_other_ranks(checkpoint: Path, args: SimpleNamespace, model: str) -> None:
    """Refuse a checkpoint of another number of ranks: DeepSpeed asserts that, when all models are loaded.

    Args:
        args: OpenRLHF's nested arguments; all ranks share the batch, as without ring attention or tensor parallelism.
        model: whose checkpoint it is, actor or critic.

    Raises:
        UsageError: the checkpoint is of another number of ranks, or of ZeRO-3 where this job is not, or the reverse.
    """
    nodes, of_node = getattr(args, model).num_nodes, getattr(args, model).num_gpus_per_node
    saved = len(list(checkpoint.glob("*zero_pp_rank_*_optim_states.pt")))
    is_stage_3 = any(checkpoint.glob("zero_pp_rank_*_model_states.pt"))
    remedy = "give what it was saved with, or start from the model that it saved, without --ckpt.load_enable"
    if saved and saved != nodes * of_node:
        raise UsageError(
            f"--{model}.num_nodes {nodes} x --{model}.num_gpus_per_node {of_node} are {nodes * of_node} ranks, and "
            f"{checkpoint} was saved by {saved}: {remedy}"
        )
    if saved and is_stage_3 != (args.ds.zero_stage == 3):
        stage = "ZeRO-3" if is_stage_3 else "ZeRO-1 or -2"
        raise UsageError(f"--ds.zero_stage {args.ds.zero_stage} cannot go on with {checkpoint} of {stage}: {remedy}")


def refuse_other_folder(args: SimpleNamespace) -> None:
    """Refuse, in a process of the job, a `--ckpt.path` that is not the folder in which the driver found a checkpoint.

    OpenRLHF 0.11.2 lets each process look for itself, and start anew where it finds nothing: a job of which only some
    resume hangs, or trains weights of one step with the prompts and the sampler's weights of another.

    Raises:
        FileNotFoundError: this machine does not have the checkpoint.
    """
    for folder in getattr(args.ckpt, "resume_from", ()):  # which the driver sets
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"--ckpt.path {args.ckpt.path} is not the folder that the driver sees: {folder}, from which the job "
                f"resumes, is not there on {socket.gethostname()}. Put it on a file system that all nodes share"
            )


# ── all checkpoints of a job ──


def finished_tags(folders: Sequence[Path]) -> list[str]:
    """The tags that were finished in one of these folders, damaged or not since, oldest first."""
    found = {path for path in _checkpoints(folders) if was_finished(path)}
    return list(dict.fromkeys(path.name for path in sorted(found, key=_saved_at)))


def newest_complete(folders: Sequence[Path], damaged: Iterable[str] = ()) -> tuple[str | None, list[str]]:
    """The tag that is complete in all of these folders: the one that a `latest` names, else the newest.

    Args:
        folders: of actor and critic.
        damaged: tags that are known not to be whole.

    Returns:
        The tag, None if there is none, and the tags that come before it and cannot be used, newest first.
    """
    tags = {path.name for path in _checkpoints(folders)}
    latest = _named_latest(folders)

    def age(tag: str) -> tuple[bool, float]:
        return tag in latest, max(_saved_at(folder / tag) for folder in folders)

    passed_over: list[str] = []
    for tag in sorted(tags, key=age, reverse=True):
        if tag not in damaged and all(is_complete(folder / tag) for folder in folders):
            return tag, passed_over
        passed_over.append(tag)
    return None, passed_over


def _checkpoints(folders: Sequence[Path]) -> list[Path]:
    there = [folder for folder in folders if os.path.isdir(folder)]
    return [path for folder in there for path in folder.iterdir() if os.path.isdir(path) and is_checkpoint(path)]


def _named_latest(folders: Sequence[Path]) -> set[str]:
    """After a kill, `latest` may be empty or name an unfinished checkpoint. If a user edited it, prefer its tag."""
    named = set()
    for folder in folders:
        with suppress(OSError):
            named.add((folder / "latest").read_text(errors="replace").strip())
    return named


def resume_point(folders: Sequence[Path], damaged: Mapping[str, str] | None = None) -> tuple[str | None, str]:
    """Where a job with `--ckpt.load_enable` goes on.

    Args:
        folders: of actor and critic.
        damaged: tags that are known not to be whole -> the file that shows it.

    Returns:
        The tag, None for the beginning, and what to tell the user, a sentence.

    Raises:
        NoCompleteCheckpoint: there were complete checkpoints of each model, and all are damaged.
    """
    damaged = damaged or {}
    tag, passed_over = newest_complete(folders, damaged)
    path = folders[0].parent
    unusable = ", ".join(f"{name} (damaged: {damaged[name]})" if name in damaged else name for name in passed_over)
    if tag is not None:
        return tag, f"Resuming from checkpoint {tag}" + (f", past the incomplete {unusable}" if unusable else "")
    if all(any(was_finished(folder / name) for name in passed_over) for folder in folders):
        raise NoCompleteCheckpoint(
            f"No checkpoint under {path} is complete any more ({unusable}): bring one back, or start from the "
            "beginning in another --ckpt.path"
        )
    begun = f" ({unusable} was only begun)" if unusable else ""
    return None, f"no checkpoint in {path}{begun}: started from the beginning"


def before_saving(
    new: Path, folders: Sequence[Path], max_num: int, max_mem: float, metric: Callable[[Path], float | None]
) -> list[Path]:
    """Rank 0's part of saving `new`, before any rank writes to it. `folders` are those of all models.

    Returns:
        The folders deleted.
    """
    kept, _ = newest_complete(folders)
    deleted = drop_replaced_best(new.parent, folders) + make_room(new, kept, max_num, max_mem, metric)
    begin(new)
    return deleted


def after_saving(new: Path, folders: Sequence[Path], sizes: dict[str, int | None]) -> list[Path]:
    """Rank 0's part, once every rank has written and said its `sizes_of`.

    Returns:
        The folders deleted.

    Raises:
        OSError: see `finish`.
    """
    finish(new, sizes)
    return drop_replaced_best(new.parent, folders)


def make_room(
    new: Path, kept: str | None, max_num: int, max_mem: float, metric: Callable[[Path], float | None]
) -> list[Path]:
    """Delete what has to go before `new` is saved, each with its saved model, whose size counts too.

    OpenRLHF's rule: fewer than `max_num` of those that are not best ones are left, and all together at most `max_mem`
    GiB; those without a finite metric go first, then those with the worst, then the oldest. Before them go the
    incomplete ones, and what was only begun of saved models; the tag `kept` stays whatever the limits are.

    Returns:
        The folders deleted.
    """

    def goes_last(checkpoint: Path) -> tuple:
        value = metric(checkpoint)
        finite = value is not None and math.isfinite(value)
        return is_complete(checkpoint), finite, value if finite else 0.0, _saved_at(checkpoint)

    for draft in _model_drafts(new):
        shutil.rmtree(draft, ignore_errors=True)  # one that cannot be deleted costs its room and not the job
    present = [path for path in _own_checkpoints(new.parent) if path != new]
    sizes = {path: _bytes_in(path) + _bytes_in(saved_model(path)) for path in present}
    regular = [path for path in present if not _is_best(path)]
    doomed = [path for path in present if _is_best(path) and path.name != kept and not is_complete(path)]
    for path in sorted(regular, key=goes_last):
        left = [path for path in present if path not in doomed]
        few = _is_best(new) or sum(path in regular for path in left) < max_num
        if few and sum(sizes[path] for path in left) <= max_mem * 2**30:
            break
        if path.name != kept:
            doomed.append(path)
    return _deleted(doomed)


def drop_replaced_best(folder: Path, folders: Sequence[Path]) -> list[Path]:
    """Delete the best checkpoints in `folder` that a newer one, complete in all `folders`, has replaced.

    OpenRLHF deletes the old one before it saves the new one, and a job that dies in between has none.

    Returns:
        The folders deleted.
    """
    kept, _ = newest_complete(folders)
    best = sorted(filter(_is_best, _own_checkpoints(folder)), key=_saved_at)
    complete = [number for number, path in enumerate(best) if all(is_complete(one / path.name) for one in folders)]
    return _deleted([path for path in best[: complete[-1]] if path.name != kept] if complete else [])


def _deleted(checkpoints: list[Path]) -> list[Path]:
    """Delete them. One that cannot be deleted costs its room and not the job."""
    done = []
    for path in checkpoints:
        try:
            delete(path)
            done.append(path)
        except OSError as error:
            notice(f"The old checkpoint {path} could not be deleted ({error})")
    return done


def _own_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in the folder that a job has saved there, complete or not."""
    return [path for path in _checkpoints([folder]) if TAG.fullmatch(path.name) and not path.is_symlink()]


def _is_best(checkpoint: Path) -> bool:
    return checkpoint.name.startswith("best")


def _bytes_in(folder: Path | None) -> int:
    files = folder.rglob("*") if folder and not folder.is_symlink() else ()
    return sum(file.lstat().st_size for file in files if file.is_file())
