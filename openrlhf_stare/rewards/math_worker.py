"""Judges mathematical answers for `math_reward`, which starts this file by its path: `python math_worker.py SECONDS`.

A line of JSON comes in for each answer, `["label", "answer"]`, and `true` or `false` goes out.
"""

import json
import logging
import resource
import signal
import sys

from math_verify import LatexExtractionConfig, parse, verify

MEMORY = 4 << 30  # bytes of address space, far above what an answer needs: a few hundred MiB


def is_right(label: str, answer: str) -> bool:
    """Whether the answer equals the label as mathematics. What cannot be parsed equals nothing but itself."""
    gold = parse(f"${label}$", parsing_timeout=None)
    # Inside \boxed{} the whole answer counts, not the first number that is found in it.
    given = parse(f"\\boxed{{{answer}}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    return verify(gold, given, timeout_seconds=None)


def serve(seconds: float) -> None:
    """Answer until the input ends, which it does with the process that started us, however that one ended.

    The kernel ends this process when an answer takes longer than `seconds`. math-verify's own limit is off: its signal
    handler has to wait for Python's next instruction, and 9^{9^{9}} is a single one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable()  # math-verify warns that its limit is off
    # Whatever the libraries print must not pass for an answer.
    replies, sys.stdout = sys.stdout, sys.stderr
    is_right("1/2", "0.5")  # the parser's tables, which the first answer's time would otherwise pay for
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        right = is_right(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(right), file=replies, flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]))
