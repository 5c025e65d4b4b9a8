"""Errors that say what is wrong, with which value, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class PosttrainError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(PosttrainError):
    """A setting cannot be used. Names the field, the value, the reason and the remedy."""

    def __init__(self, field: str, value: object, why: str, remedy: str) -> None:
        self.field, self.value, self.why, self.remedy = field, value, why, remedy
        super().__init__(f"setting {field!r} = {value!r}: {why}. {remedy}")


class ConfigErrors(ConfigError):
    """Several settings are wrong at once; `errors` holds each one."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        self.field, self.value, self.why, self.remedy = first.field, first.value, first.why, first.remedy
        PosttrainError.__init__(self, "\n".join(str(error) for error in self.errors))


class ContractError(PosttrainError):
    """A table breaks its contract. Names the table, the column, the row and the value."""

    def __init__(self, table: str, column: str | None, row: str | None, value: object, why: str, remedy: str = "") -> None:
        self.table, self.column, self.row, self.value, self.why = table, column, row, value, why
        where = f"table {table}" + (f", column {column!r}" if column else "") + (f", row {row}" if row else "")
        shown = "" if value is None else f" (value {_shorten(value)})"
        super().__init__(f"{where}: {why}{shown}." + (f" {remedy}" if remedy else ""))


class PolicyError(PosttrainError):
    """A policy or trainer-state directory is incomplete, altered, unsafe or of another model."""


class FingerprintError(PolicyError):
    """An engine serves other weights than the policy directory it claims to serve."""


class EngineError(PosttrainError):
    """An engine refused a request that no retry can repair."""


class VerificationError(PosttrainError):
    """Verification as a whole cannot be trusted, for example too many verifier errors."""


class TrainingError(PosttrainError):
    """An update produced something that must not become a policy, for example a NaN loss."""


class InfrastructureError(PosttrainError):
    """A fault of the machine or a service, not of the input: a retry may succeed.

    Tasks translate it into Flyte's recoverable exception.
    """


def _shorten(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
