"""1,000 different short programs with tests, as models write them, each with an outcome known beforehand.

Right ones agree with a reference of the task's own; wrong ones are right ones with a slip. Every one is run once in this
process, and what it does there must be what it was written to do.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Any

from bench.verification_family import Family
from bench.verification_lists import FAMILIES as LISTS
from bench.verification_numbers import FAMILIES as NUMBERS
from bench.verification_plain import OUTCOMES, kind_of
from bench.verification_programs import EXPRESSIONS, PROGRAMS, mode_of
from bench.verification_structures import FAMILIES as STRUCTURES
from bench.verification_texts import FAMILIES as TEXTS
from posttrain.verify.base import VerificationRequest

NUM_PROGRAMS = 1000
KINDS = {"right": 0.5, "wrong": 0.3, "raises": 0.12, "unparseable": 0.08}
MODES: tuple[tuple[float, Sequence[Family]], ...] = (
    (0.88, (*NUMBERS, *LISTS, *TEXTS, *STRUCTURES)),
    (0.08, PROGRAMS),
    (0.04, EXPRESSIONS),
)
MAX_TRIES = 2000
_HEADERS = (
    "from typing import List, Optional\n", "import sys\n", "import math\n", "import os\nimport sys\n",
    "import re\n", "import string\n",
    "from collections import defaultdict, deque\n", "import heapq\nimport itertools\n", "import random\n", "import json\n",
)  # fmt: skip
_OPENINGS = (
    "Here is a solution:", "We can solve this step by step.", "Sure! The idea is to go through the input once.",
    "Let me think about the edge cases first. An empty input cannot occur, so a direct solution works.",
)  # fmt: skip
_EXPRESSION_NAMES = {family.name for family in EXPRESSIONS}
_ENDINGS = (
    "",
    "\nThis runs well within the limits.",
    "\nThe time complexity is O(n log n).",
    "\n**Explanation**: see the comments.",
)


@dataclass(frozen=True)
class Program:
    """A completion, the program in it, its tests, and what it is: `right`, `wrong`, `raises` or `unparseable`."""

    request: VerificationRequest
    source: str
    kind: str

    @property
    def outcome(self) -> str:
        """What a verifier must say."""
        return OUTCOMES[self.kind]


def build(num_programs: int = NUM_PROGRAMS, *, seed: int = 0) -> list[Program]:
    """The same programs for the same seed, shuffled, no two sources alike.

    Raises:
        ValueError: a program does not do what it was written to do.
    """
    random = Random(seed)
    seen: set[str] = set()
    shares = [(share, kind) for kind, share in KINDS.items()]
    programs = [_build_one(random, row, _by_share(row, shares), seen) for row in range(num_programs)]
    random.shuffle(programs)
    return programs


def _by_share(row: int, choices: Sequence[tuple[float, Any]]) -> Any:
    """The choice of a row when rows are dealt out by shares; 0.618… spreads them evenly over the rows."""
    place = row * 0.6180339887 % 1
    for share, choice in choices:
        place -= share
        if place < 0:
            return choice
    return choices[-1][1]


def _build_one(random: Random, row: int, kind: str, seen: set[str]) -> Program:
    families = _by_share(row * 7 + 3, MODES)
    for _ in range(MAX_TRIES):
        family = random.choice(families)
        constants = family.constants(random)
        answer = _answer(random, family, constants)
        source = _written(random, family, constants, kind)
        if source is None or source in seen:
            continue
        found = _run_here(source, answer)
        if found == kind:
            seen.add(source)
            request = VerificationRequest(f"bench:{row}", 0, "", _completion(random, source, answer["mode"]), answer, "stop")
            return Program(request, source, kind)
        if kind == "right":
            raise ValueError(f"a program that should be right is {found}:\n{source}\n{answer}")
    raise ValueError(f"no new program of kind {kind} in {MAX_TRIES} tries")


def _answer(random: Random, family: Family, constants: dict[str, Any]) -> dict[str, Any]:
    tests = [family.arguments(random) for _ in range(random.randint(3, 8))]
    outputs = [family.reference(*copy.deepcopy(test), **constants) for test in tests]
    mode = mode_of(family)
    return {**mode, "inputs": tests if mode["mode"] == "function" else [test[0] for test in tests], "outputs": outputs}


def _written(random: Random, family: Family, constants: dict[str, Any], kind: str) -> str | None:
    """A source of this kind, or None where this solution has no slip of the kind."""
    text = random.choice(family.solutions)
    if kind == "raises" and (imported := re.match(r"(?:(?:import|from) .*\n)+\n", text)) and random.random() < 0.5:
        text = text[imported.end() :]
    elif kind in ("wrong", "raises"):
        slips = [slip for slip in family.slips if slip[0] in text]
        if not slips:
            return None
        text = text.replace(*random.choice(slips), 1)
    source = Template(text).substitute(constants)
    if family.name not in _EXPRESSION_NAMES and kind != "raises" and random.random() < 0.5:
        source = random.choice(_HEADERS) + source
    return _cut_off(random, source) if kind == "unparseable" else source


def _cut_off(random: Random, source: str) -> str | None:
    """The beginning of a source, as a cap on tokens leaves it, unless it can be compiled; it is never run."""
    cut = source[: random.randint(len(source) // 3, len(source) - 2)]
    try:
        compile(cut, "<completion>", "exec")
    except SyntaxError:
        return cut
    return None


def _completion(random: Random, source: str, mode: str) -> str:
    """Most programs stand in a fence between two sentences."""
    if mode == "expression" or random.random() < 0.3:
        return source
    return f"{random.choice(_OPENINGS)}\n\n```python\n{source.rstrip()}\n```\n{random.choice(_ENDINGS)}"


def _run_here(source: str, answer: dict[str, Any]) -> str:
    """What the program does in this process; it changes neither its tests nor the depth of recursion here."""
    depth = sys.getrecursionlimit()
    try:
        return kind_of(source, copy.deepcopy(answer))
    finally:
        sys.setrecursionlimit(depth)
