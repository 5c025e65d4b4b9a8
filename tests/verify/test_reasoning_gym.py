"""Answers to reasoning-gym questions, scored by the generators' own scorers in the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.verify.reasoning_gym import REFUSED, extract_answer
from posttrain.verify.reasoning_gym_check import run
from tests.verify.judging import judge


def item(name: str) -> dict[str, Any]:
    import reasoning_gym

    return {"dataset": name, "entry": json.loads(json.dumps(reasoning_gym.create_dataset(name, size=1, seed=3)[0], default=str))}


@pytest.mark.slow
def test_scores_of_the_generators() -> None:
    total, spelling, factors, broken = (
        item("chain_sum"),
        item("spell_backward"),
        item("prime_factorization"),
        item("prime_factorization"),
    )
    broken["entry"] |= {"answer": "not a factorisation", "metadata": {}}
    right = total["entry"]["answer"]
    expected = [
        (right, total, "pass", 1.0), (f"<think>1 + 1</think>\n<answer> {right} </answer>", total, "pass", 1.0),
        (f"<answer>0</answer> no, <answer>{right}</answer>", total, "pass", 1.0), ("0", total, "fail", 0.0), ("9**9**9", total, "fail", 0.0),
        # the generator pays the answer's share of the text: less than 0.99, so not solved
        (f"so: {right}", total, "fail", len(right) / (len(right) + 4)),
        (spelling["entry"]["answer"], spelling, "pass", 1.0), ("banana", spelling, "fail", 0.0), (factors["entry"]["answer"], factors, "pass", 1.0),
        # this scorer raises on junk: the completion's fault while the scorer can score the entry's own answer, else its own
        ("junk", factors, "unparseable", 0.0), ("2 × 3", broken, "error", None),
    ]  # fmt: skip
    found = judge("reasoning_gym", [(completion, answer) for completion, answer, _, _ in expected])
    assert [(verdict.outcome, verdict.reward) for verdict in found] == [(outcome, reward) for _, _, outcome, reward in expected]


JUNK = ("nan", "inf", "-inf", "1e400", "0", "junk", "zq zq", "[]", "()", "{}", "[[0]]", "-987654321", ".", "a\nb", "9" * 5_000)


def reports_of(name: str, entry: dict[str, Any], text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    run({"dataset": name, "entry": entry, "text": text}, found.append)
    return found


def is_zero(text: Any) -> bool:
    try:
        return float(text) == 0
    except (TypeError, ValueError):
        return False


@pytest.mark.slow
def test_every_generator_that_is_not_refused_tells_its_own_answer_from_junk() -> None:
    from reasoning_gym.factory import DATASETS

    assert set(DATASETS) > REFUSED.keys()
    wrong: list[tuple[str, str, object]] = []
    for name in sorted(set(DATASETS) - REFUSED.keys()):
        entry = item(name)["entry"]
        right, *others = [reports_of(name, entry, text) for text in (entry["answer"], *JUNK)]
        if right[-1].get("score", 0) < 0.99:
            wrong.append((name, "its own answer", right))
        for text, found in zip(JUNK, others, strict=True):
            paid = found[-1].get("score", 0) >= 0.99 and not (text == "0" and is_zero(entry["answer"]))
            if found[0] != {"ready": True} or paid:
                wrong.append((name, text[:20], found))
    assert wrong == []


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (" 4 ", "4"), ("<answer>4</answer>", "4"), ("<answer>3</answer><answer>\n4\n</answer> bye", "4"), ("<answer>3</answer> <answer>4", "3"),
        ("</answer> 4", "</answer> 4"), ("<answer>4", "<answer>4"), ("<answer>" * 100_000 + "4</answer>", "4"),
    ],
)  # fmt: skip
def test_the_last_tagged_answer_is_scored(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer
