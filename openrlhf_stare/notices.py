"""What this package tells the user from whichever process: one line that starts with `openrlhf-stare: `.

The console (`driver/console.py`) finds these lines by their beginning in what Ray forwards from all nodes.
"""

from __future__ import annotations

import re
import sys

MARK = "openrlhf-stare: "
COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")  # or a move of the cursor
ENGINES_READY = "the vLLM engines are ready"


def notice(sentence: str) -> None:
    """Print the sentence where the user will see it, with `--console compact` too."""
    print(f"{MARK}{printable(sentence)}", file=sys.stderr, flush=True)


def without_secrets(url: str) -> str:
    """An address without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def printable(text: str) -> str:
    """The text without what would act on a terminal, such as a title, the clipboard or the direction of writing.

    Prompts, rewards and columns of data can hold anything. Colours go whole, of other sequences what can be printed
    stays.
    """
    text = COLOUR.sub("", text).replace("\t", " ")
    return "".join(character for character in text if character.isprintable() or character == "\n")
