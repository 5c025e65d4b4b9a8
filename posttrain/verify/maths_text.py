r"""Reads mathematical answers as text: what is to be rewritten before math-verify sees it, and what it must not see at all.

Only the standard library, and every pattern costs linear time or runs on a few thousand characters: completions are hostile.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from posttrain.verify.last_number import MINUS_SIGNS

BOX = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{")
_BRACES = re.compile(
    r"(?P<open>(?P<box>\\(?:boxed|fbox)\s{0,9})?\{)|(?P<close>\})|\\(?!\\(?:boxed|fbox)).", re.DOTALL
)  # \{ is text
_SPACE = r"[ \u00a0\u2009\u202f~]"
_LATEX_SPACE = r"\\[ ,;:!]"
_GAP = rf"(?:{_SPACE}|{_LATEX_SPACE})"
_MIXED = re.compile(
    rf"(?<![\w.,/^])(?P<whole>[0-9]{{1,9}}){_GAP}{{1,9}}(?P<top>[1-9][0-9]{{0,8}})\s{{0,9}}/\s{{0,9}}(?P<bottom>[0-9]{{1,9}})(?![0-9/])"
)
_THOUSANDS = r"(?<![\w.,^])(?<![0-9] )[1-9][0-9]{{0,2}}(?:{0}[0-9]{{3}})+(?![0-9])(?!{1}{{1,9}}[0-9])"
_THOUSANDS_IN_PROSE = re.compile(_THOUSANDS.format(r"(?:\\[,!;: ]|\{,\})", _GAP))
_THOUSANDS_IN_BOX = re.compile(_THOUSANDS.format(rf"(?:{_GAP}|\{{,\}})", _GAP))
_EXPONENT = re.compile(r"(?<![\w.])[0-9]{1,30}(?:\.[0-9]{1,30})?[eE][+-]?[0-9]{1,2}(?![\w.])")
_REPEATING = re.compile(
    r"(?<![\w.])(?P<whole>[0-9]{0,30})\.(?P<fixed>[0-9]{0,30})(?:\\overline|\\bar|\\dot)\s{0,9}(?:\{(?P<period>[0-9]{1,30})\}|(?P<digit>[0-9]))(?![0-9])"
)
_BEFORE = re.compile(r"^(?:\s|\\[ ,;:!])*(?:\\approx(?![a-zA-Z])|≈)?\s{0,9}(?:\\\$)?(?=[-\s]{0,9}[0-9.\\])")
_DEGREE = re.compile(r"(?<=[0-9}])\s{0,9}(?:°|\\degree(?![a-zA-Z]))")
_POWER = re.compile(r"\^\((?P<power>[^()]{1,50})\)")
_WIDE_DIGITS = {0xFF10 + digit: str(digit) for digit in range(10)}
_NO_NUMBER = r"$\text{notanumber}$"

_CLOCK = r"(?<![\w:.])[0-9]{1,2}:[0-5][0-9](?::[0-5][0-9])?(?![\w:])"
_RANGE = r"[0-9]\s{0,9}\.\.+\s{0,9}[0-9]"
_UNEQUAL = r"(?:\\neq?(?![a-zA-Z])|\\not\s{0,9}=|≠|!=)"
_TIME = re.compile(rf"{_CLOCK}\s{{0,9}}(?:[ap]\.?m\.?)?", re.IGNORECASE)
_JUXTAPOSED = re.compile(rf"(?<![0-9_])[0-9]+(?:{_GAP}|\s){{1,99}}[0-9]")
_DENIED = r"\b(?:not|(?:less|more|greater|fewer) than)\s{1,9}\$?[-+]?[0-9][\w.]*"
_NO_VALUE = re.compile(rf"{_CLOCK}|{_RANGE}\w*|{_UNEQUAL}\s{{0,9}}[-+]?[\w.]*|{_DENIED}")
_HEDGE = re.compile(r"[0-9][^\w\n]{0,9}(?:\b(?:or|OR|Or)\b|\|)[^\w\n]{0,9}[0-9][0-9.,/]{0,30}[^0-9\n]*$")
_UNARY = re.compile(r"\\[gl](?:eq?|eqslant|t)(?![a-zA-Z])|[<>≤≥]")
_BOLD = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w({])|`")
_SHORT_WORD = re.compile(r"(?!pi(?![^\W\d_]))(?<![^\W\d_])[^\W\d_]{2,}")
_DIGITS = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MULTIPLE = re.compile(
    rf"(?<![\w.,])(?P<number>[0-9]{{1,15}}(?:\.[0-9]{{1,15}})?){_GAP}{{0,9}}(?P<text>\\(?:text|textrm|mathrm|mbox)\{{\s{{0,9}})?"
    rf"(?P<multiple>{'|'.join(_MULTIPLES)})(?![a-z])(?P<close>\s{{0,9}}\}})?"
)
_FORMULA = re.compile(r"\$([^$]{1,200})\$")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s{0,9}[0-9]\s{1,9}[0-9]")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s{0,9}\{([^{}]*)\}")
_COMMAND = re.compile(r"\\(?:begin|end)\{[^{}]*\}|\\[A-Za-z]+")
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_NO_WORD = re.compile(r"and|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|min|max|det|lim|mod|gcd|lcm|deg|sqrt", re.IGNORECASE)
_CHOICE = re.compile(r"[,;]|\b(?:or|and)\b")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\{?\w{1,9}\}?)?'?(?:\([^()]{0,20}\))?")
_OR = re.compile(r"\\(?:lor|vee)(?![a-zA-Z])|∨")
_STATES = re.compile(r"\b(?:answers?|solutions?|roots?|zeros?|values?)(?: are| is)?\s{0,9}:?\s{0,9}", re.IGNORECASE)
_ITEM = r"(?:[A-Za-z](?:_\{?\w{1,2}\}?)?\s?=\s?)?[-+]?(?:[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?|\\d?frac\{[0-9]+\}\{[0-9]+\})"
_BETWEEN = r"(?:[,;]\s(?:(?:or|and)\s)?|\s(?:or|and)\s)"
_LIST = re.compile(rf"(?<![\w.,\\]){_ITEM}(?:{_BETWEEN}{_ITEM}){{1,20}}$")
_JOINED = re.compile(r"=|\b(?:or|and)\b")
_ANSWER_IS = re.compile(r"\banswer(?: is)?\s{0,9}:?\s{0,9}", re.IGNORECASE)


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed or \fbox whose braces close, or None. One pass: a completion may be hostile."""
    opened: list[int | None] = []  # for every open brace: where its content starts if it is a box's
    last_start, content = -1, None
    for token in _BRACES.finditer(text):
        if token["open"]:
            opened.append(token.end() if token["box"] else None)
        elif token["close"] and opened:
            start = opened.pop()
            if start is not None and start > last_start:
                last_start, content = start, text[start : token.start()]
    return content


