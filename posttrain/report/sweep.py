"""The trials of a sweep in one table and one figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from posttrain import tables
from posttrain.report.collapse import collapse_warning, nats
from posttrain.report.curve import GREEDY, PAIR_ACCURACY, SAMPLED, Rate, rates, values_by_iteration
from posttrain.report.document import captioned, document, headline, section, warning, write_page
from posttrain.report.samples import safe_html
from posttrain.report.sweep_chart import trial_curves
from posttrain.report.text_table import aligned
from posttrain.report.timeline import duration_text

BEST, AS_GOOD, COLLAPSED = "best", "as good", "collapsed"


@dataclass(frozen=True)
class Trial:
    """One trial: its flat settings (`resolution.flatten`), its METRICS, and the seconds of its update."""

    name: str
    settings: Mapping[str, str]
    metrics: pa.Table
    seconds: float


def sweep_text(trials: Sequence[Trial]) -> str:
    """One line for each trial, as they come, for the log.

    The best trial has the highest last pass rate, or pair accuracy where some trial has no pass rate; `as good` are those whose
    interval reaches the best trial's.
    """
    headings, rows = _table(trials)
    return "\n".join([aligned(headings, rows, num_left=2), *(f"{name}: {text}" for name, text in _warnings(trials))])


def write_sweep(
    path: str | Path,
    trials: Sequence[Trial],
    *,
    title: str = "DPO sweep",
    notes: str = "",
    plan_html: str = "",
    settings: Mapping[str, str] | None = None,
) -> Path:
    """Writes the comparison as one self-contained HTML page and returns its path.

    Args:
        notes: a sentence for the head, such as how often the reference was computed.
        plan_html: trusted HTML of `posttrain.planner`.
        settings: of the sweep; those that trials differ in are left out.

    Raises:
        ContractError: a table breaks its contract.
        OSError: the disk is full or not writable; an earlier page stays.
    """
    for trial in trials:
        tables.validate(trial.metrics, "METRICS")
    differing = _differing_settings(trials)
    shared = {name: value for name, value in (settings or {}).items() if name not in differing}
    parts = [
        _header(trials, title, notes),
        section("Trials", _html_table(trials) if trials else ""),
        section("Curves", captioned(_measure_title(trials), "The band is the confidence interval.", _figure(trials))),
        "".join(warning(f"{name}.", text) for name, text in _warnings(trials)),
        section("What a trial costs beside PPO and GRPO", plan_html) if plan_html else "",
        section("Settings of all trials", _settings_html(shared)) if shared else "",
    ]
    return write_page(path, document(title, parts))


def _table(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    differing = _differing_settings(trials)
    columns = [name for name, text_of in _MEASURES.items() if any(text_of(trial) != "-" for trial in trials)]
    headings = ["", "trial", *(name.rpartition(".")[2] for name in differing), *columns, "update"]
    marks = _marks(trials)
    rows = [
        [
            marks[number],
            trial.name,
            *(trial.settings.get(name, "-") for name in differing),
            *(_MEASURES[name](trial) for name in columns),
            duration_text(trial.seconds),
        ]
        for number, trial in enumerate(trials)
    ]
    return headings, rows


def _last(name: str, trial: Trial) -> str:
    curve = rates(trial.metrics, name)
    return str(curve[-1]) if curve else "-"


def _best(name: str, trial: Trial) -> str:
    curve = rates(trial.metrics, name)
    if not curve:
        return "-"
    best = max(curve, key=lambda rate: rate.value)
    return f"{best} at {best.iteration}"


def _last_value(name: str, trial: Trial) -> float | None:
    values = values_by_iteration(trial.metrics, name)
    return values[max(values)] if values else None


def _margin(trial: Trial) -> str:
    value = _last_value("eval/reward_margin", trial)
    return "-" if value is None else f"{value:.2f}"


def _drift(trial: Trial) -> str:
    value = _last_value("eval/chosen_logprob_drift", trial)
    return "-" if value is None else nats(value)


_MEASURES: dict[str, Callable[[Trial], str]] = {
    "sampled": lambda trial: _last(SAMPLED, trial),
    "best sampled": lambda trial: _best(SAMPLED, trial),
    "greedy": lambda trial: _last(GREEDY, trial),
    "pair accuracy": lambda trial: _last(PAIR_ACCURACY, trial),
    "best accuracy": lambda trial: _best(PAIR_ACCURACY, trial),
    "margin": _margin,
    "chosen, nats": _drift,
}


def measure(trials: Sequence[Trial]) -> str:
    """The METRICS name that trials are compared by."""
    return SAMPLED if trials and all(rates(trial.metrics, SAMPLED) for trial in trials) else PAIR_ACCURACY


def _marks(trials: Sequence[Trial]) -> list[str]:
    """`best` once, `as good` within its interval, and `collapsed`, which outdoes both."""
    name = measure(trials)
    last: dict[int, Rate] = {number: curve[-1] for number, trial in enumerate(trials) if (curve := rates(trial.metrics, name))}
    best = max(last, key=lambda number: last[number].value, default=None)
    marks: list[str] = []
    for number, trial in enumerate(trials):
        if collapse_warning(trial.metrics):
            marks.append(COLLAPSED if number != best else f"{BEST}, {COLLAPSED}")
        elif number == best:
            marks.append(BEST)
        else:
            close = best is not None and number in last and last[number].high >= last[best].low
            marks.append(AS_GOOD if close else "")
    return marks


def _warnings(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    return [(trial.name, text) for trial in trials if (text := collapse_warning(trial.metrics))]


def _differing_settings(trials: Sequence[Trial]) -> list[str]:
    """Names whose values differ, without those that only name the run."""
    names = {name: None for trial in trials for name in trial.settings if not name.startswith("tracking.")}
    return [name for name in names if len({trial.settings.get(name) for trial in trials}) > 1]


def _header(trials: Sequence[Trial], title: str, notes: str) -> str:
    marks = _marks(trials)
    best = next((trial for trial, mark in zip(trials, marks, strict=True) if mark.startswith(BEST)), None)
    name = "sampled pass rate" if measure(trials) == SAMPLED else "accuracy on held-out pairs"
    sentence = (
        f"best of {len(trials)} trials: {best.name}, {name} {_last(measure(trials), best)}" if best else "no evaluation yet"
    )
    others = marks.count(AS_GOOD)
    if others:
        sentence += f"; {others} other{'s are' if others > 1 else ' is'} within the interval"
    collapsed = sum(COLLAPSED in mark for mark in marks)
    collapse = f"{collapsed} of them collapsed: see below the curves. " if collapsed else ""
    return f'<header><h1>{safe_html(title)}</h1>{headline(sentence)}<p class="muted">{safe_html(collapse + notes)}</p></header>\n'


def _html_table(trials: Sequence[Trial]) -> str:
    headings, rows = _table(trials)
    head = "".join(f"<th>{safe_html(heading)}</th>" for heading in headings)
    body = "".join(
        f'<tr class="{"best" if row[0].startswith(BEST) else "collapsed" if COLLAPSED in row[0] else ""}">'
        + "".join(f"<td>{safe_html(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table class="comparison trials"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _measure_title(trials: Sequence[Trial]) -> str:
    return "Held-out pass rate, sampled" if measure(trials) == SAMPLED else "Accuracy on held-out pairs"


def _figure(trials: Sequence[Trial]) -> str:
    return trial_curves({trial.name: trial.metrics for trial in trials}, measure(trials))


def _settings_html(settings: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{safe_html(name)}</th><td>{safe_html(value)}</td></tr>" for name, value in sorted(settings.items()))
    return f"<details><summary>{len(settings)} settings</summary><table>{rows}</table></details>"
