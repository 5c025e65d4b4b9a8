"""From ROLLOUTS to VERDICTS: every completion judged by its prompt's verifier, in the order of the rollouts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, ContractError, VerificationError
from posttrain.table_checks import OUTCOMES, list_lengths
from posttrain.tables import from_rows, validate
from posttrain.verify.base import Verdict, VerificationRequest, Verifier
from posttrain.verify.registry import create_verifier
from posttrain.verify.verdicts import errored, unparseable

_MAX_NAMED = 10


def verify_rollouts(rollouts: pa.Table, prompts: pa.Table, settings: VerifySettings, *, max_completion_tokens: int) -> pa.Table:
    """Judges every completion and adds the soft penalty for overlong ones to its reward.

    Args:
        rollouts: ROLLOUTS; its order is kept.
        prompts: PROMPTS that hold at least the rollouts' prompt ids.
        max_completion_tokens: the sampler's cap, from which the overlong buffer counts back.

    Returns:
        VERDICTS. The reward is null, never 0, where the verifier failed or the engine gave the completion up.

    Raises:
        ConfigError: an unknown verifier, or an overlong buffer longer than the cap.
        ContractError: a rollout's prompt is not in `prompts`, or an answer is not JSON.
        VerificationError: more than `max_error_share` of the verdicts are errors, or the sandbox is refused here.
    """
    _check_buffer(settings, max_completion_tokens)
    requests, names = _requests(validate(rollouts, "ROLLOUTS"), validate(prompts, "PROMPTS"))
    verifiers = {name: create_verifier(name, settings) for name in dict.fromkeys(names)}
    verdicts: list[Verdict | None] = [_judged_unseen(request, settings) for request in requests]
    for name, verifier in verifiers.items():
        rows = [row for row, verdict in enumerate(verdicts) if verdict is None and names[row] == name]
        for row, verdict in zip(rows, verifier.verify([requests[row] for row in rows]) if rows else [], strict=True):
            verdicts[row] = verdict
    judged = [verdict for verdict in verdicts if verdict is not None]
    _check_errors(requests, judged, settings.max_error_share)
    penalties = overlong_penalty(list_lengths(rollouts, "completion_ids"), max_completion_tokens, settings.overlong_buffer_tokens)
    return _table(requests, judged, [verifiers[name] for name in names], penalties)


def overlong_penalty(num_tokens: np.ndarray, max_completion_tokens: int, buffer_tokens: int) -> np.ndarray:
    """Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13): 0 up to cap − buffer, then linear down to −1 at the cap.

    Args:
        num_tokens: int64 of shape (num_rows,), tokens of each completion.
        buffer_tokens: 0 switches the penalty off.

    Returns:
        float64 of shape (num_rows,), between −1 and 0.
    """
    if not buffer_tokens:
        return np.zeros(len(num_tokens))
    return np.clip((max_completion_tokens - buffer_tokens - num_tokens) / buffer_tokens, -1.0, 0.0)


def verdict_metrics(verdicts: pa.Table, iteration: int) -> pa.Table:
    """METRICS of a VERDICTS table: counts and shares of outcomes, mean reward of judged rows, abstained rows, seconds."""
    outcomes = validate(verdicts, "VERDICTS")["outcome"].to_pylist()
    rewards = verdicts["reward"].drop_null().to_numpy()
    seconds = verdicts["seconds"].to_numpy()
    values: dict[str, float] = {"num_rollouts": len(outcomes), "num_abstained": verdicts["reward"].null_count}
    values |= {f"num_{outcome}": outcomes.count(outcome) for outcome in OUTCOMES}
    if outcomes:
        values |= {f"{outcome}_share": outcomes.count(outcome) / len(outcomes) for outcome in OUTCOMES}
        values |= {"seconds_mean": seconds.mean(), "seconds_max": seconds.max()}
    if len(rewards):
        values["reward_mean"] = rewards.mean()
    rows = [{"iteration": iteration, "name": f"verify/{name}", "value": float(value)} for name, value in values.items()]
    return from_rows("METRICS", rows)


def _check_buffer(settings: VerifySettings, max_completion_tokens: int) -> None:
    if settings.overlong_buffer_tokens > max_completion_tokens:
        raise ConfigError(
            "verify.overlong_buffer_tokens",
            settings.overlong_buffer_tokens,
            f"it is longer than the cap of {max_completion_tokens} tokens",
            "Choose a buffer within the cap, or 0.",
        )


def _requests(rollouts: pa.Table, prompts: pa.Table) -> tuple[list[VerificationRequest], list[str]]:
    """One request for each rollout, and the name of its verifier."""
    columns = ("prompt_id", "messages", "verifier", "answer")
    known = {row["prompt_id"]: row for row in prompts.select(columns).to_pylist()}
    requests: list[VerificationRequest] = []
    names: list[str] = []
    answers: dict[str, Any] = {}
    for row in rollouts.select(["prompt_id", "sample_index", "completion", "finish_reason"]).to_pylist():
        prompt = known.get(row["prompt_id"])
        if prompt is None:
            where, why = f"sample_index={row['sample_index']}", "no prompt of this id is in PROMPTS"
            remedy = "Verify with the prompts that the rollouts were sampled from."
            raise ContractError("ROLLOUTS", "prompt_id", where, row["prompt_id"], why, remedy)
        if row["prompt_id"] not in answers:
            answers[row["prompt_id"]] = _decode_answer(prompt)
        question = _last_user_message(prompt["messages"])
        requests.append(VerificationRequest(**row, prompt=question, answer=answers[row["prompt_id"]]))
        names.append(prompt["verifier"])
    return requests, names


def _decode_answer(prompt: Mapping[str, Any]) -> Any:
    try:
        return json.loads(prompt["answer"], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        row = f"prompt_id={prompt['prompt_id']!r}"
        why = f"the answer is not JSON ({error})"
        raise ContractError("PROMPTS", "answer", row, prompt["answer"], why, 'A text needs quotes: "42".') from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _last_user_message(messages: Sequence[Mapping[str, str]]) -> str:
    return next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")


def _judged_unseen(request: VerificationRequest, settings: VerifySettings) -> Verdict | None:
    """The verdict on a completion that no verifier should see."""
    if request.finish_reason == "aborted":
        return errored("the engine gave this completion up")
    if len(request.completion) > settings.max_completion_characters:
        return unparseable(f"the completion is longer than {settings.max_completion_characters} characters")
    return None


def _check_errors(requests: Sequence[VerificationRequest], verdicts: Sequence[Verdict], max_share: float) -> None:
    seen = [number for number, request in enumerate(requests) if request.finish_reason != "aborted"]
    failing = [number for number in seen if verdicts[number].outcome == "error"]
    if not failing or len(failing) / len(seen) <= max_share:
        return
    named = ", ".join(f"{requests[number].prompt_id}/{requests[number].sample_index}" for number in failing[:_MAX_NAMED])
    more = f" and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    raise VerificationError(
        f"{len(failing)} of {len(seen)} completions could not be judged, more than verify.max_error_share = {max_share}: "
        f"{named}{more}. The first says: {verdicts[failing[0]].detail}"
    )


def _table(
    requests: Sequence[VerificationRequest], verdicts: Sequence[Verdict], verifiers: Sequence[Verifier], penalties: np.ndarray
) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for request, verdict, verifier, penalty in zip(requests, verdicts, verifiers, penalties, strict=True):
        if verdict.reward is not None:
            verdict = replace(verdict, reward=float(verdict.reward) + float(penalty))
        rows.append({
            "prompt_id": request.prompt_id, "sample_index": request.sample_index, "outcome": verdict.outcome,
            "reward": verdict.reward, "detail": verdict.detail, "seconds": verdict.seconds,
            "verifier": verifier.name, "verifier_version": verifier.version,
        })  # fmt: skip
    return from_rows("VERDICTS", rows)
