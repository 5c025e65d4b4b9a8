"""From ROLLOUTS and PROMPTS to what verifiers are asked, and which completions are asked about only once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from posttrain.errors import ContractError
from posttrain.table_checks import list_lengths
from posttrain.tables import JUDGED_COLUMNS, validate
from posttrain.verify.base import VerificationRequest
from posttrain.verify.plain_values import refuse_constant

ABORTED = "aborted"
_ROWS_AT_A_TIME = 256


def judged_columns(rollouts: pa.Table) -> pa.Table:
    """The columns of ROLLOUTS that verification reads, checked.

    Raises:
        ContractError: one of them is missing or breaks the contract.
    """
    return validate(
        rollouts.select([name for name in rollouts.column_names if name in JUDGED_COLUMNS]), "ROLLOUTS", JUDGED_COLUMNS
    )


def build_requests(rollouts: pa.Table, prompts: pa.Table) -> tuple[list[VerificationRequest], list[str]]:
    """One request for each rollout, and the name of its verifier.

    Raises:
        ContractError: a rollout's prompt is not in `prompts`, or an answer is not JSON.
    """
    known = {row["prompt_id"]: row for row in prompts.select(["prompt_id", "messages", "verifier", "answer"]).to_pylist()}
    requests: list[VerificationRequest] = []
    names: list[str] = []
    answers: dict[str, Any] = {}
    for row, num_tokens in zip(_rows(rollouts), list_lengths(rollouts, "completion_ids").tolist(), strict=True):
        prompt = known.get(row["prompt_id"])
        if prompt is None:
            where, why = f"sample_index={row['sample_index']}", "no prompt of this id is in PROMPTS"
            remedy = "Verify with the prompts that the rollouts were sampled from."
            raise ContractError("ROLLOUTS", "prompt_id", where, row["prompt_id"], why, remedy)
        if row["prompt_id"] not in answers:
            answers[row["prompt_id"]] = _decode_answer(prompt)
        question, answer = _last_user_message(prompt["messages"]), answers[row["prompt_id"]]
        requests.append(VerificationRequest(**row, prompt=question, answer=answer, num_tokens=num_tokens))
        names.append(prompt["verifier"])
    return requests, names


def first_equal(rollouts: pa.Table) -> list[int]:
    """For every row the first one of the same prompt whose completion is the same, its number of tokens and its end included.

    Those rows are judged alike, so that one verdict serves them all. An aborted completion is its own first: it is not judged.
    """
    first: dict[tuple[Any, ...], int] = {}
    found: list[int] = []
    lengths = list_lengths(rollouts, "completion_ids").tolist()
    for row, (values, num_tokens) in enumerate(zip(_rows(rollouts), lengths, strict=True)):
        digest = hashlib.sha256(values["completion"].encode()).digest()  # a long text is not kept to be compared with
        key = (values["prompt_id"], digest, values["finish_reason"], num_tokens)
        found.append(row if values["finish_reason"] == ABORTED else first.setdefault(key, row))
    return found


def _rows(rollouts: pa.Table) -> Iterator[dict[str, Any]]:
    """The columns of each row that are no list, a few rows at a time: texts as Python objects are a second copy of the shard."""
    for batch in rollouts.select(["prompt_id", "sample_index", "completion", "finish_reason"]).to_batches(_ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def _decode_answer(prompt: Mapping[str, Any]) -> Any:
    try:
        return json.loads(prompt["answer"], parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        row = f"prompt_id={prompt['prompt_id']!r}"
        why = f"the answer is not JSON ({error})"
        raise ContractError("PROMPTS", "answer", row, prompt["answer"], why, 'A text needs quotes: "42".') from error


def _last_user_message(messages: Sequence[Mapping[str, str]]) -> str:
    return next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
