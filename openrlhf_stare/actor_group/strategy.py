"""OpenRLHF's strategy with checkpoints that outlive a crash.

OpenRLHF 0.11.2 deletes old checkpoints before it saves the new one, in an order in which the newest can come first,
and loads what DeepSpeed's file `latest` names, whole or not. `checkpoints.py` says what takes the place of both. It
writes whole models in their place, where a kill leaves a part that looks like one.

The driver makes the strategy, and Ray takes it to every actor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

from openrlhf_stare.actor_group import checkpoints
from openrlhf_stare.notices import notice
from openrlhf_stare.replacing import replaced

ENGINE_SAVE = "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine.TorchCheckpointEngine.save"


class CheckpointedStrategy(DeepspeedStrategy):
    """How the actor's and the critic's ranks save and load. All methods are collective."""

    def save_ckpt(self, model, save_dir, tag, max_num, max_mem, client_state=None, metric_value=None, metric_key=None):
        checkpoint = Path(save_dir, tag)
        if self.is_rank_0():
            folders, limits = checkpoints.model_folders(self.args), (max_num, max_mem)
            for deleted in checkpoints.before_saving(checkpoint, folders, *limits, self._read_ckpt_metric):
                self.print(f"Deleted checkpoint {deleted}")
        torch.distributed.barrier()  # no rank writes before
        with _noted(model.checkpoint_engine) as written:
            model.save_checkpoint(save_dir, tag=tag, client_state=client_state or {})
        if self.is_rank_0():
            self._write_ckpt_metric(checkpoint, metric_value, metric_key=metric_key)
            written.append(checkpoint / checkpoints.METRIC)
        # Each rank's own, because a node may see the files of another late on a shared file system.
        reports = _gathered(checkpoints.sizes_of(checkpoint, written))
        if self.is_rank_0():
            sizes = {name: size for own in reports for name, size in own.items()}
            for deleted in checkpoints.after_saving(checkpoint, folders, sizes):
                self.print(f"Deleted checkpoint {deleted}")

    def load_ckpt(self, model, load_dir, tag=None, **options):
        if tag is None and not self.use_ds_universal_ckpt:
            tag, sentence, folders = self._resume_point()
            if Path(load_dir) not in folders:  # a critic starts anew, as the driver has said
                return None, {}
            if self.is_rank_0():
                notice(sentence)
            if tag is None:
                return None, {}
            checkpoints.refuse_other_type(Path(load_dir, tag), self.param_dtype)
        return super().load_ckpt(model, load_dir, tag, **options)

    def save_model(self, model, tokenizer, output_dir, **options):
        """A new folder gets its name once the model in it is whole; one that is there is written to as it is."""
        folder = draft = Path(output_dir)
        if not os.path.lexists(folder):  # only what rank 0 sees counts, which alone writes
            draft = checkpoints.draft_of(folder)
        super().save_model(model, tokenizer, str(draft), **options)
        if self.is_rank_0() and draft != folder:
            os.replace(draft, folder)

    def _resume_point(self) -> tuple[str | None, str, list[Path]]:
        """`checkpoints.resume_point`, the same on all ranks of actor and critic, past those whose files are damaged.

        The folders are those that count.

        Raises:
            NoCompleteCheckpoint: on all ranks.
        """
        damaged: dict[str, str] = {}
        while True:
            found: list[Any] = [None]
            if self.is_rank_0():
                try:
                    folders = checkpoints.model_folders(self.args)
                    found = [(*checkpoints.resume_point(folders, damaged), folders)]
                except checkpoints.NoCompleteCheckpoint as error:
                    found = [error]
            torch.distributed.broadcast_object_list(found)
            if isinstance(found[0], Exception):
                raise found[0]
            tag, sentence, folders = found[0]
            if tag is None or not (file := self._damaged_file(folders, tag)):
                return tag, sentence, folders
            damaged[tag] = file

    def _damaged_file(self, folders: list[Path], tag: str) -> str | None:
        """The first file of the checkpoint whose contents are not what was written. Each rank reads its share."""
        files = sorted(file for folder in folders for file in (folder / tag).rglob("*.pt"))
        own = files[self.get_rank() :: torch.distributed.get_world_size()]
        bad = _gathered([str(file) for file in own if not checkpoints.is_whole(file)])
        return min((file for own in bad for file in own), default=None)


def _gathered(own: object) -> list:
    """What every rank has, in the order of the ranks."""
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


@contextmanager
def _noted(engine) -> Iterator[list[Path]]:
    """The files that this rank writes meanwhile with DeepSpeed's checkpoint engine."""
    written, save = [], engine.save

    def save_and_note(state_dict, path):
        save(state_dict, path)
        written.append(Path(path))

    with replaced(ENGINE_SAVE, save_and_note, on=engine):
        yield written
