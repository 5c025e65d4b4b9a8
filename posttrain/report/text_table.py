"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Columns as wide as their widest cell, the first `num_left` of them aligned to the left and the others to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
