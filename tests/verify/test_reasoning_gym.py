"""Answers to reasoning-gym questions, scored by the generators' own scorers in the sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.reasoning_gym import REFUSED, extract_answer
from posttrain.verify.reasoning_gym_corrected import CORRECTED
from posttrain.verify.registry import create_verifier
from posttrain.verify.scorers import scorer_sandbox
from tests.verify.judging import judge

PATIENT = VerifySettings(timeout_s=20)  # what is right must not depend on how busy the machine is


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Keeps the servers that all tests of this module share; they start with the first job."""
    with scorer_sandbox("posttrain.verify.reasoning_gym_check", PATIENT):
        yield


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
    found = judge("reasoning_gym", [(completion, answer) for completion, answer, _, _ in expected], settings=PATIENT)
    assert [(verdict.outcome, verdict.reward) for verdict in found] == [(outcome, reward) for _, _, outcome, reward in expected]


JUNK = (
    "0", "nan", "inf", "x", "-987654321", "[]", "{}", "1e400", "9" * 5_000, "9**9**9", "__import__('os').system('id')", "zq " * 10_000,
    " ".join(map(str, range(200))), ", ".join(map(str, range(200))), "A B C D E F G yes no true false left right up down", "\x00", "[" * 3_000,
)  # fmt: skip


def is_the_answer(text: str, answer: Any) -> bool:
    try:
        return float(text) == float(answer)
    except (TypeError, ValueError):
        return text == answer


@pytest.mark.slow
def test_every_generator_that_is_not_refused_tells_its_own_answer_from_junk() -> None:
    """Through the sandbox: the item's own answer passes; junk, the question and lists of guesses never do, and are never errors."""
    from reasoning_gym.factory import DATASETS

    assert set(DATASETS) > REFUSED.keys() | CORRECTED
    assert not REFUSED.keys() & CORRECTED
    items = [item(name) for name in sorted(set(DATASETS) - REFUSED.keys())]
    pairs = [(text, one) for one in items for text in (one["entry"]["answer"], one["entry"]["question"], *JUNK)]
    wrong = []
    for (text, one), verdict in zip(pairs, judge("reasoning_gym", pairs, settings=PATIENT), strict=True):
        allowed = {"pass"} if is_the_answer(text, one["entry"]["answer"]) else {"fail", "unparseable", "timeout"}
        if verdict.outcome not in allowed:
            wrong.append((one["dataset"], text[:40], verdict.outcome, verdict.detail[:100]))
    assert wrong == []


@pytest.mark.slow
def test_corrected_scorers() -> None:
    game = {"question": "", "answer": "6/(1-3/4)", "metadata": {"numbers": [1, 3, 4, 6], "target": 24}}
    insertion, queens = item("string_insertion"), item("n_queens")
    inserted, board = insertion["entry"]["answer"], queens["entry"]["answer"]
    cases = [
        *(("-6/(3/4-1)", {"dataset": name, "entry": game}, "pass", 1.0) for name in ("countdown", "puzzle24")),
        *((text, {"dataset": name, "entry": game}, "fail", 0.0) for name in ("countdown", "puzzle24") for text in ("6*4*1", "9**9**9", "6+6+6+6")),
        (str(list(inserted)), insertion, "fail", 0.1), (f"[*{inserted!r}]", insertion, "fail", 0.0),
        (str([row.split() for row in board.split("\n")]), queens, "fail", 0.5), (f"[r.split() for r in {board!r}.split(chr(10))]", queens, "fail", 0.0),
    ]  # fmt: skip
    found = judge("reasoning_gym", [(text, answer) for text, answer, _, _ in cases], settings=PATIENT)
    assert [(verdict.outcome, verdict.reward) for verdict in found] == [(outcome, reward) for _, _, outcome, reward in cases]


def test_a_refused_generator_says_why() -> None:
    for name, why in REFUSED.items():
        with pytest.raises(ConfigError, match=re.escape(why)):
            create_verifier("reasoning_gym", PATIENT).check_answer({"dataset": name, "entry": {}})


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (" 4 ", "4"), ("<answer>4</answer>", "4"), ("<answer>3</answer><answer>\n4\n</answer> bye", "4"), ("<answer>3</answer> <answer>4", "3"),
        ("</answer> 4", "</answer> 4"), ("<answer>4", "<answer>4"), ("<answer>" * 100_000 + "4</answer>", "4"),
    ],
)  # fmt: skip
def test_the_last_tagged_answer_is_scored(completion: str, answer: str) -> None:
    assert extract_answer(completion) == answer
