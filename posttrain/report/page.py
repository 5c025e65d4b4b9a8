"""The page: one HTML file without scripts, without anything from elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from posttrain.report import charts
from posttrain.report.curve import GREEDY, SAMPLED, Rate, describe_change, percent, rates
from posttrain.report.inputs import ReportInputs
from posttrain.report.samples import Row, choose, safe_html
from posttrain.report.style import STYLE
from posttrain.report.timeline import describe_time, duration_text, timeline, wall_seconds

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser loads and runs nothing, whatever the text holds


def write_report(path: str | Path, inputs: ReportInputs) -> Path:
    """Writes the report, aside first and then renamed, and returns its path.

    Raises:
        ContractError: a table breaks its contract.
        OSError: the disk is full or not writable; an earlier report stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(render_report(inputs), encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def render_report(inputs: ReportInputs) -> str:
    """The report as HTML, also the content of a Flyte Deck; the same text for the same inputs.

    Raises:
        ContractError: a table breaks its contract.
    """
    inputs.validate()
    sections = [_header(inputs), _learning(inputs), _time(inputs), _training(inputs), _samples(inputs), _settings(inputs)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{safe_html(inputs.title)}</title>\n<style>\n{STYLE}</style></head>\n"
        f'<body><main class="report">\n{"".join(sections)}</main></body></html>\n'
    )


def _header(inputs: ReportInputs) -> str:
    sampled, greedy = rates(inputs.metrics, SAMPLED), rates(inputs.metrics, GREEDY)
    sentences = [
        describe_change(f"the {name} pass rate", curve) for name, curve in (("sampled", sampled), ("greedy", greedy)) if curve
    ]
    headline = escape("; ".join(sentences) or "no evaluation yet")
    headline = re.sub(r"\([^)]*\)", r"<span>\g<0></span>", headline[0].upper() + headline[1:]).replace(" %", "&nbsp;%")
    note = _confidence_note(inputs.settings.get("evaluation.confidence", "")) if sentences else ""
    time_line = describe_time(inputs.events)
    links = "".join(
        f"<dt>{safe_html(label)}</dt><dd><code>{safe_html(text)}</code></dd>" for label, text in inputs.links.items() if text
    )
    return (
        f"<header><h1>{safe_html(inputs.title)}</h1>"
        f'<p class="headline">{headline}.</p>'
        + f'<p class="muted">{safe_html(note + (time_line[:1].upper() + time_line[1:] + "." if time_line else ""))}</p>'
        + _tiles(inputs, sampled, greedy)
        + (f'<dl class="links">{links}</dl>' if links else "")
        + "</header>\n"
    )


def _confidence_note(confidence: str) -> str:
    """Nothing when the setting is no share: it is shown as it is among the settings."""
    try:
        share = float(confidence)
    except ValueError:
        return ""
    return f"In brackets the {percent(share)} interval. " if 0 < share < 1 else ""


def _tiles(inputs: ReportInputs, sampled: list[Rate], greedy: list[Rate]) -> str:
    tiles: list[tuple[str, str]] = []
    for label, curve in (("sampled pass rate", sampled), ("greedy pass rate", greedy)):
        if curve:
            before = f"{percent(curve[0].value)} → " if len(curve) > 1 else ""
            tiles.append((label, before + percent(curve[-1].value)))
    iterations = set(inputs.samples) | {row for row in inputs.metrics["iteration"].to_pylist() if row is not None}
    if iterations:
        tiles.append(("last iteration", str(max(iterations))))
    if any(scored.num_rows for scored in inputs.samples.values()):
        tiles.append(("completions judged", f"{sum(_num_judged(inputs, iteration) for iteration in inputs.samples):,}"))
    if inputs.events.num_rows:
        tiles.append(("wall time", duration_text(wall_seconds(inputs.events))))
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for label, value in tiles)
    return f'<div class="tiles">{shown}</div>' if tiles else ""


def _num_judged(inputs: ReportInputs, iteration: int) -> int:
    outcomes = inputs.samples[iteration]["outcome"].to_pylist()
    return len(outcomes) - outcomes.count("error")


def _learning(inputs: ReportInputs) -> str:
    figures = [
        _figure("Held-out pass rate", "The band is the confidence interval.", charts.learning_curve(inputs.metrics)),
        _figure("Outcomes", "Of all sampled completions.", charts.outcome_shares(inputs.samples)),
        _figure("Rewards", "Darker where more completions lie.", charts.reward_distribution(inputs.samples)),
        _figure("Completion length", "Dashed lines are medians.", charts.completion_lengths(inputs.samples)),
    ]
    return _section("What was learned", f'<div class="figures">{"".join(figures)}</div>' if any(figures) else "")


def _time(inputs: ReportInputs) -> str:
    figure = timeline(inputs.events)
    return _section("Where the time went", f'<div class="wide">{figure}</div>' if figure else "")


def _training(inputs: ReportInputs) -> str:
    figures = "".join(_figure(name, "", figure) for name, figure in charts.train_metrics(inputs.metrics))
    return _section("Training", f'<div class="figures small">{figures}</div>' if figures else "")


def _samples(inputs: ReportInputs) -> str:
    prompts = inputs.prompt_texts()
    groups = "".join(
        f'<h3>{escape(heading)}</h3><div class="cards">{"".join(_sample(row, prompts) for row in rows)}</div>'
        for heading, rows in choose(inputs.samples)
        if rows
    )
    return _section("Samples", groups)


def _sample(row: Row, prompts: Mapping[str, str]) -> str:
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.3g}"
    advantage = "" if row["advantage"] is None else f" · advantage {row['advantage']:+.3g}"
    place = f"iteration {row['iteration']} · {row['prompt_id']} · sample {row['sample_index']}"
    facts = f"{reward}{advantage} · {row['num_tokens']:,} tokens · {row['finish_reason']}"
    detail = f'<p class="muted">{safe_html(row["detail"])}</p>' if row["detail"] else ""
    prompt = prompts.get(row["prompt_id"])
    asked = f'<pre class="prompt">{safe_html(prompt)}</pre>' if prompt is not None else ""
    return (
        f'<article><div class="facts"><span class="outcome {escape(row["outcome"])}">{escape(row["outcome"])}</span> '
        f"<span>{escape(facts)}</span> <span>{safe_html(place)}</span></div>"
        f"{asked}<pre>{safe_html(row['completion']) or '<em>empty</em>'}</pre>{detail}</article>"
    )


def _settings(inputs: ReportInputs) -> str:
    rows = "".join(
        f"<tr><th>{safe_html(name)}</th><td>{safe_html(value)}</td></tr>" for name, value in sorted(inputs.settings.items())
    )
    table = f"<details><summary>{len(inputs.settings)} settings</summary><table>{rows}</table></details>"
    return _section("Settings", table if rows else "")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content or '<p class=muted>Nothing recorded yet.</p>'}</section>\n"


def _figure(title: str, note: str, figure: str) -> str:
    if not figure:
        return ""
    caption = f"<b>{safe_html(title)}</b>" + (f" <span>{escape(note)}</span>" if note else "")
    return f"<figure><figcaption>{caption}</figcaption>{figure}</figure>"
