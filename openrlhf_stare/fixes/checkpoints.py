"""Checkpoints that outlive a crash: which one is complete, which one a job resumes from, which ones may be deleted.

OpenRLHF 0.11.2 deletes old checkpoints before it saves the new one, in an order in which the newest can come first,
and loads what DeepSpeed's file `latest` names, whole or not. Here rank 0 marks a checkpoint as begun, with an empty
manifest, before any rank writes to it. When all ranks have written, it puts a list of the files and their sizes in
place of that. Every rank reports the files that it wrote itself, because a node may see those of another late on a
shared file system. A checkpoint is complete if its list is there and its files have those sizes.

Actor and critic save the same tags side by side, in `_actor` and `_critic` under `--ckpt.path`, and a tag counts only
if it is complete in both. The newest of these is never deleted, unless the same tag is saved anew, and jobs resume
from it. As DeepSpeed does, this takes the path to be a folder that all nodes share.

`--ckpt.save_hf` writes the whole model beside each of the actor's checkpoints, and OpenRLHF keeps all of these for
ever. Here a model goes with its checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

from openrlhf_stare.notices import notice
from openrlhf_stare.replacing import replaced

MANIFEST = "manifest.json"
ENGINE_SAVE = "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine.TorchCheckpointEngine.save"
METRIC = "metric.json"  # OpenRLHF writes it to a checkpoint when all ranks have saved


class NoCompleteCheckpoint(RuntimeError):
    """Checkpoints were finished under the path to resume from, and none of them is complete any more."""


def keep_the_newest_complete(module: ModuleType) -> None:
    """Change `openrlhf.utils.deepspeed.deepspeed`: how the actor's and the critic's ranks save and load."""
    import torch.distributed

    strategy_class = module.DeepspeedStrategy
    load_named = strategy_class.load_ckpt

    def save_ckpt(self, model, save_dir, tag, max_num, max_mem, client_state=None, metric_value=None, metric_key=None):
        checkpoint = Path(save_dir, tag)
        if self.is_rank_0():
            kept, _ = newest_complete(model_folders(self.args))
            for deleted in make_room(checkpoint, kept, max_num, max_mem, self._read_ckpt_metric):
                self.print(f"Deleted checkpoint {deleted}")
            begin(checkpoint)
        torch.distributed.barrier()  # no rank writes before
        with _noted(model.checkpoint_engine) as written:
            model.save_checkpoint(save_dir, tag=tag, client_state=client_state or {})
        if self.is_rank_0():
            self._write_ckpt_metric(checkpoint, metric_value, metric_key=metric_key)
            written.append(checkpoint / METRIC)
        reports = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(reports, sizes_of(checkpoint, written))
        if self.is_rank_0():
            finish(checkpoint, {name: size for report in reports for name, size in report.items()})

    def load_ckpt(self, model, load_dir, tag=None, **options):
        if tag is None and not self.use_ds_universal_ckpt:
            found = [resume_point(model_folders(self.args)) if self.is_rank_0() else None]
            torch.distributed.broadcast_object_list(found)
            tag, sentence = found[0]
            if self.is_rank_0():
                notice(sentence)
            if tag is None:
                return None, {}
        return load_named(self, model, load_dir, tag, **options)

    strategy_class.save_ckpt, strategy_class.load_ckpt = save_ckpt, load_ckpt


@contextmanager
def _noted(engine) -> Iterator[list[Path]]:
    """The files that this rank writes meanwhile with DeepSpeed's checkpoint engine."""
    written, save = [], engine.save

    def save_and_note(state_dict, path):
        save(state_dict, path)
        written.append(Path(path))

    with replaced(ENGINE_SAVE, save_and_note, on=engine):
        yield written


def model_folders(args: SimpleNamespace) -> list[Path]:
    """Where a job with OpenRLHF's nested arguments keeps its checkpoints: the actor's folder, and the critic's if the
    job has a critic that was saved before."""
    actor, critic = Path(args.ckpt.path, "_actor"), Path(args.ckpt.path, "_critic")
    return [actor, critic] if args.critic.model_name_or_path and critic.exists() else [actor]


# ── one checkpoint ──


def begin(checkpoint: Path) -> None:
    """Make the folder anew, marked as begun."""
    if checkpoint.exists():
        delete(checkpoint)
    checkpoint.mkdir(parents=True)
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
        raise OSError(f"Checkpoint {checkpoint} is not whole on the disk: {', '.join(broken)} was cut short")
    draft = checkpoint / f"{MANIFEST}.draft"
    draft.write_text(json.dumps({"time": time.time(), "files": sizes}, indent=1))
    os.replace(draft, checkpoint / MANIFEST)


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
        json.loads((checkpoint / METRIC).read_text())
        states = list(checkpoint.rglob("*.pt"))
        return bool(states) and all(map(zipfile.is_zipfile, states))  # torch.save's archives have their index last
    except (OSError, ValueError):
        return False


