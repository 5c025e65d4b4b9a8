"""Entry module of the sandbox for reasoning-gym: calls the generator's own scorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Report = Callable[[Any], None]


def preload() -> None:
    """Imports the generators once, before any fork."""
    import reasoning_gym

    assert reasoning_gym


def run(job: dict[str, Any], report: Report) -> int:
    """Reports the score of `job["text"]`, an unparseable completion, or a fault of the scorer or the entry."""
    import reasoning_gym

    entry = job["entry"]
    try:
        dataset = reasoning_gym.create_dataset(job["dataset"], size=1, seed=0)
    except Exception as error:
        report({"fault": f"the generator cannot be made: {type(error).__name__}: {error}"[:500]})
        return 1
    try:
        score = float(dataset.score_answer(answer=job["text"], entry=entry))
    except BaseException as error:
        return _report_exception(dataset, entry, error, report)
    report({"score": score, "detail": f"score {score:g}; expected {entry['answer']}"[:500]})
    return 0


def _report_exception(dataset: Any, entry: dict[str, Any], error: BaseException, report: Report) -> int:
    """Some scorers raise on junk; one that cannot score the entry's own answer is at fault itself."""
    try:
        accepts_own = entry["answer"] is not None and dataset.score_answer(answer=entry["answer"], entry=entry) >= 0.99
    except BaseException:
        accepts_own = False
    kind = "unparseable" if accepts_own else "fault"
    report({kind: f"the scorer raised {type(error).__name__}: {error}"[:500]})
    return 0 if accepts_own else 1
