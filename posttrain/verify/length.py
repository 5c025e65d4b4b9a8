"""A reward by the number of tokens of the completion: 1 up to a bound, then linear down to 0 at another.

The answer is {"full_reward_tokens": 200, "no_reward_tokens": 400}. The other way round ({"full_reward_tokens": 400,
"no_reward_tokens": 200}) longer completions earn more. `pass` is the full reward, everything below is `fail`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest

_KEYS = ("full_reward_tokens", "no_reward_tokens")
_REMEDY = 'Use {"full_reward_tokens": 200, "no_reward_tokens": 400}.'


class LengthVerifier:
    """See the module. Reward from 0.0 to 1.0."""

    name = "length"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self.limits: Mapping[str, Any] = {}
        self._judge = verdicts.guarded(self.check_answer, _judge)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for anything but two different numbers of tokens."""
        bounds = require_keys(answer, _KEYS, _REMEDY)
        for key in _KEYS:
            if type(bounds[key]) is not int or bounds[key] < 0:
                raise refuse(f"answer.{key}", bounds[key], "it is not a whole number of tokens", _REMEDY)
        if bounds[_KEYS[0]] == bounds[_KEYS[1]]:
            raise refuse("answer", answer, "both bounds are equal: nothing lies between them", _REMEDY)

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        return [self._judge(request) for request in requests]


def length_reward(num_tokens: int, full_reward_tokens: int, no_reward_tokens: int) -> float:
    """1.0 at `full_reward_tokens`, 0.0 at `no_reward_tokens`, linear between them and constant beyond."""
    return min(1.0, max(0.0, (no_reward_tokens - num_tokens) / (no_reward_tokens - full_reward_tokens)))


def _judge(request: VerificationRequest) -> Verdict:
    reward = length_reward(request.num_tokens, *(request.answer[key] for key in _KEYS))
    detail = f"{request.num_tokens} tokens"
    return verdicts.passed(detail) if reward == 1.0 else verdicts.failed(detail, reward)
