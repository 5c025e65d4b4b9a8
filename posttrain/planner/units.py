"""Quantities as a person reads them, from a toy model to a large one."""

from __future__ import annotations

_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e9, " billion"), (1e6, " million"))


def bytes_text(value: float) -> str:
    """Decimal units: 1,246 GB, 16.4 GB, 3.8 MB."""
    scale, unit = next(((scale, unit) for scale, unit in _BYTES if value >= scale), (1.0, "bytes"))
    return f"{_short(value / scale)} {unit}"


def count_text(value: float) -> str:
    """8.19 billion, 2.4 million, 60,000."""
    scale, word = next(((scale, word) for scale, word in _COUNTS if value >= scale), (1.0, ""))
    return f"{value / scale:.3g}{word}" if word else f"{value:,.0f}"


def gpu_time_text(seconds: float) -> str:
    """GPU-hours from a tenth of an hour on, GPU-seconds below."""
    return f"{_short(seconds / 3600)} GPU-h" if seconds >= 360 else f"{_short(seconds)} GPU-s"


def _short(value: float) -> str:
    """Two digits at least and no exponent: 1,246; 16.4; 6.4; 0.085."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 1 or value == 0:
        return f"{value:.1f}"
    return f"{value:.2g}" if value >= 1e-4 else "<0.0001"
