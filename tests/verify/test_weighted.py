"""Weighted sums, abstaining, and what becomes of both in advantages and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from posttrain import tables
from posttrain.advantages import num_trainable_groups, score
from posttrain.config import AdvantageSettings, EvaluationSettings
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, VerificationError
from posttrain.evaluation import summarise
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.exact import ExactVerifier
from posttrain.verify.metrics import verdict_metrics
from posttrain.verify.registry import create_verifier
from posttrain.verify.weighted import WeightedVerifier
from tests.verify.judging import judge
from tests.verify.rollout_tables import named, prompt, rollout, rollouts_of, verify

OWN = VerifySettings(timeout_s=20, max_error_share=1.0, plugins="vowels=tests.verify.own_verifiers:Vowels")
FORM = {"verifier": "format", "weight": 0.1, "answer": {"pattern": r"Answer: \d+"}}
CORRECT = {"name": "correct", "verifier": "last_number", "weight": 1.0, "answer": 42}
VOWELS = {"verifier": "vowels", "weight": 2.0, "answer": "vowels"}


def parts(*each: dict[str, Any]) -> dict[str, Any]:
    return {"parts": list(each)}


def test_rewards_are_summed_by_weight_and_the_heaviest_part_decides() -> None:
    completions = ["Answer: 42", "it is 42", "Answer: 41", "none"]
    verdicts = judge("weighted", [(text, parts(CORRECT, FORM)) for text in completions])
    assert [verdict.reward for verdict in verdicts] == pytest.approx([1.1, 1.0, 0.1, 0.0])
    assert [verdict.outcome for verdict in verdicts] == ["pass", "pass", "fail", "unparseable"]
    first, wrong_form = verdicts[0].parts, verdicts[1].parts
    assert [(part.name, part.outcome, part.reward, part.weight) for part in first] == [
        ("correct", "pass", 1.0, 1.0), ("format", "pass", 1.0, 0.1),
    ]  # fmt: skip
    assert [(part.name, part.outcome, part.reward) for part in wrong_form] == [("correct", "pass", 1.0), ("format", "fail", 0.0)]
    assert verdicts[2].detail.startswith("correct: fail 0 (expected 42, found 41); format: pass 1")


def test_of_parts_that_weigh_the_same_every_one_must_pass_and_a_penalty_decides_nothing() -> None:
    equal = parts(CORRECT, FORM | {"weight": 1.0})
    assert [verdict.outcome for verdict in judge("weighted", [("Answer: 42", equal), ("42", equal)])] == ["pass", "fail"]
    penalty = parts(
        CORRECT, {"name": "shouting", "verifier": "format", "weight": -0.5, "answer": {"pattern": "[A-Z]{5}", "match": "search"}}
    )
    calm, loud = judge("weighted", [("42", penalty), ("SHOUT 42", penalty)])
    assert (calm.outcome, calm.reward, loud.outcome, loud.reward) == ("pass", 1.0, "pass", 0.5)


def test_an_error_takes_the_reward_and_an_abstaining_part_only_its_own_share() -> None:
    answer = parts(CORRECT, VOWELS)
    verdicts = judge("weighted", [("none", parts(VOWELS)), ("none", answer), ("nan", answer), ("42", answer)], settings=OWN)
    assert [verdict.outcome for verdict in verdicts] == ["abstain", "unparseable", "error", "fail"]
    assert [verdict.reward for verdict in verdicts] == [None, 0.0, None, 1.0]
    assert [part.reward for part in verdicts[1].parts] == [0.0, None]
    assert "vowels: error (judge gave nan" in verdicts[2].detail


def test_an_abstaining_part_raises_no_other_weight() -> None:
    (verdict,) = judge("weighted", [("none", parts(FORM | {"answer": {"pattern": "none"}}, VOWELS))], settings=OWN)
    assert (verdict.outcome, verdict.reward) == ("pass", 0.1)  # not 1.0, nor 2.1


class Counting(ExactVerifier):
    """Keeps how many completions each call brought."""

    def __init__(self, settings: VerifySettings) -> None:
        super().__init__(settings)
        self.calls: list[int] = []

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        self.calls.append(len(requests))
        return super().verify(requests)


def test_each_verifier_is_called_once_for_all_rows() -> None:
    created: dict[str, Counting] = {}

    def create(name: str, settings: VerifySettings) -> Counting:
        created[name] = Counting(settings)
        return created[name]

    def exact(number: int) -> dict[str, Any]:
        return {"name": f"part{number}", "verifier": "exact", "weight": 1.0, "answer": str(number)}

    requests = [VerificationRequest("p", row, "", str(row % 2), parts(exact(0), exact(1)), "stop") for row in range(6)]
    verdicts = WeightedVerifier(VerifySettings(), create).verify(requests)
    assert created["exact"].calls == [12]
    assert [[part.outcome for part in verdict.parts] for verdict in verdicts] == [["pass", "fail"], ["fail", "pass"]] * 3


def test_version_and_limits_tell_those_of_the_parts() -> None:
    verdicts = verify([prompt("p", "weighted", parts(CORRECT, FORM))], [rollout("p", 0, "42")])
    assert verdicts["verifier"].to_pylist() == ["weighted"]
    assert verdicts["verifier_version"].to_pylist() == ["1 (format 1, last_number 1)"]
    assert verdicts["limits"].to_pylist() == ['{"format": {}, "last_number": {}, "max_completion_characters": 2000000}']


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({}, "'parts' is missing"), (parts(), "empty"), ({"parts": "x"}, "not a list"), (parts({"verifier": "exact"}), "'weight' is missing"),
        (parts(CORRECT, CORRECT), "same name"), (parts(CORRECT | {"weight": "1"}), "not a finite number"), (parts(CORRECT | {"weight": True}), "not a finite"),
        (parts(CORRECT | {"verifier": "weighted"}), "single verifier"), (parts(CORRECT | {"verifier": "exactly"}), "no such verifier"),
        (parts(CORRECT | {"name": "a/b"}), "letters, digits"), (parts(CORRECT | {"answer": "x"}), "'correct': it is not one number"),
        (parts("exact"), "not a mapping"), (parts(CORRECT | {"weight": -1e101}), "beyond ±1e.100"),
    ],
)  # fmt: skip
def test_a_sum_of_the_wrong_shape_is_refused_and_never_scored(answer: Any, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        create_verifier("weighted", VerifySettings()).check_answer(answer)
    (verdict,) = judge("weighted", [("42", answer)])
    assert (verdict.outcome, verdict.reward) == ("error", None)


def test_a_sum_beyond_what_advantages_take_is_an_error_at_once() -> None:
    answer = parts(CORRECT | {"weight": 9e99}, CORRECT | {"name": "again", "weight": 9e99})
    verdicts = verify([prompt("p", "weighted", answer)], rollouts_of("p", ["42", "41"]))
    assert verdicts["outcome"].to_pylist() == ["error", "fail"]
    assert verdicts["reward"].to_pylist() == [None, 0.0]
    assert "the reward 1.8e+100, which is beyond ±1e+100" in verdicts["detail"].to_pylist()[0]


def test_each_part_has_its_own_metrics() -> None:
    prompts = [
        prompt("p", "weighted", parts(CORRECT, FORM)),
        prompt("q", "weighted", parts(CORRECT, VOWELS)),
        prompt("r", "exact", "x"),
    ]
    rows = [
        rollout("p", 0, "Answer: 42"),
        rollout("p", 1, "Answer: 1"),
        rollout("q", 0, "none"),
        rollout("q", 1, "nan"),
        rollout("r", 0, "x"),
    ]
    metrics = named(verdict_metrics(verify(prompts, rows, OWN), 1))
    apart = {name: value for name, value in metrics.items() if name.count("/") == 2}
    assert apart == {
        "verify/correct/num_error": 0, "verify/correct/num_abstain": 0, "verify/correct/pass_share": 0.25, "verify/correct/reward_mean": 0.25,
        "verify/format/num_error": 0, "verify/format/num_abstain": 0, "verify/format/pass_share": 1.0, "verify/format/reward_mean": 1.0,
        "verify/vowels/num_error": 1, "verify/vowels/num_abstain": 1, "verify/vowels/pass_share": 0.0,
    }  # fmt: skip
    assert metrics["verify/num_unjudged"] == metrics["verify/num_error"] == 1 and metrics["verify/num_abstain"] == 0


def test_who_abstained_has_no_place_in_the_baseline() -> None:
    """An unscored row counted as 0 gives [+0.866, −0.866, −0.866, +0.866]."""
    prompts = [prompt("p", "vowels", "vowels"), prompt("nobody", "vowels", "vowels")]
    rows = [*rollouts_of("p", ["aei", "bcd", "none", "aei"]), *rollouts_of("nobody", ["none"] * 4)]
    verdicts = verify(prompts, rows, OWN)
    assert verdicts["reward"].to_pylist() == [1.0, 0.0, None, 1.0, *[None] * 4]
    assert verdicts["outcome"].to_pylist()[2:5] == ["abstain", "pass", "abstain"]
    scored = score(tables.from_rows("ROLLOUTS", rows), verdicts, AdvantageSettings())
    advantages = scored["advantage"].to_pylist()
    assert advantages[2] is None and advantages[4:] == [None] * 4
    assert [advantages[row] for row in (0, 1, 3)] == pytest.approx([0.577, -1.155, 0.577], abs=1e-3)
    assert num_trainable_groups(verdicts) == 1
    metrics = named(verdict_metrics(verdicts, 1))
    assert (metrics["verify/num_abstain"], metrics["verify/num_unjudged"], metrics["verify/num_error"]) == (5, 5, 0)
    assert metrics["verify/abstain_share"] == 0.625 and metrics["verify/reward_mean"] == pytest.approx(2 / 3)


def test_who_abstained_counts_on_neither_side_of_the_error_share() -> None:
    prompts = [prompt("p", "vowels", "vowels")]
    rows = rollouts_of("p", ["none", "none", "none", "aei", "nan"])
    strict = OWN.model_copy(update={"max_error_share": 0.4})  # 1 of 5 would pass, 1 of 2 does not
    with pytest.raises(VerificationError, match="1 of 2 completions.*p/4"):
        verify(prompts, rows, strict)
    assert verify(prompts, rows[:4], OWN.model_copy(update={"max_error_share": 0.0})).num_rows == 4


def test_pass_rates_leave_out_who_abstained() -> None:
    verdicts = verify([prompt("p", "vowels", "vowels")], rollouts_of("p", ["aei", "none", "bcd", "none"]), OWN)
    settings = {"num_samples": 4, "pass_at": [1]}

    metrics = named(summarise(verdicts, verdicts, EvaluationSettings(**settings), 1))
    assert metrics["eval/pass_at_1"] == 0.5 and metrics["eval/num_unjudged"] == 4
