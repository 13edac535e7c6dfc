"""What a reward function has to know of a query: where the response in it begins, and where its text ends."""

from __future__ import annotations

import re
from bisect import bisect

# In the ways of writing that models have; DeepSeek's bar is the wide one.
SPECIAL_TOKEN = re.compile(r"<[|\uff5c][^<>|\uff5c\s]*[|\uff5c]>|</s>|<eos>|<pad>|<end_of_turn>")
TAIL = 32  # letters of a prompt by which its end is known


def without_special_tokens(text: str) -> str:
    """The text without the special tokens at its end and the blanks around them; as it is where there are none."""
    rest = text.rstrip()
    # From the end: with one pattern for all of them the time grows as the square of blanks or tokens in a row.
    while (start := rest.rfind("<")) >= 0 and SPECIAL_TOKEN.fullmatch(rest, start):
        text = rest = rest[:start].rstrip()
    return text


def response_of(query: str, prompt: str) -> str | None:
    """The part of the query below the prompt; None: where the prompt ends is not known.

    A query may begin in another way than its prompt: with a start token, decoded to another text, or cut on the left.
    Then the longest end of the prompt that is in it counts.
    """
    if prompt in query:
        return query.partition(prompt)[2] if prompt else query
    start = bisect(range(len(prompt)), False, key=lambda start: prompt[start:] in query)
    if len(prompt) - start < TAIL:
        return None
    # The last place, since a worked example in the prompt may end as the prompt does.
    return query.rpartition(prompt[start:])[2]
