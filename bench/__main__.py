"""Runs the comparisons and prints their table.

Usage: python -m bench [--only NAME]
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from bench.measure import REPEATS, Row

COMPARISONS = ("verification", "tables", "generation", "weight_swap", "logprobs", "grpo_update")
BY_NAME_ONLY = ("verification_endurance", "verification_maths")


def main() -> None:
    """Parses the command line, runs each comparison once."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = (*COMPARISONS, *BY_NAME_ONLY)
    parser.add_argument("--only", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; the last two run by name only")
    only = parser.parse_args().only
    started, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    for name in [only] if only else COMPARISONS:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"bench.{name}").compare()
    if rows:
        print_table(rows)
    took_s = time.monotonic() - started
    print(
        f"\n{os.cpu_count()} cores, load {load:.1f} at the start; medians of {REPEATS}, alternating order; {took_s:.0f} s in all"
    )


def print_table(rows: list[Row]) -> None:
    """Markdown, as docs/performance.md shows it."""
    print("| ours vs peer | ours | peer | unit | times as fast (range) | limit |\n|---|---|---|---|---|---|")
    for row in rows:
        lowest, highest = row.ratio_range
        ratio = f"{row.ratio:.3g} ({lowest:.3g}–{highest:.3g})"
        print(f"| {row.name} | {number(row.ours)} | {number(row.peer)} | {row.unit} | {ratio} | {row.limit} |")


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
