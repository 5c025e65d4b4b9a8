"""The frame of every page: one HTML file without scripts, without anything from elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from posttrain.report.samples import safe_html
from posttrain.report.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser loads and runs nothing, whatever the text holds


def document(title: str, sections: Sequence[str]) -> str:
    """A whole page; `sections` are HTML that holds no untrusted text unescaped."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{safe_html(title)}</title>\n<style>\n{STYLE}</style></head>\n"
        f'<body><main class="report">\n{"".join(sections)}</main></body></html>\n'
    )


def headline(text: str) -> str:
    """The sentence that the page leads with; brackets are set smaller and stay whole."""
    shown = re.sub(r"\([^)]*\)", r"<span>\g<0></span>", safe_html(text[0].upper() + text[1:])).replace(" %", "&nbsp;%")
    return f'<p class="headline">{shown}.</p>'


def section(title: str, content: str) -> str:
    """A heading and its content, or the remark that there is none yet."""
    return f"<section><h2>{escape(title)}</h2>{content or '<p class=muted>Nothing recorded yet.</p>'}</section>\n"


def captioned(title: str, note: str, figure: str) -> str:
    """A figure with its caption; nothing when there is nothing drawn."""
    if not figure:
        return ""
    caption = f"<b>{safe_html(title)}</b>" + (f" <span>{escape(note)}</span>" if note else "")
    return f"<figure><figcaption>{caption}</figcaption>{figure}</figure>"


def warning(title: str, text: str) -> str:
    """A box that cannot be overlooked."""
    return f'<aside class="warning"><b>{escape(title)}</b> {safe_html(text)}</aside>\n'


def write_page(path: str | Path, page: str) -> Path:
    """Writes a page aside and then renames it; returns its path.

    Raises:
        OSError: the disk is full or not writable; an earlier page stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path
