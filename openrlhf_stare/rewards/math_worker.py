"""Judges mathematical answers for `math_reward`, which starts this file by its path: `python math_worker.py SECONDS`.

`"ready"` goes out when it has started. Then a line of JSON comes in for each answer, `["label", "answer"]`, and `true`
or `false` goes out.
"""

import logging
import re
import sys

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, grader, parse, verify
from sympy import (
    Basic,
    Eq,
    Expr,
    Float,
    I,
    Integral,
    Intersection,
    Limit,
    MatrixBase,
    MatrixExpr,
    Product,
    Rational,
    Set,
    Sum,
    Symbol,
    Union,
    nan,
    oo,
    prime,
    simplify,
    sqrt,
    zoo,
)

from openrlhf_stare.rewards.math_reading import (
    CLOSING,
    OPENING,
    RELATION,
    THOUSANDS,
    Shape,
    choice,
    is_words,
    readable,
    shape,
    token_at,
    without_unit,
    words,
)
from openrlhf_stare.rewards.workers import serve

TOLERANCE = 1.000001e-6  # a little more than the sixth digit, so that 0.333333 is 1/3 with a float's rounding too
NOISE = 1e-25  # of a number's size, which its digits may be off
DIGITS = 30  # in which numbers are compared
MOST_ITEMS = 64  # of a list: each is compared with each

# 52_8, (52)_8, 52_{8}, 52_{(8)}, 3F_{16} and 52_{\text{eight}}, but not x_1.
BASED = re.compile(
    r"(?<![\w^\\.])(?:\((\d[0-9A-F]*)\)|(\d[0-9A-F]*))"
    r"_(?:(\d+)|\{\s*(?:\(|\\(?:text|mathrm)\{)?\s*(\w+)\s*[)}]?\s*\})"
)
BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
LARGEST_BASE = 16  # so that 2F_{20} is twice F_20
REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\{?(\d+)\}?")
CONFIG = LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
    boxed_match_priority=0,
)

_exact_eq = grader.sympy_numeric_eq


def _numeric_eq(a: Basic, b: Basic, float_rounding: int, numeric_precision: int) -> bool:
    """math-verify's comparison of two numbers, which by itself takes any tiny number for 0.

    A decimal counts to six digits after the point and, if it is below 1, to six digits, unless the other side is an
    integer. What has variables has to agree at two points as well.
    """
    if isinstance(a, (MatrixBase, MatrixExpr)) or isinstance(b, (MatrixBase, MatrixExpr)):
        return _exact_eq(a, b, float_rounding, numeric_precision)  # which asks us about their entries
    variables = sorted(a.free_symbols | b.free_symbols, key=str)
    if not variables:
        return _close(a, b)
    points = [{v: sqrt(prime(place)) for place, v in enumerate(variables, 1)}, dict.fromkeys(variables, 0)]
    close = all(_close(a.subs(point), b.subs(point), somewhere=True) for point in points)
    return close and _exact_eq(a, b, float_rounding, numeric_precision)


