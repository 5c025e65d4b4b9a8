"""ROLLOUTS and PROMPTS to VERDICTS and METRICS."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain import tables
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, ContractError, VerificationError
from posttrain.verify.metrics import verdict_metrics
from posttrain.verify.score import overlong_penalty
from tests.verify.rollout_tables import named, prompt, rollout, verify

EXPRESSION = {"mode": "expression", "variable": "x", "inputs": [1, 2], "outputs": [2, 4]}
UNPARSEABLE_ANSWER = "$@!"  # math-verify cannot read it: the verifier fails, not the completion


def test_rows_of_several_verifiers_keep_their_order() -> None:
    prompts = [prompt("code", "code", EXPRESSION), prompt("exact", "exact", "yes"), prompt("number", "last_number", 3)]
    rollouts = [
        rollout("number", 0, "it is 3"), rollout("code", 0, "x+x"), rollout("exact", 1, "no"), rollout("code", 1, "x"), rollout("code", 2, "x+"),
        rollout("number", 1, ""),
    ]  # fmt: skip
    verdicts = verify(prompts, rollouts)
    assert tables.keys(verdicts) == [("number", 0), ("code", 0), ("exact", 1), ("code", 1), ("code", 2), ("number", 1)]
    assert verdicts["outcome"].to_pylist() == ["pass", "pass", "fail", "fail", "unparseable", "unparseable"]
    assert verdicts["reward"].to_pylist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert verdicts["verifier"].to_pylist() == ["last_number", "code", "exact", "code", "code", "last_number"]
    assert [verdicts["verifier_version"][row].as_py() for row in (0, 2, 5)] == ["1", "1", "1"]
    assert verdicts.schema == tables.VERDICTS


def test_the_prompt_seen_by_a_verifier_is_the_last_user_message() -> None:
    prompts = [prompt("asks", "maths", "28%", "What percent is it?"), prompt("other", "maths", "28%", "How much is it?")]
    assert verify(prompts, [rollout("asks", 0, "28"), rollout("other", 0, "28")])["outcome"].to_pylist() == ["pass", "fail"]


def test_a_row_that_was_not_judged_has_no_reward_and_is_counted() -> None:
    """TRL PR 5775: a row that nobody scored was counted as 0 and dragged its group down."""
    prompts = [prompt("good", "last_number", 3), prompt("bad", "maths", UNPARSEABLE_ANSWER)]
    verdicts = verify(
        prompts,
        [
            rollout("good", 0, "3"),
            rollout("good", 1, "4"),
            rollout("bad", 0, "3"),
            rollout("good", 2, "3", finish_reason="aborted"),
        ],
    )
    assert verdicts["outcome"].to_pylist() == ["pass", "fail", "error", "error"]
    assert verdicts["reward"].to_pylist() == [1.0, 0.0, None, None]
    metrics = named(verdict_metrics(verdicts, 7))
    assert metrics["verify/num_unjudged"] == 2
    assert metrics["verify/reward_mean"] == 0.5
    assert metrics["verify/error_share"] == 0.5


def test_too_many_errors_stop_the_task_and_name_the_rows() -> None:
    prompts = [prompt("good", "last_number", 3), prompt("bad", "maths", UNPARSEABLE_ANSWER)]
    rollouts = [rollout("good", 0, "3"), rollout("good", 1, "3"), rollout("bad", 4, "3"), rollout("bad", 5, "3")]
    with pytest.raises(VerificationError, match=r"2 of 4 .*0\.4.*bad/4, bad/5.*cannot be parsed"):
        verify(prompts, rollouts, VerifySettings(max_error_share=0.4))
    assert verify(prompts, rollouts, VerifySettings(max_error_share=0.5)).num_rows == 4


def test_aborted_completions_are_no_verifier_errors() -> None:
    rollouts = [rollout("good", 0, "3"), rollout("good", 1, "", 0, finish_reason="aborted")]
    verdicts = verify([prompt("good", "last_number", 3)], rollouts, VerifySettings(max_error_share=0.0))
    assert verdicts["reward"].to_pylist() == [1.0, None]


def test_the_soft_overlong_penalty_is_the_published_one() -> None:
    lengths = np.array([0, 12_288, 13_312, 14_336, 16_384, 17_000])
    assert overlong_penalty(lengths, 16_384, 4_096).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert overlong_penalty(lengths, 16_384, 0).tolist() == [0.0] * 6


def test_the_penalty_is_added_to_judged_rewards_only() -> None:
    prompts = [prompt("good", "last_number", 3), prompt("bad", "maths", UNPARSEABLE_ANSWER)]
    rollouts = [
        rollout("good", 0, "3", 60),
        rollout("good", 1, "3", 90),
        rollout("good", 2, "4", 100),
        rollout("bad", 0, "3", 100),
    ]
    verdicts = verify(prompts, rollouts, VerifySettings(max_error_share=1.0, overlong_buffer_tokens=40), cap=100)
    assert verdicts["reward"].to_pylist() == [1.0, 0.25, -1.0, None]
    assert verdicts["outcome"].to_pylist() == ["pass", "pass", "fail", "error"]


def test_a_buffer_longer_than_the_cap_is_refused() -> None:
    with pytest.raises(ConfigError, match="overlong_buffer_tokens"):
        verify([], [], VerifySettings(overlong_buffer_tokens=101), cap=100)


def test_overlong_text_is_unparseable_and_never_seen() -> None:
    verdicts = verify([prompt("p", "exact", "x")], [rollout("p", 0, "x" * 11)], VerifySettings(max_completion_characters=10))
    assert (verdicts["outcome"][0].as_py(), verdicts["reward"][0].as_py()) == ("unparseable", 0.0)


def test_a_rollout_without_its_prompt_is_named() -> None:
    with pytest.raises(ContractError, match="'lost'") as caught:
        verify([prompt("p", "exact", "x")], [rollout("p", 0, "x"), rollout("lost", 3, "x")])
    assert (caught.value.table, caught.value.column, caught.value.value) == ("ROLLOUTS", "prompt_id", "lost")


@pytest.mark.parametrize("answer", [b"forty two", b"NaN", b"", b"[" * 100_000])
def test_an_answer_that_is_not_json_is_named(answer: bytes) -> None:
    with pytest.raises(ContractError, match="answer is not JSON") as caught:
        verify([prompt("p", "exact", answer)], [rollout("p", 0, "x")])
    assert caught.value.row == "prompt_id='p'"


def test_an_unknown_verifier_is_refused() -> None:
    with pytest.raises(ConfigError, match="last_number"):
        verify([prompt("p", "last_numbr", 1)], [rollout("p", 0, "x")])


def test_hostile_text_survives_the_table() -> None:
    completions = ["", "\x00", "\x1b[2J", "😀" * 1000, "a" * 1_000_000, "\u202e"]
    verdicts = verify([prompt("p", "exact", "x"), prompt("c", "code", EXPRESSION)], [
        rollout(key, index, text) for key in ("p", "c") for index, text in enumerate(completions)
    ])  # fmt: skip
    assert verdicts["reward"].to_pylist() == [0.0] * 12
    assert max(map(len, verdicts["detail"].to_pylist())) <= 2_000


def test_no_rollouts_give_an_empty_table_and_counts_of_zero() -> None:
    verdicts = verify([prompt("p", "exact", "x")], [])
    assert verdicts.equals(tables.empty("VERDICTS"))
    metrics = named(verdict_metrics(verdicts, 0))
    assert metrics["verify/num_rollouts"] == 0
    assert "verify/reward_mean" not in metrics


def test_metrics_by_hand() -> None:
    rows = [
        {
            "prompt_id": "p",
            "sample_index": index,
            "outcome": outcome,
            "reward": reward,
            "detail": "",
            "seconds": seconds,
            "verifier": "v",
            "verifier_version": "1",
            "parts": [],
            "limits": "{}",
        }
        for index, (outcome, reward, seconds) in enumerate(
            [("pass", 1, 0.5), ("fail", 0.5, 1.5), ("timeout", 0, 2.0), ("error", None, 0.0)]
        )
    ]
    table = verdict_metrics(tables.from_rows("VERDICTS", rows), 3)
    metrics = named(table)
    assert set(table["iteration"].to_pylist()) == {3}
    assert metrics == {
        "verify/num_rollouts": 4, "verify/num_unjudged": 1, "verify/num_pass": 1, "verify/num_fail": 1, "verify/num_timeout": 1,
        "verify/num_unparseable": 0, "verify/num_error": 1, "verify/num_abstain": 0, "verify/abstain_share": 0.0, "verify/pass_share": 0.25, "verify/fail_share": 0.25, "verify/timeout_share": 0.25,
        "verify/unparseable_share": 0.0, "verify/error_share": 0.25, "verify/seconds_mean": 1.0, "verify/seconds_max": 2.0, "verify/reward_mean": 0.5,
    }  # fmt: skip
