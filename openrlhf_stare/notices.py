"""What this package tells the user from whichever process: one line that starts with `openrlhf-stare: `.

The console (`driver/console.py`) finds these lines by their beginning in what Ray forwards from all nodes.
"""

from __future__ import annotations

import sys

MARK = "openrlhf-stare: "
ENGINES_READY = "the vLLM engines are ready"


def notice(sentence: str) -> None:
    """Print the sentence where the user will see it, with `--console compact` too."""
    print(f"{MARK}{sentence}", file=sys.stderr, flush=True)
