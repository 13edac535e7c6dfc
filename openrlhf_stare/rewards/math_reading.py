"""Makes of an answer, as people and models write it, LaTeX that math-verify reads, and says what is listed in it.

Text alone is looked at here; what it means as mathematics is `math_worker`'s part.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

SYMBOLS = {
    "∞": r"\infty ", "°": r"^{\circ}", "º": r"^{\circ}", "˚": r"^{\circ}", "×": r"\times ", "÷": "/",
    "⁄": "/", "∕": "/",
    "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "−": "-", "–": "-", "—": "-", "‐": "-",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
    "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⌀": r"\emptyset ", "∈": r"\in ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "′": "'", "’": "'", "…": r"\ldots ", "。": ".", "、": ",",
    "∨": r"\lor ", "∧": r"\land ", "∣": "|", "ϕ": r"\phi ", "φ": r"\phi ", "ϵ": r"\epsilon ", "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]", "√": r"\sqrt", "\u00ad": "", "\u200b": "", "\ufeff": "",
    "‖": r"\|", "∘": r"^{\circ}", "⊂": r"\subset ", "∼": r"\sim ", "∠": r"\angle ", "△": r"\triangle ",
}  # fmt: skip
Meaning = str | Callable[[re.Match[str]], str]  # what `re.sub` puts in
# Commands that mean what is right of them.
_COMMANDS: dict[str, Meaning] = {
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\[dt]binom(?![A-Za-z])": r"\\binom",
    r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?": "",
    r"\\lbrace(?![A-Za-z])": r"\\{",
    r"\\rbrace(?![A-Za-z])": r"\\}",
    r"\\lbrack(?![A-Za-z])": "[",
    r"\\rbrack(?![A-Za-z])": "]",
    r"\\[lr]vert(?![A-Za-z])": "|",
    r"\\(?:varnothing|O)(?![A-Za-z])": r"\\emptyset ",
    r"\\leq(?:slant|q)?(?![A-Za-z])": r"\\le ",
    r"\\geq(?:slant|q)?(?![A-Za-z])": r"\\ge ",
    r"<=|=<": r"\\le ",
    r">=": r"\\ge ",
    r"!=|\\neq(?![A-Za-z])|\\not\s*=": r"\\ne ",
    r"\\(?:vee|lor)(?![A-Za-z])": r"\\text{ or }",
    r"\\(?:wedge|land)(?![A-Za-z])": r"\\text{ and }",
    r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\.": r"\\ldots ",
    r"\\(?:vartheta|varphi|varepsilon)(?![A-Za-z])": lambda found: "\\" + found[0][4:],
    r"\\backslash(?![A-Za-z])": r"\\setminus ",
    r"\\colon(?![A-Za-z])|\{:\}|∶": ":",
    r"\^\s*\\circ(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\\degrees?(?![A-Za-z])": r"^{\\circ}",
    r"\\(?:percent|%)": "%",
    r"\{\s*,\s*\}\s*|,\\!\s*": ",",
    r"\\!": "",
    r"(?<!\\)\\[,;:> ]|\\q?quad(?![A-Za-z])|~|\\(?:thin|en|med|thick)space(?![A-Za-z])|\\newline(?![A-Za-z])": " ",
    r"\\[hv]space\*?\{[^{}]*\}|\\phantom\{[^{}]*\}": " ",
    r"\\(?:displaystyle|textstyle|limits|nolimits|rm|bf|it|boldmath|normalsize|large|Large)(?![A-Za-z])": "",
    r"\\(?:text)?color\{\w+\}": "",
    r"\\begin\{array\}(?:\[\w\])?\{[clr|]*\}": r"\\begin{matrix}",
    r"\\end\{array\}": r"\\end{matrix}",
    r"[(\[]?\s*\\begin\{(?:small)?matrix\}": r"\\begin{pmatrix}",
    r"\\end\{(?:small)?matrix\}\s*[)\]]?": r"\\end{pmatrix}",
    r"\\(begin|end)\{bmatrix\}": r"\\\1{pmatrix}",
    r"\\\\\s*\[[\d.]+\s*(?:ex|em|pt|mm|cm)\]": r"\\\\\\\\ ",
    r"\\mathrm\{~\s*": r"\\mathrm{",
    r"\\(?:mathrm|textrm|mbox|textnormal|textup|hbox|operatorname\*?)\s*\{": r"\\text{",
    r"\\text\s*\{\s*(i|e)\s*\}": r" \1 ",
    r"\{\s*([^{}]*?)\s*\\choose\s*([^{}]*?)\s*\}": r"\\binom{\1}{\2}",
    r"\{\s*([^{}]*?)\s*\\over\s*([^{}]*?)\s*\}": r"\\frac{\1}{\2}",
    r"^\s*([^{}]*?)\s*\\over\s*([^{}]*?)\s*$": r"\\frac{\1}{\2}",
}
COMMANDS = {re.compile(pattern): meaning for pattern, meaning in _COMMANDS.items()}
# Commands whose argument is all that counts.
WRAPPER = re.compile(
    r"\\(?:boldsymbol|mathbf|textbf|bm|mathit|mathsf|texttt|mathtt|textsf|underline|emph|textit|boxed|fbox|ensuremath"
    r"|pmb|mathnormal|text(?=\{[^A-Za-z{}]*\}))\s*\{"
)
EDGES = re.compile(
    r"^(?:[\s=:,;*`]|\$|\\\(|\\\[|\\(?:therefore|implies|Rightarrow|approx|sim)(?![A-Za-z]))+"
    r"|(?:[\s=:;,*.`]|(?<!\\)\$|\\\)|\\\])+$"
)
INTRODUCTION = re.compile(
    r"^(?:\\text\s*\{\s*)?(?:so\s+|thus\s+|hence\s+)?(?:the\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|result|solution|option|choice)s?(?:\s+(?:is|are))?\s*(?::|=|(?<=is)|(?<=are)|(?=\s))\s*\}?\s*:?",
    re.IGNORECASE,
)
FUNCTION = r"(?<![A-Za-z\\])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp)(?![A-Za-z])"
# What is written as in a program or by hand.
_HANDWRITING: dict[str, Meaning] = {
    r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?|\.\d+)[eE]\+?(-?)0*(\d+)(?!\w)": r"\1 \\times 10^{\2\3}",
    r"\*\*\s*": "^",
    r"\^\s*([+-]?\d+)": r"^{\1}",
    r"\*": r"\\cdot ",
    r"(?<=\d)\s*[xX]\s*(?=10\^)": r" \\times ",
    r"(?<!\\)sqrt": r"\\sqrt",
    r"(?<![A-Za-z\\])(pi|theta|alpha|beta|gamma|lambda|omega|infty)(?![A-Za-z])": r"\\\1 ",
    r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])|\\text\{\s*infinity\s*\}": r"\\infty ",
    FUNCTION: r"\\\1 ",
    r"\\log_\{?e\}?(?![A-Za-z])": r"\\ln ",
    r"\\lg(?![A-Za-z])": r"\\log ",
    r"<\s*\+?\\infty\s*$|^\s*-\s*\\infty\s*<": "",  # an end that is none
    r"^\\text\s*\{\s*(-?[\d.,/]+\s+[^{}\d]*)\}$": r"\1",  # words around a number
    r"\\log_(\d)": r"\\log_{\1}",
    # 1 000 000, 12 345.67
    r"(?<![\d.,{}])(\d{1,3}(?:[ ]\d{3})+)(?![\d])(?! ?/)": lambda number: number[0].replace(" ", ""),
    # 2 3/4
    r"(?<![\w.^}/])(\d+)[ ]+(\d+)\s*/\s*(\d+)(?![\d.])": r"\1\\frac{\2}{\3}",
    r"\\(?:bar|overline)\s*\{?(\d+)\}?": r"\\overline{\1}",
    r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?": r"\\overline{\1\2\3}",
    r"\\dot\s*\{?(\d)\}?": r"\\overline{\1}",
    r"(?<=\d)\.(\d*?)(\d+?)\2{2,}\s*\\ldots": r".\1\\overline{\2}",
    r"\^\{\\circ\}\s*(?:\\text\s*\{)?\s*[CF]\s*\}?$": r"^{\\circ}",
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{\d+\})?)\s*[({]?\s*(\d+(?:\.\d+)?)\s*\^\{\\circ\}\s*[)}]?":
        r"\1{(\\frac{\2\\pi}{180})}",
    r"(?<![A-Za-z])(?:US)?\\\$\s*|(?<![A-Za-z])US\s*(?=\d)|[€£¥₹]|\$|^\s*\\text\s*\{\s*(?:USD|EUR|GBP|Rs\.?)\s*\}"
    r"|(?<![A-Za-z])(?:USD|EUR|GBP|Rs\.?)\s*(?=\d)": "",
    r"(?<=\d)\s*(?:\\text\s*\{)?\s*(?:percent|per cent|pct|percentage)\s*\}?(?![A-Za-z])": "%",
    r"^\]\s*([^,\[\]]+),([^,\[\]]+)([\[\]])$":
        lambda found: f"({found[1]},{found[2]}{')' if found[3] == '[' else ']'}",
    r"^\[\s*([^,\[\]]+),([^,\[\]]+)\[$": r"[\1,\2)",
    r"^<([^<>]*,[^<>]*)>$": r"\\langle \1\\rangle ",
    r"\\text\s*\{\s*(?:the )?(?:empty|null) set\s*\}|^(?:the )?empty set$": r"\\emptyset ",
    r"\\\{\s*\\\}": r"\\emptyset ",
    r"\\frac\s*(\\[A-Za-z]+|\w)\s*(\\[A-Za-z]+|\w)": r"\\frac{\1}{\2}",
    # math-verify takes them for small letters.
    r"\\(Omega|Delta|Theta|Lambda|Phi|Psi|Xi)(?![A-Za-z])(?!\s*[_(])":
        lambda letter: rf"\{letter[1].lower()}_{{capital}}",
    r"\\text\s*\{\s*to\s*\}|(?<=\d)\s+to\s+(?=\d)": ":",
}  # fmt: skip
HANDWRITING = {re.compile(pattern): meaning for pattern, meaning in _HANDWRITING.items()}
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = re.compile(rf"(?<=\d)\s*(?:\\text\s*\{{)?\s*({'|'.join(SCALES)})\b\s*\}}?")
WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
NUMBERS = {word: str(number) for number, word in enumerate([*WORDS, *"seventeen eighteen nineteen twenty".split()])}

OPENING, CLOSING = ("(", "[", "{", r"\{", r"\langle", r"\begin"), (")", "]", "}", r"\}", r"\rangle", r"\end")
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
WORD_BETWEEN = re.compile(
    r"\s*,?\s*\\text\s*\{\s*,?\s*(or|and)\s*,?\s*\}\s*|,?\s+(or|and)\s+"
    r"|(?<=[\d)}\]])\s*(or|and)\s*(?=[\d({\[\\-])"
)
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


def readable(text: str) -> str:
    """The text as LaTeX in one way of writing, its meaning unchanged."""
    text = _letters(text)
    if (plain := text.strip().strip(".").lower()) in NUMBERS:
        return NUMBERS[plain]
    for _ in range(3):  # what is wrapped may be wrapped again
        before = text
        for pattern, meaning in COMMANDS.items():
            text = pattern.sub(meaning, text)
        text = _unwrapped(text)
        text = INTRODUCTION.sub("", EDGES.sub("", text))
        text = _without_braces(text.strip())
        if text == before:
            break
    for pattern, meaning in HANDWRITING.items():
        text = pattern.sub(meaning, text)
    text = SCALE.sub(lambda scale: rf" \cdot 10^{{{SCALES[scale[1]]}}}", _roots(text))
    inner = re.fullmatch(r"\\text\s*\{([^{}]*)\}", text.strip())
    if inner and inner[1].strip().lower() in NUMBERS:
        return NUMBERS[inner[1].strip().lower()]
    text = re.sub(r"\s+", " ", EDGES.sub("", text)).strip()
    return BUILT.sub(r"\1", text).strip()


def _letters(text: str) -> str:
    """The text in ASCII: Unicode's signs as LaTeX's commands."""
    found = []
    for letter in text:
        kind, _, digits = unicodedata.decomposition(letter).partition(" ")
        if letter in SYMBOLS:
            found.append(SYMBOLS[letter])
        elif kind == "<fraction>":
            top, bottom = unicodedata.normalize("NFKC", letter).split("⁄")
            found.append(rf"\frac{{{top}}}{{{bottom}}}" if top and bottom else letter)
        elif kind in ("<super>", "<sub>"):
            sign = "^" if kind == "<super>" else "_"
            inside = "".join(SYMBOLS.get(c, c) for c in unicodedata.normalize("NFKC", letter))
            if found and found[-1].startswith(sign + "{") and letter not in SYMBOLS:
                inside = found.pop()[2:-1] + inside
            found.append(f"{sign}{{{inside}}}")
        elif unicodedata.name(letter, "").startswith("GREEK SMALL LETTER ") and letter != "ο":
            found.append("\\" + unicodedata.name(letter).split()[3].lower() + " ")
        else:
            normal = unicodedata.normalize("NFKC", letter)
            found.append("".join(SYMBOLS.get(c, c) for c in normal))
    return "".join(found)


def _end(text: str, start: int) -> int:
    """Where the group that opens at `start` ends: the place of its closing brace or parenthesis, -1 if it has none."""
    opening = text[start]
    closing, depth, place = {"{": "}", "(": ")"}[opening], 0, start
    while place < len(text):
        if text[place] == "\\" and text[place + 1 : place + 2] in "{}\\":
            place += 2
            continue
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place
        place += 1
    return -1


def _unwrapped(text: str) -> str:
    """Without the commands of `WRAPPER`."""
    start = 0
    while found := WRAPPER.search(text, start):
        end = _end(text, found.end() - 1)
        start = found.start()
        if end < 0:
            break
        text = text[:start] + text[found.end() : end] + text[end + 1 :]
    return text


def _without_braces(text: str) -> str:
    """Without braces around the whole; with a comma in them they stand for a set's."""
    while text.startswith("{") and _end(text, 0) == len(text) - 1:
        inside = text[1:-1].strip()
        if "," in inside:
            return rf"\{{{inside}\}}"
        text = inside
    return text


