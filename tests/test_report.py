"""The report: complete, self-contained, the same for the same inputs, and safe with hostile completions."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ContractError
from posttrain.report import ReportInputs, ascii_curve, render_report, write_report
from posttrain.report.curve import SAMPLED, describe_change, percent, rates
from posttrain.report.samples import choose, safe_html
from posttrain.report.timeline import describe_time, duration_text

START = datetime(2025, 1, 1, tzinfo=UTC)
HOSTILE = "</pre><script>alert(1)</script><img src=//evil.example onerror=x>&lt; \x1b[31m\x00 a\u202eb\u2066 🎉 \u200b é"


def metrics_table(rows: list[tuple[int, int | None, str, float]]) -> pa.Table:
    return tables.from_rows("METRICS", [dict(zip(("iteration", "step", "name", "value"), row, strict=True)) for row in rows])


def evaluation(iteration: int, sampled: tuple[float, float, float], greedy: tuple[float, float, float]) -> pa.Table:
    named = {"eval/pass_at_1": sampled, "eval/greedy_pass_rate": greedy, "eval/pass_at_4": (0.9, 0.8, 1.0)}
    rows = [
        (iteration, None, name + end, value)
        for name, values in named.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    ]
    return metrics_table(rows)


def scored_table(rows: list[dict[str, Any]]) -> pa.Table:
    base = {
        "prompt_ids": [1], "policy_versions": [], "finish_reason": "stop", "completion": "x + 1", "seed": 1, "engine": "vllm",
        "started_at": START, "finished_at": START, "outcome": "pass", "reward": 1.0, "detail": "", "seconds": 0.1,
        "verifier": "code", "verifier_version": "1", "parts": [], "limits": "{}", "advantage": 0.5, "reference_logprobs": None,
    }  # fmt: skip
    full = []
    for number, row in enumerate(rows):
        length = row.get("num_tokens", 3)
        ids = {"completion_ids": list(range(length)), "behavior_logprobs": [-0.5] * length}
        versions = {"policy_versions": [{"version": 0, "num_tokens": length}]} if length else {}
        own = {key: value for key, value in row.items() if key != "num_tokens"}
        full.append(base | ids | versions | {"prompt_id": f"p{number}", "sample_index": 0} | own)
    return tables.from_rows("SCORED", full)


def event(pool: str, phase: str, start_s: float, length_s: float) -> dict[str, Any]:
    started = START + timedelta(seconds=start_s)
    return {
        "execution": "e", "iteration": 0, "pool": pool, "device": "cpu 0", "phase": phase, "tokens": 0, "shard": None,
        "started_at": started, "finished_at": started + timedelta(seconds=length_s),
    }  # fmt: skip


@pytest.fixture(scope="module")
def inputs() -> ReportInputs:
    mixed = [
        {"outcome": "pass", "reward": 1.0, "completion": "the best one"},
        {"outcome": "fail", "reward": 0.0, "completion": HOSTILE, "detail": "expected <b>4</b>"},
        {"outcome": "timeout", "reward": 0.0, "completion": "while True: pass"},
        {"outcome": "error", "reward": None, "advantage": None, "completion": "not judged"},
        {"outcome": "unparseable", "reward": 0.0, "completion": "", "num_tokens": 0},
        {"outcome": "fail", "reward": 0.0, "completion": "A" * 1_000_000, "finish_reason": "length", "num_tokens": 48},
    ]
    train = [
        (0, step, f"train/{name}", 0.1 * step) for step in range(4) for name in ("loss", "kl", "clip_ratio/high_mean", "entropy")
    ]
    return ReportInputs(
        title="GRPO <run>",
        settings={"data.model": "brackets", "evaluation.confidence": "0.95", "data.system_prompt": "<i>be brief</i>"},
        metrics=tables.concat(
            "METRICS",
            [
                evaluation(0, (0.34, 0.3, 0.38), (0, 0, 0.04)),
                evaluation(2, (0.855, 0.82, 0.89), (0.98, 0.93, 0.99)),
                metrics_table(train),
            ],
        ),
        events=tables.from_rows("EVENTS", [event("rollout", "generate", 0, 6), event("learner", "update", 6, 2)]),
        samples={0: scored_table(mixed), 1: scored_table(mixed), 2: tables.empty("SCORED")},
        prompts={"p0": "add 9; times 4:", "p1": HOSTILE},
        links={"MLflow": "mlflow ui --backend-store-uri sqlite:////x.db", "empty": ""},
    )


@pytest.fixture(scope="module")
def page(inputs: ReportInputs) -> str:
    return render_report(inputs)


class Reader(HTMLParser):
    """Collects what a browser would see: elements, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_leads_with_the_change_and_its_interval_and_the_time(page: str) -> None:
    text = re.sub(r"\s+", " ", Reader(page).text)
    assert (
        "The sampled pass rate rose from 34 % (30–38) to 86 % (82–89); the greedy pass rate rose from 0 % (0–4) to 98 % (93–99)."
        in text
    )
    assert (
        "In brackets the 95 % interval. 8.0 s from first to last; busy time: generate 75 % (6.0 s), update 25 % (2.0 s)." in text
    )
    assert "completions judged" in text
    assert "10completions judged" in text  # two tables of six rows, one error in each