def normalise(text: str, boxed: bool = True) -> str:
    """Plain minus signs; mixed numbers as fractions; no groups of thousands; decimals instead of 1e3."""
    text = _OR.sub(r" \\text{ or } ", text.translate({ord(sign): "-" for sign in MINUS_SIGNS}))
    text = _REPEATING.sub(_as_repeating, text.translate(_WIDE_DIGITS))
    text = _MULTIPLE.sub(_as_multiple, _whole(text) if boxed else _BOLD.sub("", text))
    text = _MIXED.sub(_as_fraction, text)
    thousands = _THOUSANDS_IN_BOX if boxed else _THOUSANDS_IN_PROSE
    text = thousands.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), text)
    return _EXPONENT.sub(lambda match: format(Decimal(match[0]), "f"), text)


def _whole(text: str) -> str:
    """An answer and nothing else without its currency sign and full stop, its powers in LaTeX."""
    text = _BEFORE.sub("", re.sub(r"(?<=[0-9])\.\s{0,9}$", "", text))
    text = _DEGREE.sub(r"^\\circ", text).replace("**", "^")
    for _ in range(8):
        text = _POWER.sub(r"^{\g<power>}", text)
    return text


def _as_multiple(match: re.Match[str]) -> str:
    number = format((Decimal(match["number"]) * _MULTIPLES[match["multiple"]]).normalize(), "f")
    if bool(match["text"]) == bool(match["close"]):
        return number
    return number + (match["text"] or match["close"])