def _roots(text: str) -> str:
    """With braces around what is under each root: \\sqrt(2), \\sqrt12 and \\sqrt x."""
    start = 0
    while found := re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(?=[^\s{\[])").search(text, start):
        start, place = found.start() + 5, found.end()
        number = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+").match(text, place)
        # In LaTeX a root without braces is that of a single digit; nobody means that.
        end = _end(text, place) if text[place] == "(" else number.end() - 1 if number else -1
        if end >= 0:
            inside = text[place + 1 : end] if text[place] == "(" else text[place : end + 1]
            text = rf"{text[: found.start()]}\sqrt{found[1] or ''}{{{inside}}}{text[end + 1 :]}"
    return text


@dataclass
class Shape:
    """What an answer consists of.

    Attributes:
        kind: `one` for a single thing, `list` for several with nothing around them, `words` for those joined by "or"
            or "and", `set`, `tuple` for what is in parentheses, brackets or a column, `relations` for inequalities
            joined by a word.
        items: its parts, as text.
        ends: a tuple's first and last character.
        join: the word between relations.
    """

    kind: str
    items: list[str] = field(default_factory=list)
    ends: str = "()"
    join: str = ""


RELATION = re.compile(r"<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])")
NAMED = re.compile(r"^\s*([A-Za-z](?:_\w|_\{\w+\})?)\s*=\s*([^=]+)$")
COLUMN = re.compile(r"^\\begin\{pmatrix\}(.*)\\end\{pmatrix\}$", re.DOTALL)
BUILT = re.compile(
    r"^\\\{\s*[a-zA-Z](?:\s*\\in\s*\\mathbb\{R\})?\s*(?:\\mid(?![A-Za-z])|:|\||\\vert(?![A-Za-z]))(.*)\\\}$", re.DOTALL
)


def shape(text: str) -> Shape:
    """What a readable text consists of."""
    text = text.strip()
    if point := re.fullmatch(r"[A-Z]'?\s*(\(.*,.*\))", text):
        text = point[1] if _encloses(point[1]) else text
    items, words = split(text)
    if len(items) > 1:
        if all(RELATION.search(item) for item in items):
            return Shape("relations", items, join="or" if words and "and" not in words else "and" if words else "or")
        named = [name for name in map(NAMED.match, items) if name]
        are_named = len(named) == len(items)
        if are_named and len({name[1][0] for name in named}) == 1:  # x_1 = 2, x_2 = 5
            return Shape("list", [name[2].strip() for name in named])
        if are_named and len({name[1] for name in named}) == len(items):
            ordered = sorted(named, key=lambda name: name[1])
            return Shape("tuple", [name[2] for name in ordered], ends="()")
        return Shape("words" if words else "list", items)
    if column := COLUMN.match(text):
        rows = [row.strip() for row in re.split(r"\\\\", column[1]) if row.strip()]
        if len(rows) > 1 and not any("&" in row for row in rows):
            return Shape("tuple", rows)
    for opening, closing in ((r"\{", r"\}"), (r"\langle", r"\rangle"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
            if not _encloses(text):
                continue
            inside = text[len(opening) : len(text) - len(closing)].strip()
            parts, words = split(inside)
            if opening == r"\{":
                return Shape("set", parts if inside else [])
            if len(parts) > 1 and not words:
                ends = "()" if opening == r"\langle" or len(parts) > 2 else opening + closing
                return Shape("tuple", parts, ends)
            if (opening, closing) == ("(", ")") and inside:
                return shape(inside)
    return Shape("one", [text])


def _encloses(text: str) -> bool:
    """Whether what opens at the start of the text closes at its end and not before."""
    depth, tokens = 0, TOKEN.findall(text)
    for place, token in enumerate(tokens):
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0:
            return place == len(tokens) - 1
    return False


def token_at(text: str, place: int) -> str:
    """The command or the character that begins at a place inside the text."""
    token = TOKEN.match(text, place)
    assert token
    return token[0]


def split(text: str) -> tuple[list[str], set[str]]:
    """The parts of a text between commas, semicolons, "or" and "and" that are in no brackets, and those words."""
    parts, words, depth, start, place = [], set(), 0, 0, 0
    while place < len(text):
        token = token_at(text, place)
        word = WORD_BETWEEN.match(text, place) if depth == 0 else None
        if word and text[start:place].strip():
            words.add(next(filter(None, word.groups())))
            parts.append(text[start:place])
            start = place = word.end()
            continue
        depth += (token in OPENING) - (token in CLOSING)
        thousands = THOUSANDS.match(text, place)
        if thousands:
            place = thousands.end()
            continue
        if depth == 0 and token in (",", ";"):
            parts.append(text[start:place])
            start = place + 1
        place += len(token)
    parts = [part.strip() for part in [*parts, text[start:]]]
    return [part for part in parts if part], words


TEXT = re.compile(r"(?:\s*\\text\s*\{[^{}]*\}\s*)+|[A-Z]|\([A-Z]\)|\[[A-Z]\]|[A-Z]\)")
SENTENCE = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z0-9 ,.'-]*|yes|no|odd|all", re.IGNORECASE)


def is_words(text: str) -> bool:
    """Whether a readable text is words, or the letter of a choice, and no mathematics."""
    return bool(TEXT.fullmatch(text) or SENTENCE.fullmatch(text))


def choice(text: str) -> str:
    """The letter with which a readable text chooses, "(D) 12" or "D. 12"; nothing where it is none or not alone."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    found = re.match(r"\s*(?:\(\s*([A-Z])\s*\)|([A-Z])\s*[.:)])\s*\S", text)
    is_alone = len(re.findall(r"(?<![A-Za-z])[A-J](?![A-Za-z])", text)) == 1
    return (found[1] or found[2]) if found and is_alone else ""


def words(text: str) -> str:
    """The letters and digits of a readable text; capitals tell single letters apart only."""
    found = re.sub(r"[\W_]", "", re.sub(r"\\text(?![A-Za-z])", "", text))
    return found if len(found) == 1 else found.casefold()


UNITS = (
    "m cm mm km nm ft in inch inches yd mi g kg mg lb lbs oz s sec secs second seconds min mins minute minutes h hr "
    "hrs hour hours day days week weeks month months year years yr yrs L mL ml l liter liters litre litres N J kJ W "
    "kW V A K Hz Pa kPa mol rad radians radian deg degree degrees unit units mph kmh dollar dollars cent cents euro "
    "euros USD EUR foot feet yard yards mile miles meter meters metre metres centimeter centimeters kilometer "
    "kilometers gram grams kilogram kilograms pound pounds ounce ounces sq square cubic per gallon gallons acre "
    "acres people ways students apples points times rupees pence coins marbles books cup cups cards items numbers "
    "integers solutions pairs "
).split()
UNIT = rf"(?:{'|'.join(sorted(UNITS, key=len, reverse=True))})"
POWER = r"(?:\s*\^\s*(?:\d|\{\s*-?\d+\s*\}))?"
TEXT_UNIT = rf"\\text\s*\{{(?!\s*(?:or|and|mod)\b)(?:[^{{}}]|\{{[^{{}}]*\}})*\}}{POWER}"
UNIT_AT_END = re.compile(
    rf"(?<=\S)\s*(?:(?:\\cdot)?\s*/?\s*{TEXT_UNIT}"
    rf"|\\frac\s*\{{\s*{TEXT_UNIT}\s*\}}\s*\{{\s*{TEXT_UNIT}\s*\}})+\s*$"
    rf"|(?:(?<=[\d}}\])!])|(?<=\\pi)|(?<=\\pi ))"
    rf"(?:\s+|(?<=\d)(?=[a-zA-Z]{{2}})){UNIT}{POWER}(?:\s*(?:/|\\cdot|\s)\s*{UNIT}{POWER})*\s*$"
)
OTHER_WORDS = re.compile(r"^(-?[\d.,/]+)\s+[A-Za-z]{4,}(?:\s+[A-Za-z]+)*$")


def without_unit(text: str) -> str:
    """A readable text without the unit at its end."""
    return OTHER_WORDS.sub(r"\1", UNIT_AT_END.sub("", text)).strip() or text
