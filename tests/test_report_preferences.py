"""The report of a run that learns from pairs: its figures, its pairs, and collapse that cannot be overlooked."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.evaluation import wilson_interval
from posttrain.planner.algorithms import compare_algorithms
from posttrain.planner.model import ModelShape
from posttrain.planner.rendering import plan_html
from posttrain.report import PairSample, ReportInputs, ascii_curve, collapse_warning, render_report
from posttrain.report.timeline import describe_time, timeline, wall_seconds

DRIFT = [0.0, 0.5, -0.4, -1.1, -5.1, -9.6, -14.2]
MARGIN = [0.0, 0.9, 2.1, 3.2, 4.2, 5.4, 6.3]
RATES = [0.27, 0.88, 0.95, 0.97, 0.9, 0.75, 0.61]
STEPS = 5  # in an iteration


def metrics_table(rows: list[tuple[int, int | None, str, float]]) -> pa.Table:
    return tables.from_rows("METRICS", [dict(zip(("iteration", "step", "name", "value"), row, strict=True)) for row in rows])


def with_interval(iteration: int, name: str, share: float, total: int) -> list[tuple[int, int | None, str, float]]:
    low, high = wilson_interval(round(share * total), total, 0.95)
    return [(iteration, None, name + end, value) for end, value in (("", share), ("_low", low), ("_high", high))]


def dpo_metrics(
    rates: list[float] | None = None, drift: list[float] = DRIFT, margin: list[float] = MARGIN, held_out: bool = True
) -> pa.Table:
    rows: list[tuple[int, int | None, str, float]] = []
    for iteration, (chosen, gap) in enumerate(zip(drift, margin, strict=True)):
        values = {"chosen_logprob_drift": chosen, "rejected_logprob_drift": chosen - 10 * gap, "reward_margin": gap}
        if rates is not None:
            rows += with_interval(iteration, "eval/pass_at_1", rates[iteration], 400)
            rows += with_interval(iteration, "eval/greedy_pass_rate", rates[iteration], 100)
        if held_out:
            rows += with_interval(iteration, "eval/pair_accuracy", min(0.99, 0.5 + 0.1 * iteration), 70)
            rows += [(iteration, None, f"eval/{name}", value) for name, value in values.items()]
        for step in range((iteration - 1) * STEPS, iteration * STEPS) if iteration else ():
            rewards = {"chosen_reward": 0.1 * chosen, "rejected_reward": 0.1 * chosen - gap, "pair_accuracy": 0.9, "loss": 0.1}
            rows += [(iteration, step, f"train/{name}", value) for name, value in (values | rewards).items()]
    return metrics_table(rows)


def shown(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page[page.index("<body>") :]).replace("&nbsp;", " "))


def labels(page: str) -> list[str]:
    return re.findall(r'aria-label="(.*?)"', page)


def test_a_fallen_pass_rate_is_a_collapse_with_its_numbers_and_a_remedy() -> None:
    text = collapse_warning(dpo_metrics(RATES))
    assert text == (
        "The policy has collapsed: the sampled pass rate fell from its best, 97 % (95–98) at iteration 3, to 61 % (56–66) at "
        "iteration 6. Chosen answers went from −1.1 to −14.2 nats against the reference while the margin rose from 3.20 to 6.30. "
        "Take the checkpoint of iteration 3. In a new run set nll_coef above 0, raise beta, or train fewer steps."
    )


def test_a_fall_within_the_intervals_is_no_collapse_whatever_the_drift() -> None:
    assert collapse_warning(dpo_metrics([0.27, 0.88, 0.95, 0.97, 0.96, 0.95, 0.95])) is None


def test_the_greedy_pass_rate_can_collapse_alone() -> None:
    metrics = tables.concat(
        "METRICS",
        [
            dpo_metrics(),
            metrics_table(
                [row for k, rate in enumerate((0.95, 0.5)) for row in with_interval(k, "eval/greedy_pass_rate", rate, 100)]
            ),
        ],
    )
    text = collapse_warning(metrics)
    assert text is not None
    assert "the greedy pass rate fell from its best, 95 % (89–98) at iteration 0, to 50 % (40–60) at iteration 1" in text


@pytest.mark.parametrize("held_out", [True, False])
def test_without_generation_sinking_chosen_answers_are_the_sign(held_out: bool) -> None:
    text = collapse_warning(dpo_metrics(held_out=held_out))
    assert text is not None
    assert "chosen answers sink, −14.2 nats against the reference at iteration 6, +0.5 at iteration 1" in text
    assert "the margin rose from 0.90 to 6.30" in text
    assert "The last checkpoint before that is the one of iteration 3." in text
    assert "evaluation_prompts" in text
    assert "nll_coef" in text


@pytest.mark.parametrize(
    ("drift", "margin"),
    [
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]),  # chosen answers rise
        ([0.0, -2.0, -4.9], [0.0, 1.0, 2.0]),  # a little drift is the price of a margin
        ([0.0, -8.0, -9.0], [0.0, -1.0, -2.0]),  # sinks without a margin: another fault, which the loss shows
    ],
)
def test_what_is_no_sign_of_collapse_gives_no_warning(drift: list[float], margin: list[float]) -> None:
    assert collapse_warning(dpo_metrics(drift=drift, margin=margin)) is None


def test_every_checkpoint_may_have_sunk() -> None:
    text = collapse_warning(dpo_metrics(drift=[0.0, -8.0, -12.0], margin=[0.0, 1.0, 2.0]))
    assert text is not None
    assert "Every checkpoint has sunk." in text


def test_runs_that_learn_from_no_pairs_get_no_such_warning() -> None:
    fallen = [row for k, rate in enumerate((0.95, 0.5)) for row in with_interval(k, "eval/pass_at_1", rate, 400)]
    metrics = metrics_table([*fallen, (1, 1, "train/loss", 0.1)])
    assert collapse_warning(metrics) is None
    assert "Warning." not in shown(render_report(ReportInputs("GRPO", metrics=metrics)))
    assert "<h2>Preferences</h2>" not in render_report(ReportInputs("GRPO", metrics=metrics))


def test_the_page_of_a_collapsed_run_leads_with_the_warning() -> None:
    text = shown(render_report(ReportInputs("DPO run", metrics=dpo_metrics(RATES), num_pairs=355)))
    assert text.index("Warning. The policy has collapsed") < text.index("The sampled pass rate rose from 27 %")
    assert "the accuracy on held-out pairs rose from 50 % (39–61) to 99 % (92–100)." in text
    for tile in ("27 % → 61 %sampled pass rate", "50 % → 99 %accuracy on held-out pairs", "0.00 → 6.30reward margin",
                 "355pairs trained on"):  # fmt: skip
        assert tile in text


def test_the_figures_of_pairs_have_a_section_of_their_own() -> None:
    page = render_report(ReportInputs("DPO run", metrics=dpo_metrics(RATES)))
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "What was learned", "Preferences", "Where the time went", "Training", "Settings",
    ]  # fmt: skip
    assert labels(page) == [
        "held-out pass rate by iteration", "logprob drift of chosen and rejected answers by step", "reward margin by step",
        "pair accuracy by step", "rewards of chosen and rejected answers by step", "train/loss by step",
    ]  # fmt: skip
    drift = page[page.index("logprob drift of chosen") : page.index("reward margin by step")]
    assert "best pass rate" in drift
    assert re.findall(r">(\d+)</text>", drift)[:7] == ["0", "5", "10", "15", "20", "25", "30"]  # 6 × 5 steps


def test_without_training_steps_the_figures_are_by_iteration() -> None:
    rows = [row for k in (0, 1) for row in with_interval(k, "eval/pair_accuracy", 0.5 + 0.4 * k, 70)]
    page = render_report(ReportInputs("DPO run", metrics=metrics_table(rows)))
    assert labels(page) == ["pair accuracy by iteration"]
    assert "<h2>What was learned</h2>" not in page


def test_pairs_and_plan_are_shown_and_hostile_text_is_not_obeyed() -> None:
    hostile = "</pre><script>alert(1)</script>\u202e"
    pairs = [
        PairSample("add 9:", "x + 9", hostile, "p<b>1", 1.0, chosen_logprob_drift=-14.2, rejected_logprob_drift=0.3),
        PairSample("", "", "b"),
    ]
    plan = plan_html(compare_algorithms(ModelShape(107_000, 3, 4, 16), 355, 35, 20))
    page = render_report(ReportInputs("DPO run", metrics=dpo_metrics(), pairs=pairs, plan_html=plan))
    assert "<script" not in page
    assert "\u202e" not in page
    assert "p&lt;b&gt;1" in page
    text = shown(page)
    assert "chosen −14.2 nats against the reference" in text
    assert "rejected +0.3 nats against the reference" in text
    assert "judged better by 1" in text
    assert "<em>empty</em>" in page
    assert "What this costs beside PPO and GRPO" in page
    assert "exploration; reference, tokenizer and truncation are fixed before training" in text
    assert "<h2>Samples</h2>" not in page


def test_the_terminal_shows_pair_accuracy_where_nothing_was_generated() -> None:
    lines = ascii_curve(dpo_metrics()).splitlines()
    assert " ".join(lines[0].split()) == "iteration accuracy on held-out pairs rate interval margin chosen (nats)"
    assert lines[1] == "        0  [###############=====|====...............]    50 %  39 to 61 %       0.00           +0.0"
    assert lines[-1].endswith("99 %  92 to 100 %      6.30          -14.2")
    assert ascii_curve(dpo_metrics(RATES)).splitlines()[0].split()[1:4] == ["held-out", "pass", "rate,"]


def event(start_s: float, length_s: float) -> dict[str, Any]:
    started = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=start_s)
    return {
        "execution": "e", "iteration": 0, "pool": "train", "device": "cpu 0", "phase": "update", "tokens": 0, "shard": None,
        "started_at": started, "finished_at": started + timedelta(seconds=length_s),
    }  # fmt: skip


def test_a_resumed_run_does_not_count_its_pauses() -> None:
    # 0–40 s with a gap too short to be a pause, 2 h, 10 s, 1 h, 20 s
    events = tables.from_rows("EVENTS", [event(0, 10), event(30, 10), event(7240, 10), event(10850, 20), event(10852, 1)])
    assert wall_seconds(events) == 70
    assert describe_time(events).startswith("1 min 10 s from first to last, without 2 pauses of 3 h 0 min (dashed below); busy")
    assert timeline(events).count("stroke-dasharray") == 2
    whole = tables.from_rows("EVENTS", [event(0, 10), event(30, 10)])
    assert describe_time(whole).startswith("40 s from first to last; busy time")


def test_a_value_without_a_step_is_drawn_by_iteration() -> None:
    rows = [(k, None, "train/importance_ratio_max", 1.0) for k in range(3)] + [(k, k, "train/loss", 1.0) for k in range(3)]
    assert labels(render_report(ReportInputs("run", metrics=metrics_table(rows)))) == [
        "train/loss by step", "train/importance_ratio_max by iteration",
    ]  # fmt: skip
