"""Verifiers as users write them, good and bad, which tests name by `verify.plugins`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, VerificationError
from posttrain.verify import verdicts
from posttrain.verify.base import Part, Verdict, VerificationRequest
from posttrain.verify.own import OwnVerifier


class Vowels(OwnVerifier):
    """The share of vowels, for completions of letters; what the completion asks for else, it gets."""

    name = "vowels"
    version = "3"

    def check_answer(self, answer: Any) -> None:
        if answer != "vowels":
            raise ConfigError("answer", answer, "it is not 'vowels'", "Write vowels.")

    def judge(self, request: VerificationRequest) -> float | Verdict | None:
        text = request.completion
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "leave":
            os._exit(0)
        if text == "hang":
            time.sleep(600)
        if text == "nan":
            return float("nan")
        if text == "text":
            return "1.0"  # type: ignore[return-value]
        if text == "none":
            return None
        if text == "whole":
            return verdicts.unparseable("no letters")
        print("noise on standard output", text)
        return float(np.mean([letter in "aeiou" for letter in text]))


class Batches:
    """Takes several completions at once, as a reward model does; the batch that holds a bad one fails as a whole."""

    name = "batches"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self.limits = {"batch_rows": 16}

    def check_answer(self, answer: Any) -> None:
        if not isinstance(answer, int):
            raise TypeError("an int is wanted")

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        texts = [request.completion for request in requests]
        if "kill" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in texts:
            time.sleep(600)
        if "raise" in texts:
            raise RuntimeError("the model is out of memory")
        if "refuse" in texts:
            raise VerificationError("no model server")
        return [
            Verdict("pass", 1.0, f"of {len(requests)}", 0.0)
            for text in texts
            for _ in range({"twice": 2, "never": 0}.get(text, 1))
        ]


@dataclass(frozen=True)
class Explained(Verdict):
    """A verdict with one field more."""

    why: str = ""


def with_parts(*names: Any) -> Verdict:
    return Verdict("pass", 1.0, "", 0.0, tuple(Part(name, "pass", 1.0, 1.0) for name in names))


class Unsound(Batches):
    """Every way in which a verdict cannot be kept."""

    name = "unsound"

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        said = {
            "outcome": Verdict("perfect", 1.0, "", 0.0),
            "reward": Verdict("error", 1.0, "", 0.0),
            "unjudged": Verdict("fail", None, "", 0.0),
            "infinite": Verdict("pass", float("inf"), "", 0.0),
            "true": Verdict("pass", True, "", 0.0),
            "seconds": Verdict("pass", 1.0, "", -1.0),
            "type": ("pass", 1.0),
            "huge": Verdict("pass", 1e101, "", 0.0),
            "surrogate": with_parts("a \ud800"),
            "newline": with_parts("a\nb"),
            "slash": with_parts("a/b"),
            "blank": with_parts(""),
            "number": with_parts(1),
            "same": with_parts("a", "a"),
            "none": Verdict("pass", 1.0, "", 0.0, None),  # type: ignore[arg-type]
            "nones": Verdict("pass", 1.0, "", 0.0, (None,)),  # type: ignore[arg-type]
            "numpy": Verdict("pass", np.float32(0.5), "\x00", 0.0),  # type: ignore[arg-type]
            "subclass": Explained("pass", 1.0, "", 0.0, (Part("a.b-c_1", "pass", 1.0, 1),), "because"),
        }
        return [said[request.completion] for request in requests]  # type: ignore[misc]


class Forks(OwnVerifier):
    """Its rewards are what the completion says; `return` and `raise` fork before, and the child does so too."""

    name = "forks"
    version = "1"

    def judge(self, request: VerificationRequest) -> float:
        if request.completion in ("return", "raise"):
            child = os.fork()
            if child == 0 and request.completion == "raise":
                raise RuntimeError("in the child")
            if child == 0:
                return 0.25
            os.waitpid(child, 0)
            return 1.0
        return float(request.completion)


class Exits(OwnVerifier):
    """Ends the process, as a script without a guard does, where the environment says."""

    name = "exits"

    def __init__(self, settings: VerifySettings) -> None:
        super().__init__(settings)
        self.leave("made")

    @staticmethod
    def leave(place: str) -> None:
        if os.environ["POSTTRAIN_TEST_EXIT"] == place:
            sys.exit(0)

    @property
    def version(self) -> str:  # type: ignore[override]
        self.leave("version")
        return "1"

    def check_answer(self, answer: Any) -> None:
        self.leave("answer")

    def judge(self, request: VerificationRequest) -> float:
        return 1.0


class NoVersion(OwnVerifier):
    name = "no_version"

    def judge(self, request: VerificationRequest) -> float:
        return 1.0


class NoJudge(OwnVerifier):
    name = "no_judge"
    version = "1"


class NotAVerifier:
    name = "not_a_verifier"

    def __init__(self, settings: VerifySettings) -> None:
        pass


class CannotBeMade(OwnVerifier):
    name = "cannot_be_made"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        raise FileNotFoundError("weights.bin")


class StartsOnlyHere(OwnVerifier):
    """Its process ends while it is made, other than in the one that runs the tests."""

    name = "starts_only_here"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        super().__init__(settings)
        if "PYTEST_CURRENT_TEST" not in os.environ or os.environ.get("POSTTRAIN_TEST_PROCESS") != str(os.getpid()):
            os._exit(3)

    def judge(self, request: VerificationRequest) -> float:
        return 1.0


class Versioned(OwnVerifier):
    """Its version is what the environment says, as if another release were installed."""

    name = "versioned"

    @property
    def version(self) -> str:  # type: ignore[override]
        return os.environ["POSTTRAIN_TEST_VERSION"]

    def judge(self, request: VerificationRequest) -> float:
        return 1.0
