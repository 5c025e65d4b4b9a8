"""What a cluster sees: everything registers, names are stable, inputs are ones that the console renders."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

from flytekit.configuration import SerializationSettings
from flytekit.models.types import SimpleType
from flytekit.tools.translator import get_serializable

from posttrain import resolution
from posttrain.config import GrpoSettings
from tasks.launch import FLAT_INPUTS
from tests.execution_mode import IMAGES, ROOT
from workflows.grpo import grpo

# Names under which users find, schedule and cache: a change here breaks their launch plans, so it is a decision.
ENTITIES = {
    "Task": [
        "tasks.branches.keep_policy", "tasks.branches.no_refill", "tasks.checkpoint.checkpoint", "tasks.evaluate.evaluate",
        "tasks.launch.launch", "tasks.prepare.base_policy", "tasks.prepare.no_warm_start", "tasks.prepare.prepare",
        "tasks.prepare.warm_start", "tasks.record.mark_failed", "tasks.record.record", "tasks.record.start_tracking",
        "tasks.reference.reference_logprobs", "tasks.report.report", "tasks.rollouts.rollouts", "tasks.update.update",
        "tasks.verify.verify", "workflows.collect.collect", "workflows.collect.evaluate_policy", "workflows.collect.refill",
        "workflows.grpo.grpo_loop",
    ],
    "Workflow": ["workflows.grpo.grpo", "workflows.grpo.run_grpo"],
    "Launch Plan": ["workflows.grpo.grpo", "workflows.grpo.run_grpo"],
}  # fmt: skip


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
    code = f"import sys, workflows.grpo; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_every_workflow_input_is_one_that_the_console_renders() -> None:
    spec = get_serializable(OrderedDict(), SerializationSettings(IMAGES, "p", "d", "v"), grpo)
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
