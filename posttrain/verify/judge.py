"""Asks a language model for a grade: the answer names a criterion, the completion is what is graded.

The answer is {"criterion": "…", "reference": "…", "pass_score": 0.5}; only the criterion is needed. The reward is the judge's
score, from 0 to 1; from `pass_score` on the outcome is `pass`. The model is `verify.judge_model`, asked at temperature 0; where
it runs is said by POSTTRAIN_JUDGE_URL and POSTTRAIN_JUDGE_API_KEY. Grades are kept: what was asked once is not asked again.

A judge that gives no grade is `error`, without reward: out of reach, out of budget, or a reply that is no grade. A request that
the server refuses (too long for the model, or filtered) is the completion's doing, `unparseable`, if the same question about an
empty completion is answered, and else `error`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import is_number, refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.judge_cache import GradeCache, cache_file
from posttrain.verify.judge_endpoint import Endpoint, JudgeFailed, JudgeRefused, judge_key, judge_url
from posttrain.verify.judge_prompt import Case, Grade, NoGrade, cache_key, messages, read_grade

MAX_CONCURRENT = 16
_REMEDY = 'Use {"criterion": "What a good completion does.", "reference": "optional text", "pass_score": 0.5}.'


class JudgeVerifier:
    """See the module."""

    name = "judge"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self.limits: Mapping[str, Any] = {
            "judge_model": settings.judge_model,
            "judge_timeout_s": settings.judge_timeout_s,
            "judge_max_requests": settings.judge_max_requests,
            "judge_max_retries": settings.judge_max_retries,
        }

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for a wrong shape, and where no model or endpoint is named."""
        given = require_keys(answer, ("criterion",), _REMEDY, optional=("reference", "pass_score"))
        if not isinstance(given["criterion"], str) or not given["criterion"].strip():
            raise refuse("answer.criterion", given["criterion"], "it is not a text, or a blank one", _REMEDY)
        if not isinstance(given.get("reference", ""), str):
            raise refuse("answer.reference", given["reference"], "it is not a text", _REMEDY)
        pass_score = given.get("pass_score", 0.5)
        if not is_number(pass_score) or not 0 < pass_score <= 1:
            raise refuse("answer.pass_score", pass_score, "it is not above 0 and up to 1", _REMEDY)
        if not self._settings.judge_model:
            remedy = "Name the model as the endpoint knows it."
            raise refuse("verify.judge_model", "", "the verifier judge has no model to ask", remedy)
        judge_url()
        judge_key()

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            ConfigError: no endpoint is named on this machine, or none that could be asked.
        """
        with GradeCache(cache_file()) as cache, ThreadPoolExecutor(MAX_CONCURRENT) as threads:
            bench = _Bench(self._settings, cache)
            try:
                judge = verdicts.guarded(self.check_answer, lambda request: _judge(bench, request))
                return verdicts.collect(threads.map(judge, requests), requests, self.name)
            finally:
                bench.endpoint.close()


class _Bench:
    """Grades of one verification, from the cache or the endpoint; equal questions that come at once are asked once."""

    def __init__(self, settings: VerifySettings, cache: GradeCache) -> None:
        self.endpoint = Endpoint(settings)
        self._model, self._cache = settings.judge_model, cache
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def grade(self, case: Case) -> Grade:
        """Raises JudgeFailed when there is none."""
        key = cache_key(self._model, case)
        with self._locks[key]:
            known = self._cache.get(key)
            if known is not None:
                return known
            try:
                grade = read_grade(self.endpoint.ask(messages(case)), self.endpoint.hide)
            except NoGrade as error:
                raise JudgeFailed(f"the reply is no grade: {error}") from error
            self._cache.put(key, grade)
            return grade


def _judge(bench: _Bench, request: VerificationRequest) -> Verdict:
    answer = request.answer
    if not request.completion.strip():
        return verdicts.unparseable("the completion is empty")
    case = Case(request.prompt, answer["criterion"], answer.get("reference", ""), request.completion)
    try:
        grade = bench.grade(case)
    except JudgeRefused as refusal:
        bench.grade(replace(case, completion=""))  # raises where it is not this completion that is refused
        return verdicts.unparseable(f"the judge's server refuses this completion: {refusal}")
    detail = f"score {grade.score:g}: {grade.reason}"
    solved = grade.score >= answer.get("pass_score", 0.5)
    return verdicts.passed(detail, grade.score) if solved else verdicts.failed(detail, grade.score)
