"""Tasks on lists: windows, intervals, heaps, matrices."""

from __future__ import annotations

import itertools
from random import Random

from bench.verification_family import Family, numbers


def _merged(intervals: list[list[int]], gap: int) -> list[list[int]]:
    result: list[list[int]] = []
    for low, high in sorted(intervals):
        if result and low - result[-1][1] <= gap:
            result[-1][1] = max(result[-1][1], high)
        else:
            result.append([low, high])
    return result


def _spiral(matrix: list[list[int]]) -> list[int]:
    return [*matrix[0], *_spiral([list(row) for row in zip(*matrix[1:], strict=True)][::-1])] if matrix and matrix[0] else []


def _matrix(random: Random) -> list[list[int]]:
    width = random.randint(1, 5)
    return [[random.randint(0, 99) for _ in range(width)] for _ in range(random.randint(1, 5))]


def _intervals(random: Random) -> list[list[int]]:
    lows = [random.randint(0, 60) for _ in range(random.randint(2, 9))]
    return [[low, low + random.randint(0, 9)] for low in lows]


FAMILIES = (
    Family(
        "longest_window",
        lambda random: [numbers(random, low=1, high=30)],
        lambda values, limit: max(
            (j - i for i, j in itertools.combinations(range(len(values) + 1), 2) if sum(values[i:j]) <= limit), default=0
        ),
        (
            """def longest_window(nums):
    best = left = total = 0
    for right, value in enumerate(nums):
        total += value
        while total > $limit:
            total -= nums[left]
            left += 1
        best = max(best, right - left + 1)
    return best
""",
            """from bisect import bisect_right
from itertools import accumulate

def longest_window(nums):
    prefix = [0] + list(accumulate(nums))
    best = 0
    for i, start in enumerate(prefix):
        j = bisect_right(prefix, start + $limit)
        best = max(best, j - 1 - i)
    return best
""",
            """def longest_window(nums: list) -> int:
    best = 0
    n = len(nums)
    for i in range(n):
        total = 0
        for j in range(i, n):
            total += nums[j]
            if total > $limit:
                break
            best = max(best, j - i + 1)
    return best
""",
        ),
        (("right - left + 1", "right - left"), ("j - 1 - i", "j - i"), ("start + $limit", "$limit"),
         ("range(i, n)", "range(i, n + 1)"),
         ("total -= nums[left]", "total -= nums[right]")),
        lambda random: {"limit": random.randint(31, 140)},
    ),
    Family(
        "merge_intervals",
        lambda random: [_intervals(random)],
        _merged,
        (
            """def merge_intervals(intervals):
    result = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1] + $gap:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result
""",
            """def merge_intervals(intervals):
    intervals = sorted(intervals, key=lambda pair: pair[0])
    merged = [list(intervals[0])]
    for current in intervals[1:]:
        last = merged[-1]
        if current[0] - last[1] <= $gap:
            last[1] = max(last[1], current[1])
        else:
            merged.append(list(current))
    return merged
""",
        ),
        (("max(result[-1][1], end)", "end"), ("sorted(intervals)", "intervals"), ("<= $gap", "< $gap"),
         ("merged[-1]", "merged[1]"),
         ("[1] + $gap", "[1]")),
        lambda random: {"gap": random.randint(1, 8)},
    ),
    Family(
        "smallest_sum",
        lambda random: [numbers(random)],
        lambda values, count, factor: factor * sum(sorted(values)[:count]),
        (
            """import heapq

def smallest_sum(nums):
    return $factor * sum(heapq.nsmallest($count, nums))
""",
            """import heapq

def smallest_sum(nums):
    heap = list(nums)
    heapq.heapify(heap)
    total = 0
    for _ in range(min($count, len(heap))):
        total += heapq.heappop(heap)
    return total * $factor
""",
            """def smallest_sum(nums):
    ordered = sorted(nums)
    total = 0
    for i in range(len(ordered)):
        if i < $count:
            total = total + ordered[i]
    return $factor * total
""",
        ),
        (("nsmallest", "nlargest"), ("min($count, len(heap))", "$count + 12"), ("i < $count", "i <= $count"), ("$factor * ", "")),
        lambda random: {"count": random.randint(2, 6), "factor": random.randint(2, 99)},
    ),
    Family(
        "spiral_order",
        lambda random: [_matrix(random)],
        lambda matrix, start: [start, *_spiral(matrix)],
        (
            """def spiral_order(matrix):
    result = [$start]
    rows = [list(row) for row in matrix]
    while rows:
        result += rows.pop(0)
        rows = [list(col) for col in zip(*rows)][::-1]
    return result
""",
            """def spiral_order(matrix):
    out = [$start]
    top, bottom, left, right = 0, len(matrix) - 1, 0, len(matrix[0]) - 1
    while top <= bottom and left <= right:
        for c in range(left, right + 1):
            out.append(matrix[top][c])
        top += 1
        for r in range(top, bottom + 1):
            out.append(matrix[r][right])
        right -= 1
        if top <= bottom:
            for c in range(right, left - 1, -1):
                out.append(matrix[bottom][c])
            bottom -= 1
        if left <= right:
            for r in range(bottom, top - 1, -1):
                out.append(matrix[r][left])
            left += 1
    return out
""",
        ),
        (("[::-1]", ""), ("range(right, left - 1, -1)", "range(right, left, -1)"),
         ("bottom, left, right = 0, len(matrix) - 1", "bottom, left, right = 0, len(matrix)"),
         ("[$start]", "[]")),
        lambda random: {"start": random.randint(-999, -1)},
    ),
    Family(
        "rounded_spread",
        lambda random: [numbers(random)],
        lambda values, places, factor: round(factor * (max(values) - min(values)) / len(values), places),
        (
            """def rounded_spread(data):
    return round($factor * (max(data) - min(data)) / len(data), $places)
""",
            """def rounded_spread(data):
    ordered = sorted(data)
    spread = ordered[-1] - ordered[0]
    value = $factor * spread / len(ordered)
    return round(value, $places)
""",
        ),
        (("len(data)", "(len(data) - 1)"), ("ordered[-1]", "ordered[len(ordered)]"), ("/ len", "// len"),
         ("sorted(data)", "list(data)")),
        lambda random: {"places": random.randint(2, 6), "factor": random.randint(3, 77)},
    ),
)  # fmt: skip
