"""OpenRLHF's loader of prompts, with a state that says which prompts they are.

The state that torchdata saves is a place in an order of row numbers. With other prompts OpenRLHF 0.11.2 goes on at
that place in silence. With fewer than were drawn it ends with a bare StopIteration, with another number of workers
with an AssertionError, when all models are loaded.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_stare.notices import notice


class PromptLoader(StatefulDataLoader):
    """torchdata's `StatefulDataLoader` of an OpenRLHF `PromptDataset`.

    Attributes:
        saved: the state to save in the place of the present one; None for that one.
    """

    saved: dict[str, Any] | None = None

    @functools.cached_property
    def prompts(self) -> dict[str, int]:
        """How many there are, and a checksum of them in their order."""
        crc32, texts = 0, self.dataset.prompts
        for text in texts:
            crc32 = zlib.crc32(repr(text).encode(), crc32)
        return {"rows": len(texts), "crc32": crc32}

    def state_dict(self) -> dict[str, Any]:
        return self.saved or {**super().state_dict(), "prompts": self.prompts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: the state is of more prompts drawn than there are, or of another number of workers.
        """
        if state_dict:
            self._compare(state_dict)
        super().load_state_dict(state_dict)

    def _compare(self, state: dict[str, Any]) -> None:
        if snapshot := state.get("_snapshot"):  # with workers
            workers, drawn = snapshot["_main_snapshot"]["_num_workers"], snapshot["_snapshot_step"]
        else:
            workers, drawn = 0, state["_num_yielded"]
        rows = self.prompts["rows"]
        if workers != self.num_workers:
            raise ValueError(
                f"--data.dataloader_num_workers {self.num_workers} cannot go on with a checkpoint that was saved with "
                f"{workers}: give {workers}"
            )
        if drawn > rows:
            raise ValueError(
                f"--data.prompt_dataset gives {rows} prompts, and the checkpoint was saved when {drawn} of an episode "
                "were drawn: give the prompts that it was made with, or start from the model that it saved, without "
                "--ckpt.load_enable"
            )
        before = state.get("prompts", self.prompts)
        if before != self.prompts:
            notice(
                f"The prompts are not those that the checkpoint was made with ({before['rows']} then, {rows} now): "
                "the episode goes on at its place in an order of row numbers, so that a prompt in another row can "
                "come twice or not at all"
            )
