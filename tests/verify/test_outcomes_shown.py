"""The report tells who abstained from who was wrong."""

from __future__ import annotations

from posttrain.report import charts, samples, style
from posttrain.table_checks import OUTCOMES
from tests.learner.scored_tables import scored_row, scored_table


def test_every_outcome_has_a_place_in_the_chart_and_a_colour_in_both_looks() -> None:
    rows = [
        scored_row("p", index, reward=None if outcome in ("error", "abstain") else 0.0, advantage=None, outcome=outcome)
        for index, outcome in enumerate(OUTCOMES)
    ]
    drawn = charts.outcome_shares({1: scored_table(rows)})
    for outcome in OUTCOMES:
        assert f">{outcome}<" in drawn and f"var(--{outcome})" in drawn
        assert style.STYLE.count(f"--{outcome}: #") == 2


def test_who_abstained_is_shown_among_the_not_judged() -> None:
    rows = [scored_row("p", index, advantage=None, outcome=outcome) for index, outcome in enumerate(["error", "abstain"])]
    headings = dict(samples.choose({1: scored_table(rows)}))
    assert sorted(row["outcome"] for row in headings["Not judged"]) == ["abstain", "error"]
