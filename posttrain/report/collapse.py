"""Collapse made visible: DPO can go on raising the margin while the policy forgets how to answer."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from posttrain.report.curve import GREEDY, SAMPLED, Rate, rates, values_by_iteration

# Chosen answers e⁻⁵ times as likely as under the reference: below it, drift is the usual price of a margin.
SUNK_NATS = 5.0
REMEDY = "In a new run set nll_coef above 0, raise beta, or train fewer steps."


def collapse_warning(metrics: pa.Table) -> str | None:
    """What happened, with numbers, and what to do; None while nothing is wrong, and for runs that learn from no pairs.

    With pass rates: the last one lies below the best one, beyond both intervals. Without any: chosen answers have sunk by more
    than `SUNK_NATS` since they were most likely, while the margin rose.
    """
    drift, margin = _held_out_or_train(metrics, "chosen_logprob_drift"), _held_out_or_train(metrics, "reward_margin")
    if not drift:
        return None
    curves = {"sampled": rates(metrics, SAMPLED), "greedy": rates(metrics, GREEDY)}
    for name, curve in curves.items():
        if curve and (best := max(curve, key=lambda rate: rate.value)).low > curve[-1].high:
            return _fallen(name, best, curve[-1], drift, margin)
    return None if any(curves.values()) else _sinking(drift, margin)


def _fallen(name: str, best: Rate, last: Rate, drift: Mapping[int, float], margin: Mapping[int, float]) -> str:
    sentence = (
        f"The policy has collapsed: the {name} pass rate fell from its best, {best} at iteration {best.iteration}, "
        f"to {last} at iteration {last.iteration}."
    )
    before, after = drift.get(best.iteration), drift.get(last.iteration)
    if before is not None and after is not None:
        sentence += f" Chosen answers went from {nats(before)} to {nats(after)} nats against the reference"
        rise = _change(margin, best.iteration, last.iteration)
        sentence += f" while the margin {rise}." if rise else "."
    return f"{sentence} Take the checkpoint of iteration {best.iteration}. {REMEDY}"


def _sinking(drift: Mapping[int, float], margin: Mapping[int, float]) -> str | None:
    last, peak = max(drift), max(drift, key=lambda iteration: drift[iteration])
    rises = last in margin and peak in margin and margin[last] > margin[peak]
    if drift[last] >= -SUNK_NATS or not rises:
        return None
    afloat = [iteration for iteration, value in drift.items() if iteration > 0 and value >= -SUNK_NATS]
    checkpoint = (
        f"The last checkpoint before that is the one of iteration {max(afloat)}." if afloat else "Every checkpoint has sunk."
    )
    return (
        f"The policy may be collapsing: chosen answers sink, {nats(drift[last])} nats against the reference at iteration {last}, "
        f"{nats(drift[peak])} at iteration {peak}, while the margin {_change(margin, peak, last)}. It rises only because "
        "rejected answers sink faster. Whether the policy still answers well, pairs cannot tell: give evaluation_prompts. "
        f"{checkpoint} {REMEDY}"
    )


def _held_out_or_train(metrics: pa.Table, name: str) -> dict[int, float]:
    held_out = values_by_iteration(metrics, f"eval/{name}")
    return held_out if len(held_out) > 1 else values_by_iteration(metrics, f"train/{name}")


def _change(values: Mapping[int, float], first: int, last: int) -> str:
    if first not in values or last not in values:
        return ""
    return f"{'rose' if values[last] > values[first] else 'went'} from {values[first]:.2f} to {values[last]:.2f}"


def nats(value: float) -> str:
    """Signed, with a true minus: −14.2, +0.3."""
    return f"{value:+.1f}".replace("-", "−")