def saved_model(checkpoint: Path) -> Path | None:
    """Where `--ckpt.save_hf` puts the whole model of the actor's checkpoint; None for the critic's."""
    actor = checkpoint.parent.name == "_actor"
    return checkpoint.parent.with_name(f"{checkpoint.name}_hf") if actor else None


def delete(checkpoint: Path) -> None:
    """Delete its saved model and the folder, so that what is left of it if we are killed meanwhile is not complete."""
    if (model := saved_model(checkpoint)) and model.exists():
        shutil.rmtree(model)
    (checkpoint / METRIC).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def _manifest(checkpoint: Path) -> dict | None:
    """What `finish` wrote; empty if the checkpoint was begun only; None if it is not this plugin's."""
    try:
        return json.loads((checkpoint / MANIFEST).read_text() or "{}")
    except ValueError:
        return {}
    except OSError:
        return None


def _was_finished(checkpoint: Path) -> bool:
    manifest = checkpoint / MANIFEST
    return manifest.stat().st_size > 0 if manifest.exists() else (checkpoint / METRIC).exists()


def _saved_at(checkpoint: Path) -> float:
    """Seconds since 1970; 0 for what is not there."""
    manifest = _manifest(checkpoint)
    with suppress(OSError):  # the other model's ranks may be deleting theirs
        return manifest["time"] if manifest else checkpoint.stat().st_mtime
    return 0.0


# ── all checkpoints of a job ──


def newest_complete(folders: Sequence[Path]) -> tuple[str | None, list[str]]:
    """The tag that is complete in all of these folders: the one that a `latest` names, else the newest.

    Returns:
        The tag, None if there is none, and the incomplete tags that come before it, newest first.
    """
    tags = {path.name for folder in folders if folder.exists() for path in folder.iterdir() if path.is_dir()}
    # A kill or a full disk can leave `latest` empty or naming what was only begun; edited by hand it is a wish.
    latest = {path.read_text().strip() for path in (folder / "latest" for folder in folders) if path.exists()}

    def age(tag: str) -> tuple[bool, float]:
        return tag in latest, max(_saved_at(folder / tag) for folder in folders)

    passed_over = []
    for tag in sorted(tags, key=age, reverse=True):
        if all(is_complete(folder / tag) for folder in folders):
            return tag, passed_over
        passed_over.append(tag)
    return None, passed_over


def resume_point(folders: Sequence[Path]) -> tuple[str | None, str]:
    """Where a job with `--ckpt.load_enable` goes on.

    Returns:
        The tag, None for the beginning, and what to tell the user, a sentence.

    Raises:
        NoCompleteCheckpoint: there were complete checkpoints, and all are damaged.
    """
    tag, passed_over = newest_complete(folders)
    path, incomplete = folders[0].parent, ", ".join(passed_over)
    if tag is not None:
        return tag, f"Resuming from checkpoint {tag}" + (f", past the incomplete {incomplete}" if incomplete else "")
    if any(_was_finished(folder / name) for folder in folders for name in passed_over):
        raise NoCompleteCheckpoint(
            f"No checkpoint under {path} is complete any more ({incomplete}): bring one back, "
            "or leave out --ckpt.load_enable to start from the beginning"
        )
    never = f" ({incomplete} was only begun)" if incomplete else ""
    return None, f"No checkpoint under {path} was ever finished{never}: starting from the beginning"


def make_room(
    new: Path, kept: str | None, max_num: int, max_mem: float, metric: Callable[[str], float | None]
) -> list[Path]:
    """Delete what has to go before `new` is saved, each with its saved model, whose size counts too.

    OpenRLHF's rule: a new best checkpoint replaces the old best; fewer than `max_num` of the others are left, and all
    together at most `max_mem` GiB; those without a metric go first, then those with the worst, then the oldest. Before
    them go the incomplete ones; the tag `kept` stays whatever the limits are.

    Returns:
        The folders deleted.
    """

    def is_best(checkpoint: Path) -> bool:
        return checkpoint.name.startswith("best")

    def goes_last(checkpoint: Path) -> tuple:
        value = metric(checkpoint)
        return is_complete(checkpoint), value is not None, value or 0.0, _saved_at(checkpoint)

    if not new.parent.exists():
        return []
    present = [path for path in new.parent.iterdir() if path.is_dir() and path != new]
    sizes = {path: _bytes_in(path) + _bytes_in(saved_model(path)) for path in present}
    regular = [path for path in present if not is_best(path)]
    doomed = [path for path in present if is_best(path) and is_best(new) and path.name != kept]
    for path in sorted(regular, key=goes_last):
        left = [path for path in present if path not in doomed]
        few = is_best(new) or sum(path in regular for path in left) < max_num
        if few and sum(sizes[path] for path in left) <= max_mem * 2**30:
            break
        if path.name != kept:
            doomed.append(path)
    for path in doomed:
        delete(path)
    return doomed


def _bytes_in(folder: Path | None) -> int:
    files = folder.rglob("*") if folder else ()
    return sum(file.stat().st_size for file in files if file.is_file())
