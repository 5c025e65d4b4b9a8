"""The page of a run, of GRPO and of DPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from posttrain.report import charts
from posttrain.report.collapse import collapse_warning
from posttrain.report.curve import GREEDY, PAIR_ACCURACY, SAMPLED, Rate, describe_change, percent, rates, values_by_iteration
from posttrain.report.document import captioned, document, headline, section, warning, write_page
from posttrain.report.inputs import ReportInputs
from posttrain.report.preference_page import preference_section
from posttrain.report.samples import Row, choose, safe_html
from posttrain.report.timeline import describe_time, duration_text, timeline, wall_seconds
from posttrain.table_checks import UNJUDGED

_HEADLINES = (("sampled pass rate", SAMPLED), ("greedy pass rate", GREEDY), ("accuracy on held-out pairs", PAIR_ACCURACY))


def write_report(path: str | Path, inputs: ReportInputs) -> Path:
    """Writes the report, aside first and then renamed, and returns its path.

    Raises:
        ContractError: a table breaks its contract.
        OSError: the disk is full or not writable; an earlier report stays.
    """
    return write_page(path, render_report(inputs))


def render_report(inputs: ReportInputs) -> str:
    """The report as HTML, also the content of a Flyte Deck; the same text for the same inputs.

    Raises:
        ContractError: a table breaks its contract.
    """
    inputs.validate()
    preferences = preference_section(inputs)
    parts = [
        _collapse(inputs),
        _header(inputs),
        _learning(inputs, required=not preferences),
        preferences,
        _time(inputs),
        _training(inputs),
        _samples(inputs, required=not preferences),
        section("What this costs beside PPO and GRPO", inputs.plan_html) if inputs.plan_html else "",
        _settings(inputs),
    ]
    return document(inputs.title, parts)


def _collapse(inputs: ReportInputs) -> str:
    text = collapse_warning(inputs.metrics)
    return warning("Warning.", text) if text else ""


def _header(inputs: ReportInputs) -> str:
    curves = {label: curve for label, name in _HEADLINES if (curve := rates(inputs.metrics, name))}
    sentences = [describe_change(f"the {label}", curve) for label, curve in curves.items()]
    note = _confidence_note(inputs.settings.get("evaluation.confidence", "")) if sentences else ""
    time_line = describe_time(inputs.events)
    links = "".join(
        f"<dt>{safe_html(label)}</dt><dd><code>{safe_html(text)}</code></dd>" for label, text in inputs.links.items() if text
    )
    return (
        f"<header><h1>{safe_html(inputs.title)}</h1>"
        + headline("; ".join(sentences) or "no evaluation yet")
        + f'<p class="muted">{safe_html(note + (time_line[:1].upper() + time_line[1:] + "." if time_line else ""))}</p>'
        + _tiles(inputs, curves)
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


def _tiles(inputs: ReportInputs, curves: Mapping[str, list[Rate]]) -> str:
    tiles = [(label, _from_to([percent(rate.value) for rate in curve])) for label, curve in curves.items()]
    margins = values_by_iteration(inputs.metrics, "eval/reward_margin")
    if margins:
        tiles.append(("reward margin", _from_to([f"{value:.2f}" for value in margins.values()])))
    iterations = set(inputs.samples) | {row for row in inputs.metrics["iteration"].to_pylist() if row is not None}
    if iterations:
        tiles.append(("last iteration", str(max(iterations))))
    if any(scored.num_rows for scored in inputs.samples.values()):
        tiles.append(("completions judged", f"{sum(_num_judged(inputs, iteration) for iteration in inputs.samples):,}"))
    if inputs.num_pairs:
        tiles.append(("pairs trained on", f"{inputs.num_pairs:,}"))
    if inputs.events.num_rows:
        tiles.append(("wall time", duration_text(wall_seconds(inputs.events))))
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for label, value in tiles)
    return f'<div class="tiles">{shown}</div>' if tiles else ""


def _from_to(values: Sequence[str]) -> str:
    return f"{values[0]} → {values[-1]}" if len(values) > 1 else values[0]


def _num_judged(inputs: ReportInputs, iteration: int) -> int:
    outcomes = inputs.samples[iteration]["outcome"].to_pylist()
    return sum(outcome not in UNJUDGED for outcome in outcomes)


def _learning(inputs: ReportInputs, required: bool) -> str:
    figures = [
        captioned("Held-out pass rate", "The band is the confidence interval.", charts.learning_curve(inputs.metrics)),
        captioned("Outcomes", "Of all sampled completions.", charts.outcome_shares(inputs.samples)),
        captioned("Rewards", "Darker where more completions lie.", charts.reward_distribution(inputs.samples)),
        captioned("Completion length", "Dashed lines are medians.", charts.completion_lengths(inputs.samples)),
    ]
    content = f'<div class="figures">{"".join(figures)}</div>' if any(figures) else ""
    return section("What was learned", content) if content or required else ""


def _time(inputs: ReportInputs) -> str:
    figure = timeline(inputs.events)
    return section("Where the time went", f'<div class="wide">{figure}</div>' if figure else "")


def _training(inputs: ReportInputs) -> str:
    figures = "".join(captioned(name, "", figure) for name, figure in charts.train_metrics(inputs.metrics))
    return section("Training", f'<div class="figures small">{figures}</div>' if figures else "")


def _samples(inputs: ReportInputs, required: bool) -> str:
    prompts = inputs.prompt_texts()
    groups = "".join(
        f'<h3>{escape(heading)}</h3><div class="cards">{"".join(_sample(row, prompts) for row in rows)}</div>'
        for heading, rows in choose(inputs.samples)
        if rows
    )
    return section("Samples", groups) if groups or required else ""


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
    return section("Settings", table if rows else "")