def test_the_page_holds_every_figure_and_every_kind_of_sample(page: str) -> None:
    figures = ["held-out pass rate by iteration", "outcomes by iteration", "distribution of rewards by iteration",
               "distribution of completion lengths", "phases by pool over time", "train/loss by step", "train/kl by step",
               "train/clip_ratio/high_mean by step", "train/entropy by step"]  # fmt: skip
    assert [value for name, value in Reader(page).attributes if name == "aria-label"] == figures
    headings = re.findall(r"<h3>(.*?)</h3>", page)
    assert headings == ["Best", "Worst", "Truncated", "Timed out", "Not judged"]
    assert "the best one" in page
    assert "add 9; times 4:" in page


def test_the_page_loads_and_runs_nothing(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "link", "iframe", "object", "embed", "img", "form", "base", "image"} & set(reader.elements)
    names = {name for name, _ in reader.attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "srcset", "action", "background")]
    assert {value[0] for name, value in reader.attributes if name in ("href", "xlink:href")} <= {"#"}
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_hostile_text_is_shown_and_never_obeyed(page: str) -> None:
    assert "<script>alert(1)</script>" in Reader(page).text  # as text: it is what the completion said
    for hidden in ("\x1b", "\x00", "\u202e", "\u2066", "\u200b"):
        assert hidden not in page
        assert f"<i>U+{ord(hidden):04X}</i>" in page
    assert "🎉" in page
    assert "<b>4</b>" not in page
    assert "<i>be brief</i>" not in page
    assert "<title>GRPO &lt;run&gt;</title>" in page


def test_a_huge_completion_is_cut_with_a_note(page: str) -> None:
    assert "997,600 of 1,000,000 characters left out" in page
    assert len(page.encode()) < 1_000_000


def test_text_of_control_characters_alone_stays_bounded() -> None:
    assert len(safe_html("\u202e" * 1_000_000)) < 50_000


def test_family_emoji_and_line_breaks_stay_whole() -> None:
    assert safe_html("a\n\tb 👨\u200d👩\u200d👧") == "a\n\tb 👨\u200d👩\u200d👧"


