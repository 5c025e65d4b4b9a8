"""The learning curve as numbers, as a sentence and as lines for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

SAMPLED = "eval/pass_at_1"
GREEDY = "eval/greedy_pass_rate"
PAIR_ACCURACY = "eval/pair_accuracy"
BAR_CHARACTERS = 40


@dataclass(frozen=True)
class Rate:
    """A pass rate, or another share, and its interval at one iteration."""

    iteration: int
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.value)} ({self.low * 100:.0f}–{self.high * 100:.0f})"


def percent(share: float) -> str:
    """0.8512 → 85 %; one digit more where rounding would claim 0 or 100 %."""
    rounded = f"{share * 100:.0f}"
    exact = rounded not in ("0", "100") or share in (0.0, 1.0)
    return f"{rounded if exact else f'{share * 100:.1f}'} %"


def rates(metrics: pa.Table, name: str) -> list[Rate]:
    """The evaluated iterations of one pass rate in order; without interval rows the interval is the value itself."""
    by_iteration: defaultdict[int, dict[str, float]] = defaultdict(dict)
    wanted = (name, f"{name}_low", f"{name}_high")
    for row in metrics.to_pylist():
        if row["name"] in wanted:
            by_iteration[row["iteration"]][row["name"].removeprefix(name)] = row["value"]
    found: list[Rate] = []
    for iteration, values in sorted(by_iteration.items()):
        if "" in values:
            found.append(Rate(iteration, values[""], values.get("_low", values[""]), values.get("_high", values[""])))
    return found


def describe_change(label: str, curve: list[Rate]) -> str:
    """`sampled pass rate rose from 34 % (29–39) to 85 % (81–89)`, and says so when the intervals overlap."""
    first, last = curve[0], curve[-1]
    if len(curve) == 1:
        return f"{label} is {first}"
    if last.low <= first.high and first.low <= last.high:
        return f"{label} went from {first} to {last}, a change within the intervals"
    return f"{label} {'rose' if last.value > first.value else 'fell'} from {first} to {last}"


def values_by_iteration(metrics: pa.Table, name: str) -> dict[int, float]:
    """iteration → value; the mean where there are several, as there are of steps."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for row in metrics.to_pylist():
        if row["name"] == name:
            found[row["iteration"]].append(row["value"])
    return {iteration: sum(values) / len(values) for iteration, values in sorted(found.items())}


def interval_text(rate: Rate) -> str:
    """20 to 30 %."""
    return f"{rate.low * 100:.0f} to {rate.high * 100:.0f} %"


def ascii_curve(metrics: pa.Table) -> str:
    """The learning curve for a terminal: a bar, the pass rate, its interval and the greedy rate for each evaluation.

    Without pass rates it is the accuracy on held-out pairs, with the margin and the drift of the chosen answers. In the bar `#`
    reaches to the lower bound, `=` spans the interval and `|` stands at the value.
    """
    if curve := rates(metrics, SAMPLED):
        greedy = {rate.iteration: percent(rate.value) for rate in rates(metrics, GREEDY)}
        return _bars("held-out pass rate, sampled", curve, {"greedy": greedy})
    if curve := rates(metrics, PAIR_ACCURACY):
        margin = {k: f"{value:.2f}" for k, value in values_by_iteration(metrics, "eval/reward_margin").items()}
        drift = {k: f"{value:+.1f}" for k, value in values_by_iteration(metrics, "eval/chosen_logprob_drift").items()}
        return _bars("accuracy on held-out pairs", curve, {"margin": margin, "chosen (nats)": drift})
    return "no evaluation yet"


def _bars(title: str, curve: list[Rate], further: Mapping[str, Mapping[int, str]]) -> str:
    headings = "".join(f"  {name:>6}" for name in further)
    lines = [f"{'iteration':>9}  {title:<{BAR_CHARACTERS + 2}}  {'rate':>6}  {'interval':<13}{headings}"]
    for rate in curve:
        others = "".join(f"  {values.get(rate.iteration, '-'):>{max(6, len(name))}}" for name, values in further.items())
        lines.append(f"{rate.iteration:>9}  [{_bar(rate)}]  {percent(rate.value):>6}  {interval_text(rate):<13}{others}")
    return "\n".join(lines)


def _bar(rate: Rate) -> str:
    low, high = (round(min(1.0, max(0.0, bound)) * BAR_CHARACTERS) for bound in (rate.low, rate.high))
    bar = ("#" * low + "=" * (high - low)).ljust(BAR_CHARACTERS, ".")
    at = min(BAR_CHARACTERS - 1, int(min(1.0, max(0.0, rate.value)) * BAR_CHARACTERS))
    return f"{bar[:at]}|{bar[at + 1 :]}"
