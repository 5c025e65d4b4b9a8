"""The section of a run that learns from pairs: how far the policy drifted, and pairs worth reading."""

from __future__ import annotations

from html import escape

from posttrain.report import preference_charts as charts
from posttrain.report.collapse import nats
from posttrain.report.document import captioned, section
from posttrain.report.inputs import PairSample, ReportInputs
from posttrain.report.samples import safe_html

MAX_PAIRS = 9


def preference_section(inputs: ReportInputs) -> str:
    """Figures and pairs; nothing for a run without any."""
    drift_note = "Policy less reference, in nats. Chosen answers should stay near 0 or rise; sinking ones come before a collapse."
    figures = [
        captioned("Logprob drift", drift_note, charts.logprob_drift(inputs.metrics)),
        captioned("Reward margin", "How much more the chosen side gained, times beta.", charts.reward_margin(inputs.metrics)),
        captioned("Pair accuracy", "Pairs with a positive margin.", charts.pair_accuracy(inputs.metrics)),
        captioned("Implicit rewards", "Drift times beta, in training.", charts.implicit_rewards(inputs.metrics)),
    ]
    legend = '<p class="muted">Dots are held-out pairs, thin lines the pairs in training.</p>'
    content = f'{legend}<div class="figures">{"".join(figures)}</div>' if any(figures) else ""
    cards = "".join(_card(pair) for pair in inputs.pairs[:MAX_PAIRS])
    if cards:
        content += f'<h3>Pairs</h3><div class="cards">{cards}</div>'
    return section("Preferences", content) if content else ""


def _card(pair: PairSample) -> str:
    margin = "" if pair.margin is None else f"judged better by {pair.margin:.3g}"
    facts = "".join(f"<span>{safe_html(fact)}</span> " for fact in (margin, pair.pair_id) if fact)
    asked = f'<pre class="prompt">{safe_html(pair.prompt)}</pre>' if pair.prompt else ""
    chosen = _answer("pass", "chosen", pair.chosen, pair.chosen_logprob_drift)
    rejected = _answer("fail", "rejected", pair.rejected, pair.rejected_logprob_drift)
    return f'<article><div class="facts">{facts}</div>{asked}{chosen}{rejected}</article>'


def _answer(colour: str, label: str, text: str, drift: float | None) -> str:
    shown = "" if drift is None else f"<span>{escape(nats(drift))} nats against the reference</span>"
    return (
        f'<div class="facts answer"><span class="outcome {colour}">{label}</span> {shown}</div>'
        f"<pre>{safe_html(text) or '<em>empty</em>'}</pre>"
    )