def _close(a: Basic, b: Basic, somewhere: bool = False) -> bool:
    """Whether two numbers are about equal, or the same infinity.

    Args:
        somewhere: they are values of functions, which need not have one at each point.
    """
    decimal = a.has(Float) or b.has(Float)
    a, b = _exact(a), _exact(b)
    if not all(side.is_number and side.is_finite for side in (a.evalf(DIGITS), b.evalf(DIGITS))):
        return somewhere or (a == b and not a.has(nan, zoo))
    if a.is_Rational and b.is_Rational and not decimal:
        return a == b
    size = max(abs(a).evalf(DIGITS), abs(b).evalf(DIGITS))
    whole = a.is_integer or b.is_integer
    digits = DIGITS + max(0, int(size).bit_length() // 3)
    difference = abs((a - b).evalf(digits))
    if whole or not decimal:
        return a == b or bool(difference <= NOISE * min(1, size))
    return bool(difference <= max(TOLERANCE * min(1, size), NOISE * size))


def _exact(number: Basic) -> Basic:
    """With its decimals as fractions."""
    return number.xreplace({decimal: Rational(str(decimal)) for decimal in number.atoms(Float)}).doit()


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


def is_right(label: str, answer: str) -> bool:
    """Whether the answer equals the label as mathematics. What cannot be parsed equals nothing but itself."""
    label, answer = readable(label), readable(answer)
    if not label or not answer:
        return False
    if is_words(label):
        return words(label) in (words(answer), choice(answer))
    return same(label, answer)


def same(label: str, answer: str) -> bool:
    """Whether a readable answer equals the readable label."""
    if _dense(label) == _dense(answer):
        return True
    # 100,200 is a number to some and two to others.
    answers = (answer, _apart(answer)) if "," in label else (answer,)
    readings = dict.fromkeys((gold, given) for gold in (label, _apart(label)) for given in answers)
    return any(_same_shapes(*pair) for pair in readings)


def _dense(text: str) -> str:
    """Without the blanks that do not part digits."""
    return re.sub(r"(?<!\d)(?<!\d,)\s+|\s+(?!\d)", "", text)


def _apart(text: str) -> str:
    """100,200,300 as a list. 7,200 alone is a number."""
    if re.fullmatch(r"\d{1,3},\d{3}", text):
        return text
    return THOUSANDS.sub(lambda number: number[0].replace(",", ", "), text)


SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")


def _with_both_signs(text: str) -> tuple[str, Shape]:
    """A text and its shape, things with a ± in it taken for two."""
    one = shape(text)
    if not SIGN.search(text):
        return text, one
    if one.kind == "one":
        named = re.match(r"^\s*[A-Za-z]\w?\s*=", text)
        one = Shape("list", [text[named.end() :] if named else text])
    items = []
    for item in [text] if one.kind == "tuple" else one.items:
        for plus, minus in ("+-", "-+") if SIGN.search(item) else ("  ",):
            items.append(item.replace(r"\pm", plus).replace(r"\mp", minus).strip())
    return " , ".join(items), Shape("list" if one.kind == "tuple" else one.kind, items)


def _same_shapes(label: str, answer: str) -> bool:
    """Whether what both list is equal, each thing with one of the other's or, in tuples, with that at its place."""
    (label, gold), (answer, given) = map(_with_both_signs, (label, answer))
    if len(given.items) > MOST_ITEMS:
        return False
    kinds = {gold.kind, given.kind}
    if "one" in kinds and len(kinds) == 2 and "relations" not in kinds:
        right, said = (
            _value(text)[0] if one.kind == "one" else text for one, text in ((gold, label), (given, answer))
        )
        if right is None or said is None:
            return False
        if (right, said) != (label, answer):
            return same(right, said)  # S = \\{1, 2\\}
    if kinds == {"one", "set"} and len(gold.items) == len(given.items) == 1:
        return r"\emptyset" not in (gold.items[0], given.items[0]) and same(gold.items[0], given.items[0])
    if "relations" in kinds or kinds == {"one"} or (kinds == {"one", "tuple"}):
        return _same_one(gold, given, label, answer)
    if kinds == {"tuple"}:
        if len(gold.items) == 2 == len(given.items) and gold.ends != given.ends:
            return False
    elif kinds == {"one", "set"} or kinds == {"one", "list"} or kinds == {"one", "words"}:
        return gold.kind == "set" and _means(label, answer)
    elif "tuple" in kinds:
        if "set" in kinds or "words" in kinds or {gold.ends, given.ends} != {"()"}:
            return False
    else:
        return _same_items(gold, given)
    return len(gold.items) == len(given.items) and all(map(same, gold.items, given.items))


def _same_items(gold: Shape, given: Shape) -> bool:
    """Whether two lists or sets hold the same things. In a set, repeats are none."""
    left = given.items
    wanted = gold.items
    if gold.kind == given.kind == "set":
        left, wanted = _once(left), _once(wanted)
    left = list(left)
    if len(left) != len(wanted):
        return False
    for item in wanted:
        found = next((other for other in left if same(item, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _once(items: list[str]) -> list[str]:
    once: list[str] = []
    for item in items:
        if not any(same(item, other) for other in once):
            once.append(item)
    return once


NAME = re.compile(
    r"\s*(?:m?\s*\\angle\s*|\\triangle\s*)?"
    r"(?:\\?[A-Za-z]+'?(?:\s*_\s*(?:\w|\{[^{}]*\}))?(?:\s*\([^()=]*\))?|\|[A-Za-z]+\||[A-Z]{2,}|[a-z](?:\s*[+-]\s*[a-z])+"
    r"|\\(?:text|overline|vec|mathbf)\s*\{[^{}]*\}(?:\s*\([^()]*\))?|\([a-zA-Z](?:,\s*[a-zA-Z]){1,2}\))\s*"
)
EQUALS = re.compile(r"(?<![<>!\\])=(?!=)|\\equiv(?![A-Za-z])")


def _sides(text: str) -> list[str]:
    """The sides of an equation. An equals sign below a sum is none."""
    sides, start, depth, place = [], 0, 0, 0
    while place < len(text):
        token, equals = token_at(text, place), EQUALS.match(text, place)
        depth += (token in OPENING) - (token in CLOSING)
        if equals and depth == 0:
            sides.append(text[start:place].strip())
            start = equals.end()
        place = equals.end() if equals else place + len(token)
    return [*sides, text[start:].strip()]


def _is_equation(text: str) -> bool:
    return len(_sides(text)) > 1


def _same_one(gold: Shape, given: Shape, label: str, answer: str) -> bool:
    """Two single things, of which an equation may name one."""
    (wanted, name), (found, other_name) = (
        _value(text) if one.kind == "one" else (_without_names(one, text), "")
        for one, text in ((gold, label), (given, answer))
    )
    if wanted is None or found is None:
        return False
    if len(name) == len(other_name) == 1 and name != other_name:
        return False  # x = 5 and y = 5
    if _is_equation(wanted) or (_is_equation(found) and name):
        return _means(label, answer)  # y - 2x = 3 for y = 2x + 3
    if _is_equation(found):
        return False  # 2x = 5 for 5
    return _means(wanted, found) if (wanted, found) == (label, answer) else same(wanted, found)


def _without_names(one: Shape, text: str) -> str:
    """(1, 2) for x = 1, y = 2."""
    return f"({', '.join(one.items)})" if one.kind == "tuple" and _is_equation(text) else text


def _value(text: str) -> tuple[str | None, str]:
    """What an equation gives for a name, and the name; other texts as they are. None: its sides are not equal."""
    if RELATION.search(text) or shape(text).kind == "relations":
        return text, ""
    if found := re.match(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])(.*)$", text):
        return found[1].strip(), ""
    first, *rest = re.split(r"\\approx(?![A-Za-z])", text)
    if rest and (NAME.fullmatch(first) and not _is_equation(first)):
        return rest[0].strip(), first.strip()
    sides = _sides(first)
    if len(sides) > 1 and NAME.fullmatch(sides[0]) and sides[-1]:
        return sides[-1], sides[0]
    if len(sides) > 1 and all(
        re.fullmatch(r"[\d\s+\-*/.^{}()]|\\frac|\\cdot|\\times|\\sqrt", token)
        for side in sides
        for token in re.findall(r"\\[A-Za-z]+|.", side)
    ):
        return (sides[-1] if all(_means(sides[-1], side) for side in sides[:-1]) else None), ""
    return first.strip(), ""


def _means(label: str, answer: str) -> bool:
    """Whether math-verify finds two things equal in one of the readings that units, percentages and degrees allow.

    A percentage is its hundredth. Only where the label is a percentage may the answer leave out its sign.
    """
    if RATIO.match(label) or RATIO.match(answer):
        return _same_ratio_or_time(label, answer)
    label, answer = (REPEATING.sub(_repeating, BASED.sub(_based, text)) for text in (label, answer))
    readings = [(label, answer)]
    if "%" in label and "%" not in answer:
        readings.append((label.replace("%", ""), answer))
    degrees = r"^{\circ}"
    if degrees in label or degrees in answer:
        readings = [(label.replace(degrees, ""), answer.replace(degrees, ""))]
        if not (degrees in label and degrees in answer):
            radians = r" \cdot \frac{\pi}{180}"
            readings.append((label.replace(degrees, radians), answer.replace(degrees, radians)))
    return any(_verified(*(text.replace("%", r" \cdot \frac{1}{100}") for text in pair)) for pair in readings)


def _parsed(text: str) -> Basic | MatrixBase | None:
    """What math-verify makes of the whole text; None: nothing."""
    if re.search(r"(?<![\d_])\d+\s+\d", text):
        return None  # math-verify reads past a blank in a number
    found = parse(f"\\boxed{{{text}}}", extraction_config=[CONFIG], fallback_mode="no_fallback", parsing_timeout=None)
    if not found or not isinstance(found[0], (Basic, MatrixBase)):
        return None
    expression = found[0]
    if isinstance(expression, Basic) and not isinstance(expression, MatrixBase):
        try:
            expression = expression.xreplace({name: _symbol(name) for name in expression.atoms(Symbol)})
        except (AttributeError, TypeError):  # 1 < x < i is no relation
            return None
    return expression


def _symbol(name: Symbol) -> Basic:
    """The symbol, real whatever stands beside it. To math-verify i is one of any number."""
    return I if name.name == "i" else Symbol(name.name, real=True)


def _as_set(text: str) -> Set | None:
    """The set that a text names or that its inequalities describe; None: neither."""
    one = shape(text)
    parts = one.items if one.kind == "relations" else [text]
    sets = []
    for part in parts:
        parsed = _parsed(part)
        if isinstance(parsed, Set):
            sets.append(parsed)
        elif parsed is not None and grader.is_relation(parsed) and len(parsed.free_symbols) == 1:
            sets.append(grader.unwrap_fcs(parsed).as_set())
        else:
            return None
    return (Intersection if one.join == "and" else Union)(*sets)


def _same_equation(gold: Eq, given: Eq) -> bool:
    """Whether one is a multiple of the other."""
    try:
        factor = simplify((gold.lhs - gold.rhs) / (given.lhs - given.rhs))
    except TypeError:  # of sets or tuples
        return False
    return bool(gold.free_symbols and factor.is_number and factor.is_finite and factor != 0)


def _verified(label: str, answer: str) -> bool:
    label, answer = without_unit(label), without_unit(answer)
    if RELATION.search(label + answer):
        try:
            sets = _as_set(label), _as_set(answer)
        except Exception:  # sympy knows no set for it
            sets = None, None
        if None not in sets:
            return sets[0] == sets[1] or verify(sets[0], sets[1], timeout_seconds=None)
        if "relations" in (shape(label).kind, shape(answer).kind):
            return False
    gold, given = _parsed(label), _parsed(answer)
    if gold is None or given is None or given.has(nan, zoo):
        return False
    if isinstance(given, Expr) and not given.has(Sum, Integral, Limit, Product):
        if given.doit().has(nan, zoo) or (given.has(oo, -oo) and not gold.has(oo, -oo)):
            return False
    if isinstance(gold, Eq) and isinstance(given, Eq) and _same_equation(gold, given):
        return True
    return verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None)


TIME = re.compile(
    r"^(\d{1,2})\s*:\s*([0-5]\d)(?:\s*:\s*([0-5]\d))?\s*(?:(?:\\text\s*\{)?\s*([aApP])\.?\s*[mM]\.?\s*\}?)?$"
)
RATIO = re.compile(r"^[^:]+(?::[^:]+)+$")


def _same_ratio_or_time(label: str, answer: str) -> bool:
    """Whether two ratios, or a ratio and a fraction, or two times of day are equal. 3:05 is a time."""
    right, said = TIME.match(label), TIME.match(answer)
    if any(time and (time[4] or time[2][0] == "0") for time in (right, said)):
        return right is not None and said is not None and _same_time(right, said)
    sides = [[part.strip() for part in text.split(":")] for text in (label, answer)]
    if sorted(map(len, sides)) == [1, 2]:
        return _verified(*(rf"\frac{{{side[0]}}}{{{side[1]}}}" if len(side) == 2 else side[0] for side in sides))
    if len(sides[0]) != len(sides[1]):
        return False
    (first, *wanted), (other_first, *found) = sides
    if r"\infty" in answer or _verified("0", other_first):
        return False  # 0:0 would be any ratio
    return all(
        _verified(rf"({part}) \cdot ({other_first})", rf"({other}) \cdot ({first})")
        for part, other in zip(wanted, found, strict=True)
    )


def _same_time(label: re.Match, answer: re.Match) -> bool:
    """Whether two times are the same, of the half of the day that is told."""
    minutes, known = [], True
    for time in (label, answer):
        half, hour = (time[4] or "").lower(), int(time[1])
        minutes.append((hour % 12 + 12 * (half == "p") if half else hour) * 60 + int(time[2]))
        known &= bool(half) or hour > 12
    seconds = int(label[3] or 0) == int(answer[3] or 0)
    return seconds and (minutes[0] - minutes[1]) % (1440 if known else 720) == 0


if __name__ == "__main__":
    # math-verify's own limit of time is off, since the process has one, and it would warn of that.
    logging.disable()
    # The first answer's time would otherwise pay for the parser's tables.
    serve(is_right, float(sys.argv[1]), first=("1/2", "0.5"))
