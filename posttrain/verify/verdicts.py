"""The six verdicts, and the frame in which a verifier judges one completion after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from posttrain.errors import ConfigError, VerificationError
from posttrain.verify.base import MAX_DETAIL_CHARACTERS, Verdict, VerificationRequest

Judge = Callable[[VerificationRequest], Verdict]


def passed(detail: str = "", reward: float = 1.0) -> Verdict:
    """The completion solves its prompt."""
    return Verdict("pass", reward, clean(detail), 0.0)


def failed(detail: str, reward: float = 0.0) -> Verdict:
    """The completion was judged and does not solve its prompt; a scorer may pay it in part."""
    return Verdict("fail", reward, clean(detail), 0.0)


def timed_out(detail: str) -> Verdict:
    """Judging the completion took longer than allowed."""
    return Verdict("timeout", 0.0, clean(detail), 0.0)


def unparseable(detail: str) -> Verdict:
    """The completion holds no answer of the expected form."""
    return Verdict("unparseable", 0.0, clean(detail), 0.0)


def errored(detail: str) -> Verdict:
    """The verifier failed, not the completion: there is no reward."""
    return Verdict("error", None, clean(detail), 0.0)


def abstained(detail: str) -> Verdict:
    """The completion is not this verifier's business: there is no reward, and nothing went wrong."""
    return Verdict("abstain", None, clean(detail), 0.0)


def clean(detail: str) -> str:
    """Text that any table, log or page can hold: no control characters, no lone surrogates, cut to size."""
    if len(detail) > MAX_DETAIL_CHARACTERS:
        detail = detail[: MAX_DETAIL_CHARACTERS - 1] + "…"
    if detail.isprintable():
        return detail
    text = detail.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def guarded(check_answer: Callable[[Any], None], judge: Judge) -> Judge:
    """`judge` that turns a fault of its own, or an answer of the wrong shape, into outcome `error`.

    Seconds are those that `judge` states, of the executions alone, else those it took.
    """

    def judge_safely(request: VerificationRequest) -> Verdict:
        started = time.monotonic()
        try:
            check_answer(request.answer)
            verdict = judge(request)
        except VerificationError:
            raise  # verification as a whole is impossible here
        except ConfigError as error:
            verdict = errored(str(error))
        except Exception as error:  # any fault of a verifier costs one verdict, never the shard and never a reward of 0
            verdict = errored(f"{type(error).__name__}: {error}")
        return verdict if verdict.seconds else replace(verdict, seconds=time.monotonic() - started)

    return judge_safely


def collect(verdicts: Iterable[Verdict], requests: Sequence[VerificationRequest], name: str) -> list[Verdict]:
    """The verdicts of all requests, with progress shown."""
    from posttrain.progress import progress

    shown: Iterator[Verdict] = progress(verdicts, f"verify {name}", len(requests), "completion")
    return list(shown)
