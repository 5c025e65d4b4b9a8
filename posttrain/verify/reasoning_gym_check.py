"""Entry module of the sandbox for reasoning-gym: calls the generator's own scorer, or the one that corrects it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from posttrain.verify.base import PASS_SCORE
from posttrain.verify.reasoning_gym_corrected import scorer

Report = Callable[[Any], None]


def preload() -> None:
    """Imports the generators once, before any fork."""
    import reasoning_gym

    assert reasoning_gym


def run(job: dict[str, Any], report: Report) -> int:
    """Reports `ready` once the scorer accepts the item's own answer, then the score of `job["text"]` or why there is none."""
    import reasoning_gym

    entry = job["entry"]
    try:
        score_answer = scorer(job["dataset"], reasoning_gym.create_dataset(job["dataset"], size=1, seed=0))
        if _bounded(score_answer(entry["answer"], entry)) < PASS_SCORE:
            raise ValueError(f"the scorer refuses the item's own answer {entry['answer']!r}")
    except Exception as error:
        report({"fault": f"{type(error).__name__}: {error}"[:500]})
        return 1
    report({"ready": True})
    try:
        score = _bounded(score_answer(job["text"], entry))
    except BaseException as error:  # some scorers raise on junk
        report({"unparseable": f"the scorer raised {type(error).__name__}"})
        return 0
    report({"score": score, "detail": f"score {score:g}; expected {entry['answer']}"[:500]})
    return 0


def _bounded(score: Any) -> float:
    """From 0 to 1; what is no number counts as 0."""
    score = float(score)
    return 0.0 if math.isnan(score) else min(1.0, max(0.0, score))