def _as_repeating(match: re.Match[str]) -> str:
    fixed, period = match["fixed"], match["period"] or match["digit"]
    start = Fraction(int((match["whole"] or "0") + fixed), 10 ** len(fixed))
    value = start + Fraction(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _as_fraction(match: re.Match[str]) -> str:
    whole, top, bottom = (int(match[name]) for name in ("whole", "top", "bottom"))
    return f"{whole * bottom + top}/{bottom}" if top < bottom else _NO_NUMBER


def without_false_values(prose: str) -> str:
    r"""`prose` without what holds digits but states no value: 3:15, 5..6, \ne 5, $7 8$."""
    prose = _FORMULA.sub(lambda match: " " if _is_juxtaposed(match[1]) else match[0], prose)
    return _NO_VALUE.sub(" ", prose)


def is_hedge(prose: str) -> bool:
    """Whether the last two numbers of what `prose` states are alternatives: 12 (or 13), 12 | 13 apples."""
    return bool(_HEDGE.search(stated_last(prose).rstrip()[-300:]))


def expression(prose: str) -> str | None:
    """What `prose` states, ready to be read as a whole, if it is one line with no word in it, such as 2pi or 3 + 2i."""
    stated = _plain(stated_last(prose))
    bare = _COMMAND.sub(" ", stated)
    if len(stated) > 200 or "\n" in stated or _SHORT_WORD.search(bare) or not _DIGITS.search(bare):
        return None
    if _NO_VALUE.search(stated) or _is_juxtaposed(stated):
        return None
    return re.sub(r"(?<![\\A-Za-z])pi\b", r"\\pi ", _whole(stated))


def is_single(expression: str) -> bool:
    """Whether there is no more than one number in it."""
    return len(_DIGITS.findall(expression)) == 1


def is_text(answer: str) -> bool:
    """Whether an answer is to be compared as text, because as mathematics it would be misread."""
    plain = _plain(answer)
    return bool(
        _TIME.fullmatch(plain)
        or re.search(rf"{_RANGE}|{_UNEQUAL}", plain)
        or _UNARY.match(plain)
        or _is_juxtaposed(plain)
        or any(len(_EQUALS.findall(part)) > 1 for part in _CHOICE.split(plain))
        or _has_words(value(plain) or plain)
    )


def equal_as_text(expected: str, found: str) -> bool:
    """Equality apart from case, LaTeX's text commands and white space beside signs."""
    return _key(expected) == _key(found)


def stated_last(prose: str) -> str:
    """What follows the last "answer is" in `prose`, or all of it."""
    return _ANSWER_IS.split(prose)[-1].strip()


def stated_list(prose: str) -> str | None:
    """The values with which `prose` ends, such as `x = 2 or x = 3`, where it ends with more than one."""
    last_line = prose.rstrip(" \t\r\n.$").rpartition("\n")[2]
    stated = _STATES.split(last_line[-300:].replace("$", ""))[-1].strip()
    match = _LIST.search(stated)
    if match is None or (match.start() and not _JOINED.search(match[0])):  # May 5, 2020 is no list
        return None
    return match[0]


def align_equations(expected: str, found: str) -> tuple[str, str] | None:
    """Both sides without `symbol =` where only one has it; None where one is an equation and the other is not."""
    equations = [len(_EQUALS.findall(side)) for side in (expected, found)]
    if equations == [0, 1]:
        right = value(found)
        return None if right is None else (expected, right)
    if equations == [1, 0]:
        right = value(expected)
        return None if right is None else (right, found)
    return expected, found


def value(equation: str) -> str | None:
    """The right side of `symbol = value`."""
    left, *right = _EQUALS.split(_plain(equation))
    return right[0] if len(right) == 1 and _SYMBOL.fullmatch(left.strip()) else None


def _plain(text: str) -> str:
    text = text.strip("$ \t\r\n").removesuffix(".").strip("$ \t\r\n")
    if text[:2] + text[-2:] in (r"\(\)", r"\[\]"):
        text = text[2:-2]
    return _TEXT.sub(r"\1", text).strip()


def _key(text: str) -> str:
    plain = re.sub(_UNEQUAL, "≠", _plain(text).casefold())
    plain = re.sub(rf"(?:{_GAP}|\s)+", " ", plain)
    return re.sub(r" ?([^\w ]) ?", r"\1", plain).strip()


def _is_juxtaposed(text: str) -> bool:
    """Two numbers with nothing but space between them."""
    return bool(_JUXTAPOSED.search(_SHORT_FRACTION.sub("", text)))


def _has_words(plain: str) -> bool:
    """Words alone, or a word before a number; a word after the last number is a unit."""
    bare = _COMMAND.sub(" ", plain)
    words = [match for match in _LETTERS.finditer(bare) if _is_word(match[0])]
    if not words:
        return False
    digits = [place for place, letter in enumerate(bare) if letter.isdecimal()]
    return digits[-1] > words[0].end() if digits else not re.search(r"[^\w\s.,'()-]", plain)


def _is_word(letters: str) -> bool:
    """Four letters, or three with a vowel; fewer may be a product of symbols."""
    return not _NO_WORD.fullmatch(letters) and (len(letters) > 3 or bool(re.search("[aeiou]", letters, re.IGNORECASE)))
