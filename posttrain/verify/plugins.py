"""Verifiers of the user's own: found by settings or among installed entry points, checked, and run in their own processes.

The name of a verifier in a data set chooses among these; it never imports anything by itself.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse
from posttrain.verify.base import Verdict, VerificationRequest, Verifier
from posttrain.verify.own import OwnVerifier
from posttrain.verify.own_pool import OwnWorkers
from posttrain.verify.sandbox.pool import Sandbox

ENTRY_POINTS = "posttrain.verifiers"
FIELD = "verify.plugins"
BATCH = 16  # completions of one call to a verifier that takes several
_SHAPE = "Write name=package.module:Class, several separated by commas."
_REMEDY = "See `Write your own verifier` in docs/verification.md."


class PluginVerifier:
    """A user's verifier. It is asked about answers here, and judges completions in processes of its own.

    A completion on which it hangs is a `timeout`; one on which its process dies, or that it raises on, is an `error`.
    """

    def __init__(self, name: str, target: str, settings: VerifySettings) -> None:
        """Raises ConfigError when the class cannot be loaded, constructed or used."""
        self._own = load_verifier(name, target, settings)
        self._target, self._settings = target, settings
        self.name, self.version = name, self._own.version
        self.limits: Mapping[str, Any] = {"timeout_s": settings.timeout_s, **_limits(self._own)}

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError when the user's own check refuses the answer, in whatever way."""
        try:
            self._own.check_answer(answer)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            why = f"the verifier {self.name!r} refuses it ({type(error).__name__}: {error})"
            raise refuse("answer", answer, why, "Correct the answer.") from error

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the verifier does not start, or says that nothing can be verified here.
        """
        size = 1 if isinstance(self._own, OwnVerifier) else BATCH
        batches = [requests[start : start + size] for start in range(0, len(requests), size)]
        num_workers = min(len(batches), Sandbox.default_workers())
        settings = self._settings.model_dump_json()
        with (
            OwnWorkers(self.name, self._target, settings, self._settings.timeout_s, num_workers) as workers,
            ThreadPoolExecutor(num_workers) as threads,
        ):
            judged = (verdict for batch in threads.map(workers.judge, batches) for verdict in batch)
            return verdicts.collect(judged, requests, self.name)


def configured(settings: VerifySettings) -> dict[str, str]:
    """name → package.module:Class of `verify.plugins`.

    Raises:
        ConfigError: an entry of another form, or a name that occurs twice.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (text.strip() for text in settings.plugins.split(","))):
        name, _, target = (part.strip() for part in entry.partition("="))
        module, _, attribute = target.partition(":")
        if not (name and module and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise ConfigError(FIELD, entry, "it does not name a class", _SHAPE)
        if name in found:
            raise ConfigError(FIELD, entry, f"the name {name!r} occurs twice", "Give every verifier a name of its own.")
        found[name] = target
    return found


def find_target(name: str, settings: VerifySettings) -> str | None:
    """package.module:Class of the verifier called `name`, of the settings before installed entry points; None for no such one.

    Raises:
        ConfigError: as `configured`, or two installed packages have a verifier of this name.
    """
    own = configured(settings)
    if name in own:
        return own[name]
    installed = {f"{entry.module}:{entry.attr}" for entry in metadata.entry_points(group=ENTRY_POINTS, name=name)}
    if len(installed) > 1:
        why = f"several installed packages have one: {', '.join(sorted(installed))}"
        raise ConfigError("verifier", name, why, f"Choose one by {FIELD}. {_SHAPE}")
    return next(iter(installed), None)


def load_verifier(name: str, target: str, settings: VerifySettings) -> Verifier:
    """The user's class, imported, constructed and checked.

    Raises:
        ConfigError: says what is missing.
    """
    verifier = _construct(target, settings)
    try:
        missing = _missing(verifier)
    except (Exception, SystemExit) as error:  # a property runs whatever it holds
        why = f"it does not say what it is ({type(error).__name__}: {error})"
        raise ConfigError(FIELD, target, why, _REMEDY) from error
    if missing:
        why = f"it has no {', no '.join(missing)}"
        raise ConfigError(FIELD, target, why, f"name and version are texts, the others functions. {_REMEDY}")
    if verifier.name != name:
        why = f"the class calls itself {verifier.name!r}, here it is called {name!r}"
        raise ConfigError(FIELD, target, why, "Use the same name in both places.")
    try:
        json.dumps(_limits(verifier), allow_nan=False)
    except (Exception, SystemExit) as error:
        raise ConfigError(FIELD, target, f"its limits are no JSON object ({error})", _REMEDY) from error
    return verifier


def _construct(target: str, settings: VerifySettings) -> Any:
    module, _, attribute = target.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # an import runs whatever the module holds
        why = f"it cannot be imported ({type(error).__name__}: {error})"
        raise ConfigError(FIELD, target, why, f"Install it where tasks run. {_SHAPE}") from error
    try:
        return kind(settings)
    except (Exception, SystemExit) as error:
        why = f"it cannot be constructed with VerifySettings ({type(error).__name__}: {error})"
        raise ConfigError(FIELD, target, why, _REMEDY) from error


def _missing(verifier: Any) -> list[str]:
    missing = [part for part in ("name", "version") if not _is_text(getattr(verifier, part, None))]
    missing += [part for part in ("check_answer", "verify") if not callable(getattr(verifier, part, None))]
    if isinstance(verifier, OwnVerifier) and type(verifier).judge is OwnVerifier.judge:
        missing.append("judge")
    return missing


def _limits(verifier: Any) -> dict[str, Any]:
    return dict(getattr(verifier, "limits", {}))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
