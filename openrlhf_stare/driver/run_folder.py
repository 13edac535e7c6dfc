"""The folder of `--ckpt.path` belongs to one job at a time, and its checkpoints to one run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare.actor_group import checkpoints
from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError

LOCK = "job.lock"
# What flock answers where a file system does not have it.
NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def check(args: SimpleNamespace) -> str | None:
    """Look for checkpoints under `--ckpt.path`.

    Args:
        args: the nested arguments as OpenRLHF's `train` gets them. `args.ckpt.resume_from` becomes the checkpoint to
            resume from, a folder each of actor and critic, empty if there is none: the job's processes look for it.

    Returns:
        With `--ckpt.load_enable`, if there is nothing to resume from, or nothing for the critic, a sentence for the
        user; else None.

    Raises:
        UsageError: without `--ckpt.load_enable` there are some, of another run; with it all are damaged, or of a job
            that computed in another type. Or the folder cannot be read.
    """
    try:
        return _beginning(args)
    except OSError as error:
        raise UsageError(
            f"--ckpt.path {args.ckpt.path} cannot be read ({error.strerror}: {error.filename}): choose another folder"
        ) from None
    except checkpoints.NoCompleteCheckpoint as error:
        raise UsageError(str(error)) from None


def _beginning(args: SimpleNamespace) -> str | None:
    args.ckpt.resume_from = []
    folders = checkpoints.model_folders(args)
    if not args.ckpt.load_enable:
        if tags := checkpoints.finished_tags(folders):
            raise UsageError(
                f"--ckpt.path {args.ckpt.path} has checkpoints of another run ({', '.join(tags)}): add "
                "--ckpt.load_enable to go on with that run, or give another folder"
            )
        return None
    if args.ds.use_universal_ckpt:  # which DeepSpeed looks for itself
        return None
    tag, sentence = checkpoints.resume_point(folders)
    if tag is not None:
        args.ckpt.resume_from = [str(folder / tag) for folder in folders]
        checkpoints.refuse_other_type(folders[0] / tag, args.ds.param_dtype)
        if args.ds.ring_attn_size == args.ds.tensor_parallel_size == 1:
            for folder in folders:
                checkpoints.refuse_other_ranks(folder / tag, args, folder.name.removeprefix("_"))
        if args.critic.model_name_or_path and len(folders) == 1:
            return f"--ckpt.path {args.ckpt.path} has no checkpoint of the critic, which starts anew"
        return None
    sibling = similar_folder(Path(args.ckpt.path))
    return f"{sentence} (there are checkpoints in {sibling}: was that meant?)" if sibling else sentence


def similar_folder(path: Path) -> Path | None:
    """A folder with checkpoints whose name differs little from that of `path` or of the folder above it."""
    path = path.absolute()
    for part, rest in ((path, "."), (path.parent, path.name)):
        with suppress(OSError):  # not there, or another user's
            names = [entry.name for entry in part.parent.iterdir() if entry.name != part.name]
            for name in get_close_matches(part.name, names):
                found = part.parent / name / rest
                if checkpoints.finished_tags([found / "_actor"]):
                    return found
    return None


@contextmanager
def held(path: str) -> Iterator[None]:
    """Keep the folder for this job.

    The lock is flock's, which ends with the process, and the file says who has it. Where the file system does not have
    flock, what the file says decides.

    Raises:
        UsageError: another job has it, or it cannot be written.
    """
    file = Path(path, LOCK)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"--ckpt.path {path} cannot be written ({error.strerror}): choose another folder") from None
    try:
        has_flock = _flock(descriptor, path)
        if owner := _owner(descriptor):
            if not has_flock and not _is_gone(owner):
                raise UsageError(f"{_used(path, owner)}: end it or give another folder; if it is gone, delete {file}")
            notice(f"The job that used {path} before ({_who(owner)}) was ended by force, and this one takes over")
        _write(descriptor, {"host": socket.gethostname(), "pid": os.getpid(), "started": _start_of(os.getpid())})
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, path: str) -> bool:
    """Whether the file system has flock; this process has the lock then.

    Raises:
        UsageError: another process has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{_used(path, _owner(descriptor))}: end it or give another folder") from None
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        return False
    return True


def _used(path: str, owner: dict | None) -> str:
    return f"--ckpt.path {path} is used by another job" + (f" ({_who(owner)})" if owner else "")


def _who(owner: dict) -> str:
    return f"process {owner['pid']} on {owner['host']}"


def _owner(descriptor: int) -> dict | None:
    """Who wrote the file; None if its job ended, or nobody that is known."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return owner if isinstance(owner["host"], str) and isinstance(owner["pid"], int) else None
    except (ValueError, TypeError, LookupError):
        return None


def _is_gone(owner: dict) -> bool:
    """Whether the process has ended; of one on another host nothing is known."""
    return owner["host"] == socket.gethostname() and _start_of(owner["pid"]) != owner.get("started")


def _start_of(pid: int) -> int | None:
    """When a process of this machine started, in ticks since the machine did; None without such a process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _write(descriptor: int, owner: dict) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)
