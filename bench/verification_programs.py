"""Tasks whose programs read stdin and print, and tasks answered by one expression."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

from bench.verification_family import Family, numbers, words


def _queue(text: str, bonus: int) -> str:
    kept: deque[int] = deque()
    printed: list[str] = []
    for line in text.splitlines()[1:]:
        command, *value = line.split()
        if command == "push":
            kept.append(int(value[0]) + bonus)
        else:
            printed.append(str(kept.popleft()) if kept else "empty")
    return "\n".join(printed) + "\n"


def _commands(random: Random) -> str:
    lines = [random.choice((f"push {random.randint(0, 99)}", "pop")) for _ in range(random.randint(5, 14))]
    return "\n".join([str(len(lines) + 1), *lines, "pop"]) + "\n"


def _grid(random: Random) -> str:
    rows = ["".join(random.choice("..#") for _ in range(6)) for _ in range(random.randint(3, 6))]
    return "\n".join([f"{len(rows)} 6", *rows]) + "\n"


def _islands(text: str, weight: int) -> str:
    land = {(r, c) for r, row in enumerate(text.splitlines()[1:]) for c, cell in enumerate(row) if cell == "#"}
    count = 0
    while land:
        todo, count = [land.pop()], count + 1
        while todo:
            r, c = todo.pop()
            near = {(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)} & land
            land -= near
            todo += near
    return f"{weight * count}\n"


PROGRAMS = (
    Family(
        "",
        lambda random: [f"{len(drawn := numbers(random, most=20))}\n{' '.join(map(str, drawn))}\n"],
        lambda text, divisor, offset: f"{sum(n for n in map(int, text.split()[1:]) if n % divisor == 0) + offset}\n",
        (
            """n = int(input())
values = list(map(int, input().split()))
print(sum(v for v in values if v % $divisor == 0) + $offset)
""",
            """import sys

def main():
    data = sys.stdin.read().split()
    total = $offset
    for token in data[1:int(data[0]) + 1]:
        if int(token) % $divisor == 0:
            total += int(token)
    print(total)

main()
""",
        ),
        (("== 0", "!= 0"), ("+ $offset", "- $offset"), ("int(token)", "token"), ("data[1:", "data[0:"),
         ("list(map(int, input().split()))", "list(input())")),
        lambda random: {"divisor": random.randint(2, 5), "offset": random.randint(100, 9999)},
    ),
    Family(
        "",
        lambda random: ["".join(f"{words(random, most=6)}\n" for _ in range(3))],
        lambda text, count: "".join(
            f"{word} {n}\n" for word, n in sorted(Counter(text.split()).items(), key=lambda pair: (-pair[1], pair[0]))[:count]
        ),
        (
            """import sys
from collections import Counter

counts = Counter(sys.stdin.read().split())
for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:$count]:
    print(word, n)
""",
            """counts = {}
while True:
    try:
        line = input()
    except EOFError:
        break
    for word in line.split():
        counts[word] = counts.get(word, 0) + 1
ranked = sorted(counts, key=lambda word: (-counts[word], word))
for word in ranked[:$count]:
    print(f"{word} {counts[word]}")
""",
        ),
        (("-item[1]", "item[1]"), ("print(word, n)", "print(n, word)"), ("counts.get(word, 0) + 1", "counts[word] + 1"),
         ("-counts[word]", "counts[word]")),
        lambda random: {"count": random.randint(3, 12)},
    ),
    Family(
        "",
        lambda random: [_commands(random)],
        _queue,
        (
            """from collections import deque

queue = deque()
for _ in range(int(input())):
    parts = input().split()
    if parts[0] == "push":
        queue.append(int(parts[1]) + $bonus)
    elif queue:
        print(queue.popleft())
    else:
        print("empty")
""",
        ),
        (("queue.popleft()", "queue.pop()"),
         ("    elif queue:\n        print(queue.popleft())\n    else:\n", "    else:\n        print(queue.popleft())\n"),
         (" + $bonus", ""), ('"empty"', '"none"')),
        lambda random: {"bonus": random.randint(1, 500)},
    ),
    Family(
        "",
        lambda random: [_grid(random)],
        _islands,
        (
            """import sys

def fill(grid, r, c):
    if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and grid[r][c] == "#":
        grid[r][c] = "."
        for dr, dc in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            fill(grid, r + dr, c + dc)
        return 1
    return 0

lines = sys.stdin.read().split("\\n")
rows, cols = map(int, lines[0].split())
grid = [list(line) for line in lines[1:rows + 1]]
print($weight * sum(fill(grid, r, c) for r in range(rows) for c in range(cols)))
""",
        ),
        (("(0, 1), (0, -1)", "(0, 1)"), ("$weight * ", ""), ("lines[1:rows + 1]", "lines[1:rows]"),
         ("range(cols)", "range(cols - 1)")),
        lambda random: {"weight": random.randint(2, 300)},
    ),
)  # fmt: skip

EXPRESSIONS = (
    Family(
        "x",
        lambda random: [random.randint(-99, 99)],
        lambda x, first, second, third: (first * x + second) * (x - third),
        ("($first * x + $second) * (x - $third)", "$first * x * x + ($second - $first * $third) * x - $second * $third"),
        (("+ $second)", "- $second)"), ("* (x - $third)", "* x - $third"), ("- $second * $third", "- $second"), ("* x)", "* y)"),
         ("($first * x +", "(math.floor($first * x) +")),
        lambda random: {name: random.randint(2, 999) for name in ("first", "second", "third")},
    ),
)  # fmt: skip


def mode_of(family: Family) -> dict[str, Any]:
    """The part of an answer that says how its programs are run."""
    if not family.name:
        return {"mode": "program"}
    if family in EXPRESSIONS:
        return {"mode": "expression", "variable": family.name}
    return {"mode": "function", "name": family.name}
