"""Tasks on stacks, tables and caches."""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import Any

from bench.verification_family import Family, words


def _deepest(text: str, cap: int) -> int:
    depth = most = 0
    for bracket in text:
        depth += 1 if bracket == "(" else -1
        most = max(most, depth)
        if depth < 0 or depth > cap:
            return -1
    return most if depth == 0 else -1


def _distance(first: str, second: str, cost: int) -> int:
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (0 if a == b else cost))
    return row[-1]


def _cached(operations: list[list[int]], capacity: int) -> list[int]:
    kept: OrderedDict[int, int] = OrderedDict()
    found: list[int] = []
    for operation in operations:
        if len(operation) == 1:
            found.append(kept.get(operation[0], -1))
        else:
            kept[operation[0]] = operation[1]
        if operation[0] in kept:
            kept.move_to_end(operation[0])
        if len(kept) > capacity:
            kept.popitem(last=False)
    return found


def _brackets(random: Random) -> list[Any]:
    text = "()"
    for _ in range(random.randint(1, 9)):
        text = random.choice((f"({text})", f"{text}()", f"(){text}", f"{text}(())"))
    return [text if random.random() < 0.7 else text + random.choice("()")]


def _operations(random: Random) -> list[Any]:
    keys = [random.randint(0, 8) for _ in range(random.randint(12, 30))]
    return [[[key] if random.random() < 0.5 else [key, random.randint(0, 99)] for key in keys]]


FAMILIES = (
    Family(
        "deepest_nesting",
        _brackets,
        _deepest,
        (
            """def deepest_nesting(s):
    stack = []
    best = 0
    for ch in s:
        if ch == '(':
            stack.append(ch)
            best = max(best, len(stack))
            if best > $cap:
                return -1
        else:
            if not stack:
                return -1
            stack.pop()
    return best if not stack else -1
""",
            """def deepest_nesting(s):
    depth = best = 0
    for ch in s:
        depth += 1 if ch == '(' else -1
        if depth < 0 or depth > $cap:
            return -1
        best = max(best, depth)
    if depth != 0:
        return -1
    return best
""",
        ),
        (("            if not stack:\n                return -1\n", ""), ("depth != 0", "depth < 0"),
         ("best if not stack else -1", "best"),
         ("best = max(best, depth)", "best = depth"), ("best = max(best, len(stack))", "best = len(stack)")),
        lambda random: {"cap": random.randint(3, 40)},
    ),
    Family(
        "edit_distance",
        lambda random: [*random.sample(words(random).split(), 2)],
        _distance,
        (
            """def edit_distance(a, b):
    dp = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            if i == 0 or j == 0:
                dp[i][j] = i + j
            elif a[i - 1] == b[j - 1]:
                dp[i][j] = dp[i - 1][j - 1]
            else:
                dp[i][j] = min(dp[i - 1][j] + 1, dp[i][j - 1] + 1, dp[i - 1][j - 1] + $cost)
    return dp[-1][-1]
""",
            """from functools import lru_cache

def edit_distance(a, b):
    @lru_cache(None)
    def solve(i, j):
        if i == len(a):
            return len(b) - j
        if j == len(b):
            return len(a) - i
        if a[i] == b[j]:
            return solve(i + 1, j + 1)
        return min(1 + solve(i + 1, j), 1 + solve(i, j + 1), $cost + solve(i + 1, j + 1))
    return solve(0, 0)
""",
        ),
        (("dp[i][j - 1] + 1, ", ""), ("return len(b) - j", "return 0"), ("(len(b) + 1) for", "len(b) for"),
         ("dp[i][j] = i + j", "dp[i][j] = 0"),
         ("if j == len(b):\n            return len(a) - i\n        ", "")),
        lambda random: {"cost": random.randint(1, 2)},
    ),
    Family(
        "recent_values",
        _operations,
        _cached,
        (
            """from collections import OrderedDict

class Cache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.data = OrderedDict()

    def get(self, key):
        if key not in self.data:
            return -1
        self.data.move_to_end(key)
        return self.data[key]

    def put(self, key, value):
        self.data[key] = value
        self.data.move_to_end(key)
        if len(self.data) > self.capacity:
            self.data.popitem(last=False)

def recent_values(operations):
    cache = Cache($capacity)
    out = []
    for op in operations:
        if len(op) == 1:
            out.append(cache.get(op[0]))
        else:
            cache.put(*op)
    return out
""",
            """def recent_values(operations):
    store, order, out = {}, [], []
    for op in operations:
        key = op[0]
        if len(op) == 1 and key not in store:
            out.append(-1)
            continue
        if key in order:
            order.remove(key)
        order.append(key)
        if len(op) == 1:
            out.append(store[key])
        else:
            store[key] = op[1]
            if len(store) > $capacity:
                del store[order.pop(0)]
    return out
""",
        ),
        (("        self.data.move_to_end(key)\n        return", "        return"), ("last=False", "last=True"),
         ("key not in self.data", "False"),
         ("order.pop(0)", "order.pop()"), ("        if key in order:\n            order.remove(key)\n", "")),
        lambda random: {"capacity": random.randint(2, 5)},
    ),
)  # fmt: skip
