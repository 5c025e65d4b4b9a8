"""From inputs and overrides to effective settings, with errors that say field, value, reason and remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from posttrain.config import AdvantageSettings, GrpoSettings, LearnerSettings, RolloutSettings
from posttrain.config_base import ModelData, Settings
from posttrain.config_rules import most_steps
from posttrain.errors import ConfigError, ConfigErrors

AnySettings = TypeVar("AnySettings", bound=Settings)


def parse(kind: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Builds settings from plain values.

    Raises:
        ConfigErrors: every wrong field with its value, the reason and the remedy; an unknown key with the nearest name.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigErrors([_explain(kind, dict(item)) for item in error.errors()]) from error


def resolve(flat: Mapping[str, Any], overrides: str) -> GrpoSettings:
    """The effective settings of a GRPO launch: `resolve_as`, and the length of the learning-rate schedule."""
    settings = resolve_as(GrpoSettings, flat, overrides)
    return settings.model_copy(update={"learner": _with_schedule_length(settings)})


def resolve_as(kind: type[AnySettings], flat: Mapping[str, Any], overrides: str) -> AnySettings:
    """Effective settings of a launch: defaults, then the flat inputs (`section.field`), then `overrides` (YAML or JSON).

    Values that several sections need (temperature, token limits, seed) are set once and follow everywhere.
    """
    values: dict[str, Any] = {}
    for dotted, value in flat.items():
        section, field = dotted.split(".")
        values.setdefault(section, {})[field] = value
    for section, fields in _load_overrides(overrides).items():
        if isinstance(fields, Mapping):
            values.setdefault(section, {}).update(fields)
        else:
            values[section] = fields
    _share(kind, values)
    return parse(kind, values)


def _with_schedule_length(settings: GrpoSettings) -> LearnerSettings:
    """A constant rate has no length, so that `num_iterations` does not spoil its cache."""
    learner = settings.learner
    if learner.total_steps or learner.lr_scheduler.startswith("constant"):
        return learner
    return learner.model_copy(update={"total_steps": most_steps(settings)})


def _share(kind: type[Settings], values: dict[str, Any]) -> None:
    """Fills in what several sections need, from values that can be used; `parse` explains those that cannot."""
    if any(not isinstance(fields, dict) for fields in values.values()):
        return
    try:
        data = _section(kind, "data").model_validate(values.get("data", {}))
    except ValidationError:
        return
    if not isinstance(data, ModelData):
        return
    rollout, advantage = values.get("rollout", {}), values.get("advantage", {})
    shared = {
        "max_model_tokens": data.context_tokens,
        "max_completion_tokens": data.max_completion_tokens,
        "trust_remote_code": data.trust_remote_code,
        "temperature": rollout.get("temperature", RolloutSettings().temperature),
        "scaling": advantage.get("scaling", AdvantageSettings().scaling),
        "seed": values.get("loop", {}).get("seed", 0),
    }
    for section in ("rollout", "learner", "warm_start", "pairs"):
        if section in kind.model_fields:
            own = _section(kind, section).model_fields
            values[section] = {name: value for name, value in shared.items() if name in own} | values.get(section, {})


def _section(kind: type[Settings], name: str) -> type[Settings]:
    section = kind.model_fields[name].annotation
    assert isinstance(section, type) and issubclass(section, Settings)
    return section


def _load_overrides(overrides: str) -> dict[str, Any]:
    if overrides.strip() in ("", "None"):
        return {}
    try:
        loaded = yaml.load(overrides, Loader=_UniqueKeys)  # noqa: S506  a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError("overrides", overrides, f"not YAML or JSON ({error})", "Example: {learner: {kl_coef: 0.01}}") from error
    if loaded is None:  # `None` in YAML, `null` in JSON, or only a comment
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError("overrides", overrides, "not a mapping of sections", "Example: {learner: {kl_coef: 0.01}}")
    return loaded


class _UniqueKeys(yaml.SafeLoader):
    """A SafeLoader that refuses a key written twice: YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for number, key in enumerate(keys) if key in keys[:number]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _explain(kind: type[Settings], item: Mapping[str, Any]) -> ConfigError:
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    field = ".".join(str(part) for part in item["loc"]) or kind.__name__
    if item["type"] == "extra_forbidden":
        return ConfigError(field, item["input"], "no such setting", _nearest(kind, item["loc"]))
    return ConfigError(field, item["input"], str(item["msg"]), "Correct the value.")


def _nearest(kind: type[Settings], location: tuple[Any, ...]) -> str:
    for part in location[:-1]:
        annotation = kind.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            kind = annotation
    names = list(kind.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."


def flatten(settings: Settings) -> dict[str, str]:
    """`section.field` → value as text, for MLflow parameters; lists and mappings as JSON."""
    flat: dict[str, str] = {}
    for name, value in settings.model_dump(mode="json").items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": _text(item) for inner, item in value.items()})
        else:
            flat[name] = _text(value)
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
