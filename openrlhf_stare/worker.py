"""What every Ray worker of a job runs first (Ray's `worker_process_setup_hook`)."""

from __future__ import annotations

import atexit
import gc

from openrlhf_stare import replacing
from openrlhf_stare.runtime import prepare_process

# Every process imports thousands of modules, and Python would look for garbage among them all the while. Here, since
# the driver's next imports bring torch.
gc.set_threshold(10_000, 10, 10)

HOOK = f"{__name__}.install"


def install() -> None:
    """Announce in this process what stands where in the table of substitutions. Cheap: none of it is imported here."""
    replacing.announce(None)
    # Python would end by looking for garbage among the half million objects of the libraries, for a second and more.
    atexit.register(gc.freeze)
    prepare_process()
