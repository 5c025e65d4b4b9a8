"""Pass rates with intervals: what a policy can do on held-out prompts, and how sure we are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import tables
from posttrain.config import EvaluationSettings
from posttrain.errors import VerificationError
from posttrain.table_checks import UNJUDGED

NUM_RESAMPLES = 2_000
BOOTSTRAP_SEED = 0


def wilson_interval(passes: float, total: int, confidence: float) -> tuple[float, float]:
    """Interval of a pass rate, inside [0, 1] and not empty at 0 or 1 (Wilson 1927, JASA 22, p. 209).

    Raises:
        ValueError: no trials, passes outside 0..total, or a confidence outside (0, 1).
    """
    if total < 1 or not 0 <= passes <= total or not 0 < confidence < 1:
        raise ValueError(f"wilson_interval(passes={passes}, total={total}, confidence={confidence}) is not a pass rate")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, widening = passes / total, z * z / total
    centre = (rate + widening / 2) / (1 + widening)
    half = z / (1 + widening) * math.sqrt(rate * (1 - rate) / total + widening / (4 * total))
    low = 0.0 if passes == 0 else max(0.0, centre - half)  # exact at the ends, whatever the rounding
    high = 1.0 if passes == total else min(1.0, centre + half)
    return low, high


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased probability that at least one of k samples passes (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Raises:
        ValueError: fewer than k samples, or num_correct outside 0..num_samples.
    """
    if not 1 <= k <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(f"pass_at_k(num_samples={num_samples}, num_correct={num_correct}, k={k}) is not defined")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def bootstrap_interval(prompt_means: Sequence[float], confidence: float) -> tuple[float, float]:
    """Percentile interval of the mean over prompts; whole prompts are resampled, so samples of one prompt may depend.

    Always the same for the same values (fixed seed). When every prompt has the same mean, resampling shows no spread
    at all; the interval is then Wilson's with one trial for each prompt.

    Raises:
        ValueError: no prompts.
    """
    values = np.asarray(prompt_means, dtype=float)
    if values.size == 0:
        raise ValueError("bootstrap_interval needs at least one prompt")
    if np.all(values == values[0]):
        return wilson_interval(float(values[0]) * values.size, values.size, confidence)
    random = np.random.default_rng(BOOTSTRAP_SEED)
    means = [values[random.integers(0, values.size, values.size)].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def summarise(sampled: pa.Table, greedy: pa.Table, settings: EvaluationSettings, iteration: int) -> pa.Table:
    """METRICS of one evaluation, from the VERDICTS of the sampled and of the greedy completions.

    `eval/pass_at_<k>` for 1 and each k of `settings.pass_at`, and `eval/greedy_pass_rate`, each with `_low` and
    `_high`; `eval/num_prompts`; `eval/num_unjudged`. What a verifier failed on or abstained from is left out of every
    denominator and counted. A prompt with fewer than k judged samples has no pass@k and is left out of that mean; with no
    such prompt the rows of that k are absent.

    Raises:
        ContractError: a table is not VERDICTS.
        VerificationError: no sampled or no greedy completion was judged, so there is no pass rate to report.
    """
    for table, kind in ((sampled, "sampled"), (greedy, "greedy")):
        _check_judged(tables.validate(table, "VERDICTS"), kind, iteration)
    judged = _judged_by_prompt(sampled)
    values: dict[str, float] = {}
    for k in sorted({1, *settings.pass_at}):
        means = [pass_at_k(total, passes, k) for total, passes in judged.values() if total >= k]
        if means:
            _add(values, f"eval/pass_at_{k}", float(np.mean(means)), bootstrap_interval(means, settings.confidence))
    greedy_by_prompt = _judged_by_prompt(greedy)
    total, passes = (sum(counts) for counts in zip(*greedy_by_prompt.values(), strict=True))
    _add(values, "eval/greedy_pass_rate", passes / total, wilson_interval(passes, total, settings.confidence))
    values["eval/num_prompts"] = len(judged.keys() | greedy_by_prompt.keys())
    values["eval/num_unjudged"] = _num_unjudged(sampled) + _num_unjudged(greedy)
    rows = [{"iteration": iteration, "step": None, "name": name, "value": value} for name, value in values.items()]
    return tables.from_rows("METRICS", rows)


def _add(values: dict[str, float], name: str, value: float, interval: tuple[float, float]) -> None:
    values[name], values[f"{name}_low"], values[f"{name}_high"] = value, *interval


def _judged_by_prompt(verdicts: pa.Table) -> dict[str, tuple[int, int]]:
    """prompt_id → (judged samples, passed samples); prompts with no judged sample are absent."""
    totals: Counter[str] = Counter()
    passes: Counter[str] = Counter()
    outcomes: list[Any] = verdicts["outcome"].to_pylist()
    for prompt_id, outcome in zip(verdicts["prompt_id"].to_pylist(), outcomes, strict=True):
        if outcome not in UNJUDGED:
            totals[prompt_id] += 1
            passes[prompt_id] += outcome == "pass"
    return {prompt_id: (total, passes[prompt_id]) for prompt_id, total in totals.items()}


def _num_unjudged(verdicts: pa.Table) -> int:
    return sum(outcome in UNJUDGED for outcome in verdicts["outcome"].to_pylist())


def _check_judged(verdicts: pa.Table, kind: str, iteration: int) -> None:
    if _num_unjudged(verdicts) < verdicts.num_rows:
        return
    details = [detail for detail in verdicts["detail"].to_pylist() if detail][:1]
    why = f"the verifier failed or abstained on all {verdicts.num_rows}" if verdicts.num_rows else "there are no verdicts"
    first = f" First detail: {details[0][:300]}" if details else ""
    raise VerificationError(
        f"evaluation of iteration {iteration}: no {kind} completion was judged ({why}), so there is no pass rate. "
        f"Repair the verifier or the evaluation prompts and run the evaluation again.{first}"
    )
