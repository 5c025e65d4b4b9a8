"""Tasks on text: letters, counts, runs, regular expressions."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

from bench.verification_family import Family, words


def _shifted(text: str, shift: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    table = str.maketrans(
        letters + letters.upper(), letters[shift:] + letters[:shift] + (letters[shift:] + letters[:shift]).upper()
    )
    return text.translate(table)


def _packed(text: str, least: int) -> str:
    runs = [match.group() for match in re.finditer(r"(.)\1*", text)]
    return "".join(f"{run[0]}{len(run)}" if len(run) >= least else run for run in runs)


def _runs(random: Random) -> list[Any]:
    return ["".join(random.choice("abcdz") * random.randint(1, 6) for _ in range(random.randint(3, 9)))]


FAMILIES = (
    Family(
        "shift_letters",
        lambda random: [words(random)],
        _shifted,
        (
            """def shift_letters(text):
    result = []
    for ch in text:
        if ch.isalpha():
            base = ord('A') if ch.isupper() else ord('a')
            result.append(chr((ord(ch) - base + $shift) % 26 + base))
        else:
            result.append(ch)
    return ''.join(result)
""",
            """import string

def shift_letters(text):
    lower = string.ascii_lowercase
    upper = string.ascii_uppercase
    table = str.maketrans(lower + upper, lower[$shift:] + lower[:$shift] + upper[$shift:] + upper[:$shift])
    return text.translate(table)
""",
        ),
        (("% 26", "% 25"), ("ord('A') if ch.isupper() else ord('a')", "ord('a')"), ("+ upper[:$shift]", "+ upper[:1]"),
         ("chr((", "(("),
         ("+ $shift) %", "- $shift) %"), ("lower[:$shift] + upper", "lower[$shift:] + upper")),
        lambda random: {"shift": random.choice([n for n in range(1, 26) if n != 13])},
    ),
    Family(
        "common_words",
        lambda random: [words(random, most=20)],
        lambda text, count, weight: [
            [word, weight * n]
            for word, n in sorted(Counter(text.lower().split()).items(), key=lambda pair: (-pair[1], pair[0]))[:count]
        ],
        (
            """from collections import Counter

def common_words(text):
    counts = Counter(text.lower().split())
    ranked = sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))
    return [[word, $weight * n] for word, n in ranked[:$count]]
""",
            """from collections import defaultdict

def common_words(text):
    counts = defaultdict(int)
    for word in text.split():
        counts[word.lower()] += $weight
    result = []
    for word in sorted(counts):
        result.append([word, counts[word]])
    result.sort(key=lambda item: item[1], reverse=True)
    return result[:$count]
""",
        ),
        (("(-kv[1], kv[0])", "kv[1]"), ("reverse=True", "reverse=False"), ("$weight * n", "n"), ("[:$count]", "[:$count + 1]"),
         ("counts.items()", "counts.values()"), ("defaultdict(int)", "dict()")),
        lambda random: {"count": random.randint(2, 4), "weight": random.randint(2, 40)},
    ),
    Family(
        "pack_runs",
        _runs,
        _packed,
        (
            """from itertools import groupby

def pack_runs(text):
    parts = []
    for letter, group in groupby(text):
        size = len(list(group))
        parts.append(f"{letter}{size}" if size >= $least else letter * size)
    return "".join(parts)
""",
            """def pack_runs(text):
    out, i = "", 0
    while i < len(text):
        j = i
        while j < len(text) and text[j] == text[i]:
            j += 1
        out += text[i] + str(j - i) if j - i >= $least else text[i:j]
        i = j
    return out
""",
            """import re

def pack_runs(text):
    def shorten(match):
        run = match.group(0)
        return run[0] + str(len(run)) if len(run) >= $least else run
    return re.sub(r"(.)\\1*", shorten, text)
""",
        ),
        ((">= $least", "> $least"), ("j < len(text) and ", ""), ("str(j - i)", "(j - i)"), ("str(len(run))", "len(run)"),
         ("letter * size", "letter")),
        lambda random: {"least": random.randint(2, 4)},
    ),
    Family(
        "sum_in_text",
        lambda random: [" ".join(f"{word}{random.randint(0, 400)}" for word in words(random).split())],
        lambda text, least, modulus: sum(int(n) for n in re.findall("[0-9]+", text) if int(n) > least) % modulus,
        (
            r"""import re

def sum_in_text(text):
    found = re.findall(r"\d+", text)
    return sum(int(n) for n in found if int(n) > $least) % $modulus
""",
            """def sum_in_text(text):
    total, current = 0, ""
    for ch in text + " ":
        if ch.isdigit():
            current += ch
        elif current:
            if int(current) > $least:
                total += int(current)
            current = ""
    return total % $modulus
""",
            """import re

def sum_in_text(text):
    return sum(filter(lambda n: n > $least, map(int, re.split("[^0-9]+", text)[1:]))) % $modulus
""",
        ),
        ((r"\d+", r"\d"), ("> $least", "> $least + 90"), ('            current = ""\n', ""),
         ("sum(int(n) for", "sum(n for"), (")[1:]", ")"),
         ("% $modulus", "% 7")),
        lambda random: {"least": random.randint(20, 200), "modulus": random.randint(500, 5000)},
    ),
)  # fmt: skip
