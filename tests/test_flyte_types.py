"""Values keep their types through tasks, nested workflows and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from flytekit import map_task, task, workflow

import tasks  # noqa: F401  whole numbers are accepted as floats from here on
from posttrain import resolution
from posttrain.config import GrpoSettings

ROOT = Path(__file__).parent.parent


@task
def zero_or_one(n: int) -> float:
    return [1, 0.5][n]  # an int where a float is declared


@task
def total(values: list[float], scale: float | None = None) -> float:
    return sum(values) * (1 if scale is None else scale)


@task
def echo(settings: GrpoSettings) -> GrpoSettings:
    assert isinstance(settings.loop.seed, int)
    return settings


@task
def add_all(fixed: list[float], value: float) -> float:
    return value + sum(fixed)


@workflow
def mapped() -> list[float]:
    return map_task(zero_or_one)(n=[0, 1])


@workflow
def nested(settings: GrpoSettings) -> GrpoSettings:
    return echo(settings=echo(settings=settings))


def test_whole_numbers_become_floats_at_task_boundaries() -> None:
    assert mapped() == [1.0, 0.5]
    assert all(isinstance(value, float) for value in mapped())
    assert total(values=[1, 0.5], scale=2) == 3.0
    assert total(values=[1, 0.5], scale=1) == 1.5


def test_a_bool_or_a_text_is_still_no_float() -> None:
    for wrong in (True, "1"):
        with pytest.raises(TypeError):
            total(values=[wrong])


def test_integers_of_settings_stay_integers_through_nested_workflows() -> None:
    settings = resolution.resolve({"loop.seed": 2**60 + 1, "loop.prompts_per_iteration": 8}, "")
    returned = nested(settings=settings)
    assert returned == settings and returned.loop.seed == 2**60 + 1 and isinstance(returned.loop.prompts_per_iteration, int)


@pytest.mark.parametrize(("values", "expected"), [([], []), ([0.1], [3.1]), ([0.1, 0.2, 0.3], [3.1, 3.2, 3.3])])
def test_a_map_keeps_its_order_and_takes_no_elements_too(values: list[float], expected: list[float]) -> None:
    @workflow
    def mapping(values: list[float]) -> list[float]:
        return map_task(partial(add_all, fixed=[1.0, 2.0]))(value=values)

    assert mapping(values=values) == pytest.approx(expected)


def run_on_command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("pyflyte")),
        "-c",
        "flyte.config",
        "run",
        "workflows/grpo.py",
        "grpo",
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "seven"], "seven"),
        (["--loss_type", "ppo"], "ppo"),
        (["--overrides", json.dumps({"learner": {"kl_coeff": 1}})], "Did you mean 'kl_coef'?"),
        (["--overrides", json.dumps({"learner": {"learning_rate": "fast"}})], "learner.learning_rate"),
        (["--group_size", "1"], "no baseline"),
        (["--verifier", "exactly"], "exact"),
    ],
)
def test_wrong_inputs_are_refused_by_name_before_anything_runs(arguments: list[str], message: str) -> None:
    done = run_on_command_line(*arguments)
    assert done.returncode != 0
    assert message in " ".join((done.stdout + done.stderr).replace("│", " ").split())
