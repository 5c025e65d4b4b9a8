"""SVG by matplotlib without a display, with colours that follow the page's light or dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib draws with these stand-ins; in the SVG each becomes a CSS variable of the page, so one drawing fits both themes
COLOURS = {
    "ink": "#010101",
    "muted": "#010102",
    "grid": "#010103",
    "accent": "#010104",
    "second": "#010105",
    "third": "#010106",
    "fourth": "#010107",
    "fifth": "#010108",
    "sixth": "#010109",
    "pass": "#01010a",
    "fail": "#01010b",
    "timeout": "#01010c",
    "unparseable": "#01010d",
    "error": "#01010e",
    "abstain": "#01010f",
}
SERIES = ("accent", "second", "third", "fourth", "fifth", "sixth")

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same layout on every machine
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["muted"],
}


def draw(name: str, width: int, height: int, description: str, plot: Callable[[Axes], None]) -> str:
    """One figure as an `<svg>` element of `width` × `height` CSS pixels, the same text for the same data.

    `name` makes its ids differ from those of other figures on the page; `description` is for screen readers.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None})
    return _inline(sink.getvalue(), name, width, height, description)


def _inline(document: str, name: str, width: int, height: int, description: str) -> str:
    body = document[document.index(">", document.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r" font-family: [^;\"]*;", "", body)  # the page's font
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", body, flags=re.DOTALL)  # it would style the whole page
    for colour, stand_in in COLOURS.items():
        body = body.replace(stand_in, f"var(--{colour})")
    opening = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}" style="--width:{width}px">'
    return opening + re.sub(r"\n\s*", "\n", body).strip()
