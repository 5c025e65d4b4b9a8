"""What a cluster sees: everything registers, names are stable, inputs are ones that the console renders."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from flytekit.configuration import SerializationSettings
from flytekit.models.types import SimpleType
from flytekit.tools.translator import get_serializable

from posttrain import resolution
from posttrain.config import GrpoSettings
from posttrain.config_dpo import DpoSettings, IterativeDpoSettings
from tasks import launch_dpo
from tasks.launch import FLAT_INPUTS
from tests.execution_mode import IMAGES, ROOT
from workflows.collect_preferences import collect_preferences
from workflows.dpo import dpo
from workflows.dpo_sweep import dpo_sweep
from workflows.grpo import grpo
from workflows.iterative_dpo import iterative_dpo

# Names under which users find, schedule and cache: a change here breaks their launch plans, so it is a decision.
TASKS = {
    "branches": ["keep_policy", "no_refill"],
    "checkpoint": ["checkpoint"],
    "evaluate": ["evaluate"],
    "evaluate_pairs": ["evaluate_pairs"],
    "launch": ["launch"],
    "launch_dpo": ["launch_dpo", "launch_dpo_sweep", "launch_iterative_dpo", "launch_preferences"],
    "plan": ["plan_dpo"],
    "preferences": ["make_preferences", "prepare_preferences", "publish_preferences", "reference_policy"],
    "prepare": ["base_policy", "no_warm_start", "prepare", "warm_start"],
    "record": ["mark_failed", "record", "start_tracking"],
    "record_dpo": [
        "mark_dpo_failed", "mark_iterative_dpo_failed", "mark_sweep_failed", "start_dpo", "start_iterative_dpo", "start_sweep",
    ],
    "reference": ["reference_logprobs"],
    "reference_pairs": ["reference_pairs"],
    "report": ["report"],
    "report_dpo": ["report_dpo", "report_iterative_dpo", "report_sweep"],
    "rollouts": ["rollouts"],
    "update": ["update"],
    "update_dpo": ["update_dpo"],
    "verify": ["verify"],
}  # fmt: skip
DYNAMICS = [
    "collect.collect", "collect.evaluate_policy", "collect.refill", "collect_preferences.collect_all_pairs", "dpo.dpo_loop",
    "dpo.precompute_reference", "dpo_sweep.run_trials", "grpo.grpo_loop", "iterative_dpo.collect_pairs",
    "iterative_dpo.iterative_dpo_loop",
]  # fmt: skip
WORKFLOWS = [
    f"workflows.{name}"
    for name in (
        "collect_preferences.collect_preferences", "dpo.dpo", "dpo.prepare_dpo", "dpo.train_dpo", "dpo_sweep.dpo_sweep",
        "dpo_sweep.run_sweep", "grpo.grpo", "grpo.run_grpo", "iterative_dpo.iterative_dpo", "iterative_dpo.prepare_sampling",
        "iterative_dpo.run_iterative_dpo",
    )
]  # fmt: skip
ENTITIES = {
    "Task": sorted(
        [f"tasks.{module}.{name}" for module, names in TASKS.items() for name in names]
        + [f"workflows.{name}" for name in DYNAMICS]
    ),
    "Workflow": WORKFLOWS,
    "Launch Plan": WORKFLOWS,
}
LAUNCHED = (grpo, dpo, dpo_sweep, iterative_dpo, collect_preferences)


def test_registration_dry_run_lists_exactly_the_public_entities() -> None:
    command = [
        str(Path(sys.executable).with_name("pyflyte")), "-c", "flyte.config",
        "register", "--dry-run", "--version", "v", "--copy", "none", "workflows",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for kind, name in re.findall(r"\] (Task|Workflow|Launch Plan): (\S+)", done.stdout):
        found.setdefault(kind, []).append(name)
    assert {kind: sorted(set(names)) for kind, names in found.items()} == ENTITIES


def test_registering_needs_neither_torch_nor_vllm() -> None:
    heavy = {"torch", "vllm", "trl", "transformers", "mlflow", "matplotlib"}
    code = f"import sys, workflows.grpo, workflows.dpo_sweep, workflows.iterative_dpo; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("workflow", LAUNCHED, ids=lambda workflow: workflow.short_name)
def test_every_workflow_input_is_one_that_the_console_renders(workflow: Any) -> None:
    spec = get_serializable(OrderedDict(), SerializationSettings(IMAGES, "p", "d", "v"), workflow)
    inputs = spec.template.interface.inputs
    flat = {SimpleType.INTEGER, SimpleType.FLOAT, SimpleType.STRING, SimpleType.BOOLEAN}
    for name, variable in inputs.items():
        assert variable.type.simple in flat or variable.type.enum_type is not None, name
        assert variable.description and variable.description != name, f"input {name} has no help text"


def test_defaults_of_the_workflow_are_those_of_the_settings() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(grpo._workflow_function).parameters.items()}
    assert (
        resolution.resolve({field: defaults[name] for name, field in FLAT_INPUTS.items()}, defaults["overrides"])
        == GrpoSettings()
    )
    assert set(defaults) == {*FLAT_INPUTS, "overrides"}


@pytest.mark.parametrize(
    ("workflow", "inputs", "kind"),
    [
        (dpo, launch_dpo.DPO_INPUTS, DpoSettings),
        (iterative_dpo, launch_dpo.ITERATIVE_INPUTS, IterativeDpoSettings),
        (collect_preferences, launch_dpo.COLLECT_INPUTS, IterativeDpoSettings),
    ],
    ids=lambda value: getattr(value, "short_name", ""),
)
def test_the_flat_inputs_of_dpo_are_settings(workflow: Any, inputs: dict[str, str], kind: Any) -> None:
    parameters = inspect.signature(workflow._workflow_function).parameters
    assert set(parameters) == {*inputs, "overrides"}
    required = {"model": "policy", "preferences": "pairs.jsonl"}
    values = {name: required.get(name, parameter.default) for name, parameter in parameters.items()}
    resolution.resolve_as(kind, {field: values[name] for name, field in inputs.items()}, "")
