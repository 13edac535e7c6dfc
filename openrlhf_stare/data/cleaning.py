"""Which prompts are the same, and which are too close to an evaluation problem."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

RUN = 8  # words
# LaTeX that changes how a formula looks and not what it says.
_LOOKS = re.compile(r"\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]|(?<=\\)[dt](?=frac)")
_WORDS = re.compile(r"[^\W_]+|[-+*/=<>^|!%]")


def normalised(prompt: str) -> str:
    """The prompt's words, numbers and operators, with a space between them. Case and punctuation are gone."""
    return " ".join(_WORDS.findall(_LOOKS.sub(" ", prompt).casefold()))


def _runs(prompt: str) -> set[tuple[str, ...]]:
    words = prompt.split()
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


class EvaluationPrompts:
    """The normalised prompts of the evaluation sets.

    A training prompt is in it if it is one of them, or if it holds at least half of the runs of 8 words of a single
    one: half, because competition problems share long phrases, such as the one that asks for m + n of m/n.
    """

    def __init__(self, prompts: Iterable[str]) -> None:
        self._run_count: dict[str, int] = {}
        self._holders: dict[tuple[str, ...], list[str]] = defaultdict(list)  # a run -> the prompts that hold it
        for prompt in set(prompts):
            runs = _runs(prompt)
            self._run_count[prompt] = len(runs)
            for run in runs:
                self._holders[run].append(prompt)

    def __contains__(self, prompt: str) -> bool:
        shared = Counter(holder for run in _runs(prompt) for holder in self._holders.get(run, ()))
        return prompt in self._run_count or any(2 * n >= self._run_count[holder] for holder, n in shared.items())
