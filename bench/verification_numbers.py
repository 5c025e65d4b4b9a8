"""Tasks on single numbers: loops, recursion, dynamic programming, a sieve."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

from bench.verification_family import Family


def _coin_ways(amount: int, coins: list[int]) -> int:
    ways = [1] + [0] * amount
    for coin in coins:
        for value in range(coin, amount + 1):
            ways[value] += ways[value - coin]
    return ways[amount]


def _best_value(capacity: int, weights: list[int], values: list[int]) -> int:
    chosen = itertools.product((0, 1), repeat=len(weights))
    fits = (pick for pick in chosen if sum(w for w, taken in zip(weights, pick, strict=True) if taken) <= capacity)
    return max(sum(v for v, taken in zip(values, pick, strict=True) if taken) for pick in fits)


def _steps(n: int, cap: int) -> int:
    count = 0
    while n != 1 and count < cap:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


def _items(random: Random) -> list[Any]:
    count = random.randint(3, 8)
    drawn = [[random.randint(1, top) for _ in range(count)] for top in (20, 60)]
    return [random.randint(10, 60), *drawn]


FAMILIES = (
    Family(
        "digit_power_sum",
        lambda random: [random.randint(10, 10**9)],
        lambda n, power, modulus: sum(int(digit) ** power for digit in str(n)) % modulus,
        (
            """def digit_power_sum(n):
    return sum(int(d) ** $power for d in str(n)) % $modulus
""",
            """def digit_power_sum(n):
    total = 0
    while n > 0:
        n, digit = divmod(n, 10)
        total += digit ** $power
    return total % $modulus
""",
            """from functools import reduce

def digit_power_sum(n):
    return reduce(lambda acc, d: (acc + pow(int(d), $power)) % $modulus, str(n), 0)
""",
        ),
        (("** $power", "* $power"), ("% $modulus", "% ($modulus - 1)"), ("pow(int(d)", "pow(d"), ("while n > 0", "while n > 9")),
        lambda random: {"power": random.randint(2, 5), "modulus": random.randint(101, 9973)},
    ),
    Family(
        "count_primes",
        lambda random: [random.randint(10, 900)],
        lambda n, base, rest: sum(all(p % d for d in range(2, math.isqrt(p) + 1)) and p % base == rest for p in range(2, n + 1)),
        (
            """import math

def is_prime(n):
    if n < 2:
        return False
    for d in range(2, math.isqrt(n) + 1):
        if n % d == 0:
            return False
    return True

def count_primes(n):
    return sum(1 for p in range(2, n + 1) if is_prime(p) and p % $base == $rest)
""",
            """def count_primes(n):
    sieve = [True] * (n + 1)
    sieve[0:2] = [False, False]
    i = 2
    while i * i <= n:
        if sieve[i]:
            for j in range(i * i, n + 1, i):
                sieve[j] = False
        i += 1
    return len([p for p, prime in enumerate(sieve) if prime and p % $base == $rest])
""",
            """def count_primes(n):
    primes = []
    for candidate in range(2, n + 1):
        if all(candidate % p for p in primes if p * p <= candidate):
            primes.append(candidate)
    return sum(p % $base == $rest for p in primes)
""",
        ),
        (("math.isqrt(n) + 1", "math.isqrt(n)"), ("i * i <= n", "i * i * i <= n"), ("p * p <= candidate", "p * p < candidate"),
         ("[True] * (n + 1)", "[True] * n"), ("== $rest", "!= $rest")),
        lambda random: {"base": random.randint(4, 12), "rest": random.choice((1, 3))},
    ),
    Family(
        "coin_ways",
        lambda random: [random.randint(5, 120)],
        lambda amount, first, second, third: _coin_ways(amount, [first, second, third]),
        (
            """def coin_ways(amount):
    dp = [0] * (amount + 1)
    dp[0] = 1
    for coin in [$first, $second, $third]:
        for value in range(coin, amount + 1):
            dp[value] += dp[value - coin]
    return dp[amount]
""",
            """from functools import lru_cache

def coin_ways(amount):
    coins = ($first, $second, $third)

    @lru_cache(maxsize=None)
    def count(index, left):
        if left == 0:
            return 1
        if left < 0 or index == len(coins):
            return 0
        return count(index + 1, left) + count(index, left - coins[index])

    return count(0, amount)
""",
        ),
        (("dp[0] = 1", "dp[0] = 0"), ("(amount + 1)\n    dp", "amount\n    dp"),
         ("count(index, left - ", "count(index + 1, left - "),
         ("if left < 0 or index", "if index"), ("range(coin, amount + 1)", "range(coin, amount)")),
        lambda random: dict(zip(("first", "second", "third"), random.sample(range(1, 16), 3), strict=True)),
    ),
    Family(
        "collatz_steps",
        lambda random: [random.randint(2, 5000)],
        lambda n, cap: _steps(n, cap),
        (
            """def collatz_steps(n):
    steps = 0
    while n != 1 and steps < $cap:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps
""",
            """import sys
sys.setrecursionlimit(10000)

def collatz_steps(n, steps=0):
    if n == 1 or steps == $cap:
        return steps
    if n & 1:
        return collatz_steps(3 * n + 1, steps + 1)
    return collatz_steps(n >> 1, steps + 1)
""",
        ),
        (("3 * n + 1", "3 * n - 1"), ("steps < $cap", "steps < $cap - 7"), ("steps += 1", "steps += n % 2"),
         ("n >> 1, steps + 1", "n >> 1")),
        lambda random: {"cap": random.randint(30, 90)},
    ),
    Family(
        "knapsack",
        lambda random: _items(random),
        lambda capacity, weights, values, spare: _best_value(capacity + spare, weights, values),
        (
            """def knapsack(capacity, weights, values):
    capacity += $spare
    dp = [0] * (capacity + 1)
    for w, v in zip(weights, values):
        for c in range(capacity, w - 1, -1):
            dp[c] = max(dp[c], dp[c - w] + v)
    return dp[capacity]
""",
            """from functools import cache

def knapsack(capacity, weights, values):
    @cache
    def best(i, room):
        if i == len(weights):
            return 0
        skip = best(i + 1, room)
        if weights[i] > room:
            return skip
        return max(skip, values[i] + best(i + 1, room - weights[i]))
    return best(0, capacity + $spare)
""",
        ),
        (("range(capacity, w - 1, -1)", "range(w, capacity + 1)"), ("+ v)", "+ w)"), ("weights[i] > room", "weights[i] >= room"),
         ("if i == len(weights)", "if i > len(weights)"), ("capacity += $spare", "capacity -= $spare")),
        lambda random: {"spare": random.randint(1, 30)},
    ),
    Family(
        "poly_value",
        lambda random: [random.randint(-50, 50)],
        lambda x, first, second, third, modulus: (first * x**3 + second * x + third) % modulus,
        (
            """def poly_value(x):
    result = 0
    for coefficient in [$first, 0, $second, $third]:
        result = result * x + coefficient
    return result % $modulus
""",
            """def poly_value(x):
    return ($first * x ** 3 + $second * x + $third) % $modulus
""",
            """import operator
from itertools import starmap

def poly_value(x):
    terms = [($first, x ** 3), ($second, x), ($third, 1)]
    return sum(starmap(operator.mul, terms)) % $modulus
""",
        ),
        ((", 0, ", ", "), ("x ** 3", "x ** 2"), ("% $modulus", "% $modulus - 1"), ("[$first, 0", "[$first, None")),
        lambda random: {name: random.randint(2, 999) for name in ("first", "second", "third", "modulus")},
    ),
)  # fmt: skip
