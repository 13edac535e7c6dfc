"""What every Ray worker of a job runs first (Ray's `worker_process_setup_hook`)."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
from types import ModuleType

from openrlhf_stare import replacing
from openrlhf_stare.runtime import prepare_process
from openrlhf_stare.when_imported import patch_when_imported

# Every process imports thousands of modules, and Python would look for garbage among them all the while. Here, since
# the driver's next imports bring torch.
gc.set_threshold(10_000, 10, 10)

HOOK = f"{__name__}.install"

# Changes that are functions still, and not yet rows of the table: module of OpenRLHF -> what changes it.
CHANGES = {
    "openrlhf.utils.deepspeed.deepspeed": ("fixes.checkpoints.keep_the_newest_complete",),
}


def install() -> None:
    """Announce our changes to OpenRLHF in this process. Cheap: neither OpenRLHF nor a change is imported here."""
    for module, changes in CHANGES.items():
        for change in changes:
            patch_when_imported(module, functools.partial(_apply, change))
    replacing.announce(cpu=False)
    # Python would end by looking for garbage among the half million objects of the libraries, for a second and more.
    atexit.register(gc.freeze)
    prepare_process()


def _apply(change: str, module: ModuleType) -> None:
    place, _, function = change.rpartition(".")
    getattr(importlib.import_module(f"openrlhf_stare.{place}"), function)(module)
