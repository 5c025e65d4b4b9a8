"""Units that stand behind a number: two that differ make two answers different."""

from __future__ import annotations

import re

_NAMES = """
mm millimeter millimetre|cm centimeter centimetre|m meter metre|km kilometer kilometre|in inch inche|ft foot feet|yd yard|mi mile
mg milligram|g gram|kg kilogram|t ton tonne|oz ounce|lb pound|ml milliliter millilitre|l liter litre|s sec second|min minute
h hr hour|day|week|month|year|dollar|cent|euro|degree|radian rad
hz hertz|khz kilohertz|mhz megahertz|kj kilojoule|joule|newton|kw kilowatt|watt|volt|mph|kph|celsius|fahrenheit
"""
_UNITS = {name: names.split()[0] for names in _NAMES.strip().replace("\n", "|").split("|") for name in names.split()}
_LAST = re.compile(
    r"[0-9}).](?:\s|\\[ ,;:!]|~){0,9}(?:\\(?:text|textrm|mathrm|mbox)\{\s{0,9})?(?P<square>square |cubic )?"
    r"(?P<name>[A-Za-z]{1,12})\}?(?:\^\{?(?P<power>[0-9])\}?|(?P<sign>[²³]))?\}?\s{0,9}\.?\s{0,9}\$?$"
)
_POWERS = {None: "", "square ": "2", "cubic ": "3", "²": "2", "³": "3"}


def unit(answer: str) -> tuple[str, str] | None:
    """The known unit at the end of `answer` and its power, or None."""
    match = _LAST.search(answer.strip()[-60:])
    return None if match is None else _known(match)


def contradict(expected: str, found: str, required: bool = False) -> bool:
    """Whether both answers have a known unit, and not the same one; with `required`, also whether only one has any."""
    units = unit(expected), unit(found)
    return units[0] != units[1] and (required or None not in units)


def without_units(expected: str, found: str) -> tuple[str, str]:
    """Both answers without the unit they share, or without the one that only one has, if no product of symbols reads like it."""
    shared = unit(expected) is not None and unit(expected) == unit(found)
    return _cut(expected, shared), _cut(found, shared)


def _cut(answer: str, shared: bool) -> str:
    text = answer.strip()
    match = _LAST.search(text, max(0, len(text) - 60))
    if match is None or _known(match) is None or not (shared or len(match["name"]) > 2):
        return answer
    return text[: match.start() + 1]


def _known(match: re.Match[str]) -> tuple[str, str] | None:
    name = match["name"].casefold()
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    return (known, match["power"] or _POWERS[match["square"] or match["sign"]]) if known else None
