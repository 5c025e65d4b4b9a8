"""From ROLLOUTS to VERDICTS: every completion judged by its prompt's verifier, in the order of the rollouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, VerificationError
from posttrain.table_checks import list_lengths
from posttrain.tables import from_rows, validate
from posttrain.verify.base import Verdict, VerificationRequest, Verifier
from posttrain.verify.batches import verify_safely
from posttrain.verify.registry import create_verifier
from posttrain.verify.requests import ABORTED, build_requests, first_equal, judged_columns
from posttrain.verify.verdicts import errored, unparseable

_MAX_NAMED = 10


def verify_rollouts(rollouts: pa.Table, prompts: pa.Table, settings: VerifySettings, *, max_completion_tokens: int) -> pa.Table:
    """Judges every completion and adds the soft penalty for overlong ones to its reward.

    Equal completions of one prompt are judged once; the verdict is copied, with 0 seconds.

    Args:
        rollouts: ROLLOUTS, or at least its `JUDGED_COLUMNS`; its order is kept.
        prompts: PROMPTS that hold at least the rollouts' prompt ids.
        max_completion_tokens: the sampler's cap, from which the overlong buffer counts back.

    Returns:
        VERDICTS. The reward is null, never 0, where the verifier failed or abstained or the engine gave the completion up.

    Raises:
        ConfigError: an unknown verifier, or an overlong buffer longer than the cap.
        ContractError: a rollout's prompt is not in `prompts`, or an answer is not JSON.
        VerificationError: more than `max_error_share` of the verdicts are errors, or the sandbox is refused here.
    """
    _check_buffer(settings, max_completion_tokens)
    table = judged_columns(rollouts)
    requests, names = build_requests(table, validate(prompts, "PROMPTS"))
    verifiers = {name: create_verifier(name, settings) for name in dict.fromkeys(names)}
    first = first_equal(table)
    verdicts: list[Verdict | None] = [_judged_unseen(request, settings) for request in requests]
    for name, verifier in verifiers.items():
        rows = [row for row, verdict in enumerate(verdicts) if verdict is None and names[row] == name and first[row] == row]
        for row, verdict in zip(rows, verify_safely(verifier, [requests[row] for row in rows]), strict=True):
            verdicts[row] = verdict
    judged = [verdict or _copy(verdicts[first[row]]) for row, verdict in enumerate(verdicts)]
    _check_errors(requests, judged, settings.max_error_share)
    penalties = overlong_penalty(list_lengths(table, "completion_ids"), max_completion_tokens, settings.overlong_buffer_tokens)
    stated = {name: _stated(verifier, settings) for name, verifier in verifiers.items()}
    return _table(requests, judged, [stated[name] for name in names], penalties)


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


def _check_buffer(settings: VerifySettings, max_completion_tokens: int) -> None:
    if settings.overlong_buffer_tokens > max_completion_tokens:
        raise ConfigError(
            "verify.overlong_buffer_tokens",
            settings.overlong_buffer_tokens,
            f"it is longer than the cap of {max_completion_tokens} tokens",
            "Choose a buffer within the cap, or 0.",
        )


def _judged_unseen(request: VerificationRequest, settings: VerifySettings) -> Verdict | None:
    """The verdict on a completion that no verifier should see."""
    if request.finish_reason == ABORTED:
        return errored("the engine gave this completion up")
    if len(request.completion) > settings.max_completion_characters:
        return unparseable(f"the completion is longer than {settings.max_completion_characters} characters")
    return None


def _copy(verdict: Verdict | None) -> Verdict:
    assert verdict is not None  # the first of its equals
    return replace(verdict, seconds=0.0)


def _check_errors(requests: Sequence[VerificationRequest], verdicts: Sequence[Verdict], max_share: float) -> None:
    """Of the completions that were to be judged: what was aborted, or what a verifier abstained from, counts on neither side."""
    seen = [
        row
        for row, (request, verdict) in enumerate(zip(requests, verdicts, strict=True))
        if request.finish_reason != ABORTED and verdict.outcome != "abstain"
    ]
    failing = [row for row in seen if verdicts[row].outcome == "error"]
    if not failing or len(failing) / len(seen) <= max_share:
        return
    named = ", ".join(f"{requests[row].prompt_id}/{requests[row].sample_index}" for row in failing[:_MAX_NAMED])
    more = f" and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    raise VerificationError(
        f"{len(failing)} of {len(seen)} completions could not be judged, more than verify.max_error_share = {max_share}: "
        f"{named}{more}. The first says: {verdicts[failing[0]].detail}"
    )


def _stated(verifier: Verifier, settings: VerifySettings) -> dict[str, str]:
    """What the verifier says of itself, as columns of VERDICTS."""
    limits = {"max_completion_characters": settings.max_completion_characters, **verifier.limits}
    return {"verifier": verifier.name, "verifier_version": verifier.version, "limits": json.dumps(limits, sort_keys=True)}


def _table(
    requests: Sequence[VerificationRequest], verdicts: Sequence[Verdict], stated: Sequence[dict[str, str]], penalties: np.ndarray
) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for request, verdict, columns, penalty in zip(requests, verdicts, stated, penalties, strict=True):
        reward = None if verdict.reward is None else verdict.reward + float(penalty)
        key = {"prompt_id": request.prompt_id, "sample_index": request.sample_index}
        rows.append(key | asdict(verdict) | {"reward": reward} | columns)
    return from_rows("VERDICTS", rows)