def test_every_figure_is_well_formed_and_its_ids_are_its_own(page: str) -> None:
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    seen: set[str] = set()
    for figure in figures:
        root = ElementTree.fromstring(figure.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        ids = {element.get("id") for element in root.iter() if element.get("id")}
        assert not ids & seen
        seen |= ids
        used = set(re.findall(r"url\(#(.*?)\)", figure)) | set(re.findall(r'href="#(.*?)"', figure))
        assert used <= ids
        assert "nan" not in figure.lower().replace("finance", "")
    assert "#0101" not in page  # every stand-in colour became a variable of the theme
    for variable in set(re.findall(r"var\((--[\w-]+)\)", page)) - {"--width"}:
        assert page.count(f"{variable}: #") == 2, f"{variable} needs a light and a dark value"


def test_the_same_inputs_give_the_same_page(inputs: ReportInputs, page: str) -> None:
    assert render_report(inputs) == page


def test_a_large_run_stays_small_and_quick(tmp_path: Path) -> None:
    metrics = [(k // 100, k, f"train/{name}", float(k % 7)) for k in range(3_000) for name in ("loss", "kl", "grad_norm")]
    rows = [{"outcome": "fail", "reward": 0.0, "completion": "\u202e" * 100_000, "num_tokens": n % 900} for n in range(100)]
    events = [event(f"pool {number % 40}", f"phase {number % 9}", number / 10, 0.05) for number in range(8_000)]
    started = time.monotonic()
    path = write_report(
        tmp_path / "new" / "report.html",
        ReportInputs(
            "large", metrics=metrics_table(metrics), events=tables.from_rows("EVENTS", events), samples={0: scored_table(rows)}
        ),
    )
    assert path.stat().st_size < 1_000_000
    assert time.monotonic() - started < 30  # about 4 s alone on a core; other work may share it
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("metrics", [tables.empty("METRICS"), metrics_table([(0, 0, "train/loss", 1.0)])])
def test_without_evaluations_samples_or_events_the_page_says_so(metrics: pa.Table) -> None:
    text = Reader(render_report(ReportInputs("empty", metrics=metrics))).text
    assert "No evaluation yet." in text
    assert text.count("Nothing recorded yet.") == (5 if metrics.num_rows == 0 else 4)


def test_a_single_evaluation_is_stated_without_a_change() -> None:
    page = render_report(
        ReportInputs("one", metrics=evaluation(0, (0.5, 0.4, 0.6), (0.2, 0.1, 0.3)), samples={0: scored_table([{}])})
    )
    assert "The sampled pass rate is 50" in page
    assert "<svg" in page


def test_a_broken_table_is_refused_and_an_earlier_report_stays(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", ReportInputs("good"))
    before = path.read_text()
    with pytest.raises(ContractError, match="EVENTS"):
        write_report(path, ReportInputs("bad", events=tables.empty("METRICS")))
    assert path.read_text() == before


def test_prompts_may_come_as_a_table() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2?"}]
    prompts = tables.from_rows(
        "PROMPTS",
        [{"prompt_id": "p0", "messages": messages, "prompt_ids": [1], "verifier": "exact", "answer": '"4"', "source": "test"}],
    )
    page = render_report(ReportInputs("prompts", samples={0: scored_table([{}])}, prompts=prompts))
    assert "[system]\nbe brief\n\n[user]\n2 + 2?" in page


def test_samples_prefer_the_last_iteration_and_different_prompts_and_repeat_none() -> None:
    def rows(completion: str) -> list[dict[str, Any]]:
        twice = [{"prompt_id": "a", "sample_index": n, "completion": completion} for n in range(4)]
        return [*twice, {"prompt_id": "b", "completion": completion}, {"prompt_id": "c", "completion": completion, "reward": 0.5}]

    chosen = dict(choose({3: scored_table(rows("old")), 7: scored_table(rows("new")), 8: tables.empty("SCORED")}))
    assert [(row["prompt_id"], row["reward"]) for row in chosen["Best"]] == [("a", 1.0), ("b", 1.0), ("a", 1.0)]
    assert [(row["prompt_id"], row["reward"]) for row in chosen["Worst"]] == [("c", 0.5)]
    assert {row["completion"] for rows_ in chosen.values() for row in rows_} == {"new"}
    keys = [(row["iteration"], row["prompt_id"], row["sample_index"]) for rows_ in chosen.values() for row in rows_]
    assert len(keys) == len(set(keys))


def test_change_is_described_as_the_intervals_allow() -> None:
    def curve(*values: tuple[float, float, float]) -> list[Any]:
        return rates(tables.concat("METRICS", [evaluation(k, value, (0, 0, 0)) for k, value in enumerate(values)]), SAMPLED)

    assert describe_change("it", curve((0.2, 0.1, 0.3), (0.5, 0.4, 0.6))) == "it rose from 20 % (10–30) to 50 % (40–60)"
    assert describe_change("it", curve((0.5, 0.4, 0.6), (0.2, 0.1, 0.3))) == "it fell from 50 % (40–60) to 20 % (10–30)"
    overlapping = "it went from 20 % (10–30) to 25 % (15–35), a change within the intervals"
    assert describe_change("it", curve((0.2, 0.1, 0.3), (0.25, 0.15, 0.35))) == overlapping


def test_ascii_curve_draws_bar_rate_and_interval() -> None:
    metrics = tables.concat(
        "METRICS", [evaluation(0, (0.25, 0.2, 0.3), (0, 0, 0.04)), evaluation(4, (1, 0.9, 1), (0.98, 0.9, 1))]
    )
    assert ascii_curve(metrics).splitlines()[1:] == [
        "        0  [########==|=............................]    25 %  20 to 30 %        0 %",
        "        4  [####################################===|]   100 %  90 to 100 %      98 %",
    ]
    assert ascii_curve(metrics).isascii()
    assert ascii_curve(tables.empty("METRICS")) == "no evaluation yet"


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.001, "0.1 %"), (0.855, "86 %"), (0.996, "99.6 %"), (1.0, "100 %")])
def test_percent_never_claims_all_or_nothing_by_rounding(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 0 s"), (125, "2 min 5 s"), (11_520, "3 h 12 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_time_line_names_the_largest_phases_and_sums_up_the_rest() -> None:
    phases = [("a", 40.0), ("b", 30.0), ("c", 15.0), ("d", 10.0), ("e", 3.0), ("f", 2.0)]
    events = tables.from_rows("EVENTS", [event("pool", phase, 0, seconds) for phase, seconds in phases])
    expected = "40 s from first to last; busy time: a 40 % (40 s), b 30 % (30 s), c 15 % (15 s), d 10 % (10 s), the rest 5.0 s"
    assert describe_time(events) == expected
    assert describe_time(tables.empty("EVENTS")) == ""


def test_hostile_names_of_pools_phases_and_metrics_are_shown_and_never_obeyed() -> None:
    rows = [event(HOSTILE[:20] + "a\u202eb\nc", "\u2066phase\x1b" + HOSTILE, 0, 2), event("pool", "other", 2, 2)]
    metrics = metrics_table([(0, 0, "train/loss\u202e<b>", 1.0)])
    page = render_report(ReportInputs("names", metrics=metrics, events=tables.from_rows("EVENTS", rows)))
    assert not [character for character in page if character in "\x00\x1b\u202e\u2066\u200b"]
    assert "U+202E" in page
    assert "U+001B" in page
    assert "script" not in Reader(page).elements
    assert "train/lossU+202E&lt;b&gt; by step" in page


def test_the_largest_numbers_can_be_drawn_together() -> None:
    largest = [(k, k, f"train/{name}", sign * 1.7e308) for name in ("loss", "kl") for k, sign in enumerate((1, -1, 1))]
    extremes = [evaluation(0, (0.5, -1.7e308, 1.7e308), (1.7e308, 0, 1)), evaluation(1, (-1.7e308, 0, 1), (0.5, 0.4, 0.6))]
    samples = scored_table([{"reward": 1.7e308, "advantage": -1.7e308}, {"reward": -1.7e308, "advantage": 1.7e308}])
    metrics = tables.concat("METRICS", [metrics_table(largest), *extremes])
    page = render_report(ReportInputs("large", metrics=metrics, samples={0: samples}))
    assert page.count("<svg") == 6
    assert "advantage -1.7e+308" in page
    assert len(ascii_curve(metrics).splitlines()) == 3


@pytest.mark.parametrize("confidence", ["", "high", "nan", "inf", "-1", "95"])
def test_a_confidence_that_is_no_share_is_not_explained(confidence: str) -> None:
    metrics = evaluation(0, (0.5, 0.4, 0.6), (0.2, 0.1, 0.3))
    text = Reader(render_report(ReportInputs("odd", {"evaluation.confidence": confidence}, metrics=metrics))).text
    assert "The sampled pass rate is 50" in text
    assert "In brackets" not in text
