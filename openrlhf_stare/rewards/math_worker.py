"""Judges mathematical answers for `math_reward`, which starts this file by its path: `python math_worker.py SECONDS`.

`"ready"` goes out when it has started. Then a line of JSON comes in for each answer, `["label", "answer"]`, and `true`
or `false` goes out.
"""

import json
import logging
import re
import resource
import signal
import sys

from math_verify import LatexExtractionConfig, grader, parse, verify
from sympy import Float, MatrixBase, MatrixExpr, prime, sqrt

MEMORY = 4 << 30  # bytes of address space, far above what an answer needs: a few hundred MiB
TOLERANCE = 1.000001e-6  # a little more than the sixth digit, so that 0.333333 is 1/3 with a float's rounding too
NOISE = 1e-12  # of a number's size, which its digits in floats may be off
DIGITS = 30  # in which numbers are compared

PERCENT = re.compile(r"\\?%|\\(?:text|mathrm)\{\s*percent\s*\}|\bpercent\b")
# 52_8, (52)_8, 52_{8}, 52_{(8)}, 3F_{16} and 52_{\text{eight}}, but not x_1.
BASED = re.compile(
    r"(?<![\w^\\.])(?:\((\d[0-9A-F]*)\)|(\d[0-9A-F]*))"
    r"_(?:(\d+)|\{\s*(?:\(|\\(?:text|mathrm)\{)?\s*(\w+)\s*[)}]?\s*\})"
)
BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
LARGEST_BASE = 16  # so that 2F_{20} is twice F_20
REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\{?(\d+)\}?")

_exact_eq = grader.sympy_numeric_eq


def _numeric_eq(a, b, float_rounding: int, numeric_precision: int) -> bool:
    """math-verify's comparison of two numbers, which by itself takes any tiny number for 0.

    A decimal counts to six digits after the point and, if it is below 1, to six digits. What has variables has to
    agree at two points as well.
    """
    if isinstance(a, (MatrixBase, MatrixExpr)) or isinstance(b, (MatrixBase, MatrixExpr)):
        return _exact_eq(a, b, float_rounding, numeric_precision)  # which asks us about their entries
    variables = sorted(a.free_symbols | b.free_symbols, key=str)
    if not variables and (a.has(Float) or b.has(Float)):
        return _close(a, b)
    points = [{}]
    if variables:
        points = [{v: sqrt(prime(place)) for place, v in enumerate(variables, 1)}, dict.fromkeys(variables, 0)]
    close = all(_close(a.subs(point), b.subs(point)) for point in points)
    return close and _exact_eq(a, b, float_rounding, numeric_precision)


def _close(a, b) -> bool:
    """Whether two numbers are about equal; True for what has no finite value."""
    a, b = (side.doit().evalf(DIGITS) for side in (a, b))
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return True
    difference, size = abs(a - b).evalf(DIGITS), max(abs(a).evalf(DIGITS), abs(b).evalf(DIGITS))
    return bool(difference <= max(TOLERANCE * min(1, size), NOISE * size))


grader.sympy_numeric_eq = _numeric_eq  # for the members of sets, tuples, intervals and relations too


def _based(numeral: re.Match) -> str:
    """The numeral's value times a symbol for its base, so that numbers of different bases are not equal."""
    digits, name = numeral[1] or numeral[2], numeral[3] or numeral[4]
    try:
        base = int(BASES.get(name, name))
        value = int(digits, base if 0 < base <= LARGEST_BASE else 1)
    except ValueError:  # no base, or no digits of it
        return numeral[0]
    return str(value) if base == 10 else rf"{value} \cdot \beta_{{{base}}}"


def _repeating(decimal: re.Match) -> str:
    """0.1\\overline{6} as a fraction."""
    whole, fixed, period = decimal.groups()
    places = 10 ** len(fixed)
    value = int(whole + fixed + period or "0") - int(whole + fixed or "0")
    return rf"\frac{{{value}}}{{{places * (10 ** len(period) - 1)}}}"


def _readable(text: str) -> str:
    """The text with what math-verify reads past: percentages in words, bases and repeating decimals."""
    return REPEATING.sub(_repeating, BASED.sub(_based, PERCENT.sub(r"\\%", text.replace("~", " "))))


def is_right(label: str, answer: str) -> bool:
    """Whether the answer equals the label as mathematics. What cannot be parsed equals nothing but itself.

    A percentage is its hundredth. Only where the label is a percentage may the answer leave out its sign.
    """
    label, answer = _readable(label), _readable(answer)
    without_sign = label.replace(r"\%", "") if r"\%" in label and r"\%" not in answer else None
    label, answer = (text.replace(r"\%", r" \cdot \frac{1}{100}") for text in (label, answer))
    # Inside \boxed{} the whole answer counts, not the first number that is found in it.
    given = parse(f"\\boxed{{{answer}}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    return any(
        verify(parse(f"${gold}$", parsing_timeout=None), given, timeout_seconds=None)
        for gold in (label, without_sign)
        if gold is not None
    )


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
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        right = is_right(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(right), file=replies, flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]))
