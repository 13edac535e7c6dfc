"""How the arguments are checked: a rule looks at them and yields a `Finding` for each thing that is wrong.

    def eval_top_p(args):
        if not 0 < args.eval_top_p <= 1:
            yield Finding(f"--eval_top_p {args.eval_top_p:g}", "is outside (0, 1]", "give a share such as 0.7")

A rule may take for granted what those before it refuse: `refuse` ends with the first finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from openrlhf_stare.options import UsageError


class Finding(NamedTuple):
    """What is refused or warned of."""

    flag: str  # with its value
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.flag} {self.problem}: {self.remedy}"


def refuse(*rules: Iterable[Finding]) -> None:
    """
    Raises:
        UsageError: there is a finding; the message is the first one's sentence.
    """
    for findings in rules:
        for finding in findings:
            raise UsageError(str(finding))
