"""Which part of a completion is its code.

What stands before the last `</think>` is not looked at. A fenced block is what CommonMark calls one: it opens with a line of
three or more backticks or tildes, indented or not, and closes with a line of at least as many of the same; its lines lose
the indentation of its opening; without a closing line it runs to the end. Of several blocks counts the last one that
defines the wanted name; without any, the last that is marked as Python; then the last without a mark; then the last of all.
Without any block the whole text is code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}+|~{3,}+)(?P<mark>[^\n]*)$", re.MULTILINE)
_PYTHON = re.compile(r"(?:python|py)[0-9.]*", re.IGNORECASE)


@dataclass(frozen=True)
class _Block:
    """A fenced block: the first word after its fence, and its text."""

    mark: str
    code: str


def extract_code(completion: str, name: str | None = None) -> str:
    """The code of a completion by the rule of the module; `name` is what it should define."""
    text = after_thinking(completion)
    blocks = _blocks(text)
    if not blocks:
        return text
    choices = [
        [block for block in blocks if name is not None and _defines(block.code, name)],
        [block for block in blocks if _PYTHON.fullmatch(block.mark)],
        [block for block in blocks if not block.mark],
        blocks[-1:],
    ]
    return next(found[-1].code for found in choices if found)


def extract_expression(completion: str) -> str:
    """The expression of a completion: all of it, without one fenced block or one pair of backticks around it."""
    text = after_thinking(completion).strip()
    opening = _FENCE.match(text)
    if opening and _is_opening(opening):
        blocks = _blocks(text)
        closed = text.rstrip("`~") != text
        return blocks[0].code.strip() if len(blocks) == 1 and closed else text
    quoted = len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1]
    return text[1:-1].strip() if quoted else text


def after_thinking(completion: str) -> str:
    """What follows the last `</think>`, or everything."""
    return completion.rpartition("</think>")[2]


def _blocks(text: str) -> list[_Block]:
    found: list[_Block] = []
    opening: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        if opening is None:
            opening = line if _is_opening(line) else None
        elif _closes(line, opening):
            found.append(_block(opening, text[opening.end() : line.start()]))
            opening = None
    if opening is not None:
        found.append(_block(opening, text[opening.end() :]))
    return found


def _is_opening(line: re.Match[str]) -> bool:
    return line["fence"][0] == "~" or "`" not in line["mark"]


def _closes(line: re.Match[str], opening: re.Match[str]) -> bool:
    return line["fence"].startswith(opening["fence"]) and not line["mark"].strip()


def _block(opening: re.Match[str], text: str) -> _Block:
    if opening["indent"]:
        text = re.sub(rf"^[ \t]{{1,{len(opening['indent'])}}}", "", text, flags=re.MULTILINE)
    return _Block((opening["mark"].split(maxsplit=1) or [""])[0], text)


def _defines(code: str, name: str) -> bool:
    """By its look only: nothing untrusted is compiled here."""
    return bool(re.search(rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*[:=](?!=)", code, re.MULTILINE))
