"""The trials of a sweep beside each other, and runs at equal completions spent."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ContractError
from posttrain.report.comparison import Point, Run, compare_runs_text, run_of
from posttrain.report.sweep import Trial, sweep_text, write_sweep

Row = tuple[int, int | None, str, float]


def metrics_table(rows: list[Row]) -> pa.Table:
    return tables.from_rows("METRICS", [dict(zip(("iteration", "step", "name", "value"), row, strict=True)) for row in rows])


def rate(iteration: int, name: str, value: float, half: float) -> list[Row]:
    return [(iteration, None, name + end, value + by) for end, by in (("", 0), ("_low", -half), ("_high", half))]


def trial(name: str, accuracies: list[float], *, pass_rates: list[float] | None = None, **settings: str) -> Trial:
    rows: list[Row] = []
    for k, accuracy in enumerate(accuracies):
        rows += rate(k, "eval/pair_accuracy", accuracy, 0.02)
        rows += [(k, None, "eval/reward_margin", float(k)), (k, None, "eval/chosen_logprob_drift", -0.5 * k)]
        if pass_rates is not None:
            rows += rate(k, "eval/pass_at_1", pass_rates[k], 0.03)
    flat = {f"learner.{key}": value for key, value in settings.items()}
    return Trial(name, {**flat, "data.model": "m", "tracking.run_name": name}, metrics_table(rows), 31.4)


THREE = [
    trial("a", [0.5, 0.8], beta="0.1", loss_type="sigmoid"),
    trial("b", [0.5, 0.93], beta="0.5", loss_type="sigmoid"),
    trial("c", [0.5, 0.9], beta="1.0", loss_type="sigmoid"),
]


def test_a_trial_is_a_line_with_what_distinguishes_it() -> None:
    assert sweep_text(THREE).splitlines() == [
        "         trial  beta  pair accuracy      best accuracy  margin  chosen, nats  update",
        "         a       0.1   80 % (78–82)  80 % (78–82) at 1    1.00          −0.5    31 s",
        "best     b       0.5   93 % (91–95)  93 % (91–95) at 1    1.00          −0.5    31 s",
        "as good  c       1.0   90 % (88–92)  90 % (88–92) at 1    1.00          −0.5    31 s",
    ]


def test_pass_rates_decide_where_every_trial_has_them_and_a_collapse_is_named() -> None:
    trials = [
        trial("a", [0.5, 0.9, 0.99], pass_rates=[0.3, 0.97, 0.6], beta="0.1"),
        trial("b", [0.5, 0.8, 0.85], pass_rates=[0.3, 0.8, 0.9], beta="0.5"),
    ]
    lines = sweep_text(trials).splitlines()
    assert lines[1].startswith("collapsed  a ")
    assert "60 % (57–63)  97 % (94–100) at 1" in lines[1]
    assert lines[2].startswith("best       b ")
    assert lines[3].startswith("a: The policy has collapsed: the sampled pass rate fell from its best, 97 %")
    without = [trials[0], trial("c", [0.5, 0.6, 0.7], beta="1")]
    assert sweep_text(without).splitlines()[1].startswith("best, collapsed  a ")  # by pair accuracy, which c has too


def test_the_page_shows_table_figure_and_collapse(tmp_path: Path) -> None:
    trials = [
        trial("a<b>", [0.5, 0.99], pass_rates=[0.9, 0.6], beta="0.1"),
        trial("b", [0.5, 0.85], pass_rates=[0.3, 0.9], beta="0.5"),
    ]
    settings = {"learner.beta": "0.1", "learner.num_epochs": "3"}
    path = write_sweep(tmp_path / "new" / "sweep.html", trials, title="Sweep <x>", notes="reference once", settings=settings)
    page = path.read_text()
    assert re.findall(r'aria-label="(.*?)"', page) == ["held-out pass rate of every trial"]
    assert "<b>" not in re.sub(r"<b>(Held|a&lt;b&gt;\.)", "", page)
    assert "Sweep &lt;x&gt;" in page
    assert '<tr class="best"><td>best</td><td>b</td><td>0.5</td>' in page
    assert "a&lt;b&gt;.</b> The policy has collapsed" in page
    assert "Best of 2 trials: b, sampled pass rate 90&nbsp;%" in page
    assert "reference once" in page
    assert "<th>learner.num_epochs</th><td>3</td>" in page
    assert "<th>learner.beta</th>" not in page  # it is a column
    assert "#0101" not in page
    assert [file.name for file in path.parent.iterdir()] == ["sweep.html"]
    again = write_sweep(tmp_path / "again.html", trials, title="Sweep <x>", notes="reference once", settings=settings)
    assert again.read_text() == page


def test_many_trials_fit_and_equal_settings_are_no_columns(tmp_path: Path) -> None:
    trials = [trial(f"t{n}", [0.5, 0.5 + n / 100], beta="0.1") for n in range(40)]
    assert "beta" not in sweep_text(trials)
    page = write_sweep(tmp_path / "sweep.html", trials).read_text()
    assert "40 trials: t39" in page
    assert page.count(">t39</text>") == 1
    assert ">t3</text>" not in page  # beyond the colours there are, curves are grey and without a name


def test_trials_without_any_evaluation_are_listed(tmp_path: Path) -> None:
    bare = Trial("a", {"learner.beta": "1"}, tables.empty("METRICS"), 0.0)
    assert sweep_text([bare]).splitlines()[1].split() == ["a", "0.0", "s"]
    assert "No evaluation yet" in write_sweep(tmp_path / "sweep.html", [bare]).read_text()
    assert "No evaluation yet" in write_sweep(tmp_path / "none.html", []).read_text()
    with pytest.raises(ContractError, match="METRICS"):
        write_sweep(tmp_path / "bad.html", [Trial("a", {}, tables.empty("EVENTS"), 0.0)])


def test_trials_that_generate_are_drawn_over_completions(tmp_path: Path) -> None:
    trials = []
    for name, completions in (("a", 100.0), ("b", 300.0)):
        made = trial(name, [0.5, 0.8], pass_rates=[0.5, 0.8], beta=name)
        spent = metrics_table([(1, None, "rollout/num_completions", completions)])
        trials.append(Trial(name, made.settings, tables.concat("METRICS", [made.metrics, spent]), 1.0))
    assert ">completions spent</text>" in write_sweep(tmp_path / "sweep.html", trials).read_text()
    assert ">iteration</text>" in write_sweep(tmp_path / "sweep.html", THREE).read_text()


def test_runs_are_compared_at_equal_completions_spent() -> None:
    grpo = Run("GRPO", [Point(0, 0.27, 0.23, 0.32, 0.0), Point(500, 0.85, 0.81, 0.88, 0.99), Point(4000, 0.94, 0.91, 0.97, 0.99)])
    dpo = ("iterative DPO", [(0, 0.27, 0.23, 0.32, 0.0), (800, 0.93, 0.9, 0.95, None)])
    lines = compare_runs_text([grpo, dpo]).splitlines()
    assert [re.split(r"\s{2,}", line) for line in lines[:-1]] == [
        ["completions spent", "GRPO", "iterative DPO"],
        ["0", "27 % (23–32), greedy 0 %", "27 % (23–32), greedy 0 %"],
        ["500", "85 % (81–88), greedy 99 %", "·"],
        ["800", "·", "93 % (90–95)"],
        ["4,000", "94 % (91–97), greedy 99 %", "·"],
    ]
    assert lines[-1] == (
        "With at most 800 completions: iterative DPO 93 % (90–95) (after 800), GRPO 85 % (81–88), greedy 99 % (after 500); "
        "iterative DPO is ahead of GRPO."
    )


def test_differences_within_the_intervals_are_called_so() -> None:
    runs = [Run("a", [Point(10, 0.5, 0.4, 0.6, None)]), Run("b", [Point(10, 0.55, 0.45, 0.65, None)])]
    assert compare_runs_text(runs).splitlines()[-1].endswith("the differences lie within the intervals.")
    late = [runs[0], Run("c", [Point(20, 0.9, 0.8, 0.95, None)])]
    assert compare_runs_text(late).splitlines()[-1] == "There is no number of completions at which the runs can be compared."
    assert compare_runs_text([Run("none", [])]) == "no evaluation yet"


def test_a_run_is_read_from_its_metrics() -> None:
    rows: list[Row] = [(k, None, "rollout/num_completions", 256.0) for k in (1, 2, 3)]
    for k, value in ((0, 0.25), (2, 0.5)):
        rows += [*rate(k, "eval/pass_at_1", value, 0.125), (k, None, "eval/greedy_pass_rate", value)]
    assert run_of("GRPO", metrics_table(rows)) == Run(
        "GRPO", [Point(0, 0.25, 0.125, 0.375, 0.25), Point(512, 0.5, 0.375, 0.625, 0.5)]
    )
