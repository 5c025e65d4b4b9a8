"""What the cached task `verify` depends on: completions, answers, verifiers and limits, and nothing of how they were sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import flytekit.core.local_cache
import pytest
from flytekit import task, workflow
from flytekit.core.local_cache import LocalTaskCache
from flytekit.types.file import FlyteFile

from posttrain import tables
from posttrain.config_verify import VerifySettings
from posttrain.errors import VerificationError
from posttrain.verify.registry import verifier_versions
from tasks import artifacts
from tasks.artifacts import CompletionsFile, TableFile
from tasks.verify import verify
from tests.verify.rollout_tables import NOW, prompt, rollout, rollouts_of

OWN = VerifySettings(timeout_s=20, plugins="versioned=tests.verify.own_verifiers:Versioned")
PROMPTS = [
    prompt("p", "exact", "yes"),
    prompt("q", "weighted", {"parts": [{"verifier": "versioned", "weight": 1.0, "answer": None}]}),
]
ROWS = [*rollouts_of("p", ["yes", "no", "yes"]), *rollouts_of("q", ["a", "b"])]
Rows = list[dict[str, Any]]


class Sampled(NamedTuple):
    rollouts: TableFile
    completions: CompletionsFile


@task
def sample(path: str) -> Sampled:
    """As the rollouts task gives out its table: whole, and what verification reads of it."""
    table = tables.read_table(path, "ROLLOUTS")
    return Sampled(
        artifacts.write(table, "ROLLOUTS", "sample"), artifacts.write(table, "ROLLOUTS", "sample", tables.JUDGED_COLUMNS)
    )


@workflow
def sample_and_verify(path: str, prompts: TableFile, settings: VerifySettings, versions: str) -> TableFile:
    sampled = sample(path=path)
    judged = verify(
        completions=sampled.completions, prompts=prompts, settings=settings, verifier_versions=versions, max_completion_tokens=100,
        num_wanted_groups=2, iteration=1, shard=0,
    )  # fmt: skip
    return judged.verdicts


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bool]]:
    """Runs the chain with flytekit's cache on; returns whether `verify` judged, and did not take a result of before."""
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("POSTTRAIN_TEST_VERSION", "1")
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "true")
    monkeypatch.setattr(flytekit.core.local_cache, "CACHE_LOCATION", str(tmp_path / "cache"))
    monkeypatch.setattr(LocalTaskCache, "_initialized", False)
    files = tmp_path / "workspace" / "artifacts" / "verify"

    def run(rows: Rows = ROWS, prompts: Rows = PROMPTS, settings: VerifySettings = OWN) -> bool:
        before = len(list(files.glob("*/verdicts.arrow")))
        table = tables.from_rows("PROMPTS", prompts)
        path = tables.write_table(tables.from_rows("ROLLOUTS", rows), "ROLLOUTS", tmp_path / "rollouts.arrow")
        written = artifacts.write(table, "PROMPTS", "prompts")
        result = sample_and_verify(
            path=str(path), prompts=written, settings=settings, versions=verifier_versions(table, settings)
        )
        assert tables.read_table(str(result), "VERDICTS").num_rows == len(rows)
        return len(list(files.glob("*/verdicts.arrow"))) - before == 1

    yield run
    monkeypatch.undo()
    LocalTaskCache._initialized = False  # the next user opens the cache of its own place


def changed(row: int, **values: Any) -> Rows:
    return [*ROWS[:row], ROWS[row] | values, *ROWS[row + 1 :]]


def test_how_a_completion_was_sampled_changes_nothing(judged: Callable[..., bool]) -> None:
    assert judged()
    later = {"started_at": NOW + timedelta(days=1), "finished_at": NOW + timedelta(days=2), "seed": 7, "engine": "other"}
    other = {"behavior_logprobs": [-0.7] * 3, "completion_ids": [6, 7, 8], "policy_versions": [{"version": 4, "num_tokens": 3}]}
    assert not judged(rows=[row | later | other for row in ROWS])
    assert not judged(rows=changed(1, behavior_logprobs=None))
    assert not judged(prompts=[row | {"source": "a copy"} for row in PROMPTS])


@pytest.mark.slow
def test_every_change_that_a_verdict_can_depend_on_is_judged_again(
    judged: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged()
    assert judged(rows=changed(1, completion="yes "))
    assert judged(rows=[*ROWS[:1], rollout("p", 1, "no", num_tokens=4), *ROWS[2:]])
    assert judged(rows=changed(1, finish_reason="length"))
    assert judged(prompts=[prompt("p", "exact", "no"), PROMPTS[1]])
    assert judged(prompts=[prompt("p", "format", "json"), PROMPTS[1]])
    assert judged(settings=OWN.model_copy(update={"timeout_s": 21.0}))
    assert judged(settings=OWN.model_copy(update={"max_completion_characters": 1_000}))
    monkeypatch.setenv("POSTTRAIN_TEST_VERSION", "2")
    assert judged()
    monkeypatch.setenv("POSTTRAIN_TEST_VERSION", "1")
    assert not judged()


def test_versions_are_those_of_the_verifiers_in_use_parts_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_TEST_VERSION", "7")
    table = tables.from_rows("PROMPTS", PROMPTS)
    assert verifier_versions(table, OWN) == '{"exact": "1", "versioned": "7", "weighted": "1"}'
    assert verifier_versions(table.slice(0, 1), OWN) == '{"exact": "1"}'


def test_another_version_on_the_pool_than_planned_stops_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path / "workspace"))
    files = [
        FlyteFile(str(tables.write_table(tables.from_rows(name, rows), name, tmp_path / name)))
        for name, rows in (("ROLLOUTS", ROWS[:3]), ("PROMPTS", PROMPTS[:1]))
    ]
    with pytest.raises(VerificationError, match=r'installed here are \{"exact": "1"\}.*\{"exact": "0"\}'):
        verify(
            completions=files[0], prompts=files[1], settings=VerifySettings(), verifier_versions='{"exact": "0"}', max_completion_tokens=9,
            num_wanted_groups=0, iteration=1, shard=0,
        )  # fmt: skip


def test_missing_groups_are_those_whose_rewards_do_not_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path / "workspace"))
    prompts = tables.from_rows("PROMPTS", [prompt(name, "exact", "yes") for name in ("differ", "same")])
    rows = tables.from_rows("ROLLOUTS", [*rollouts_of("differ", ["yes", "no"]), *rollouts_of("same", ["yes", "yes"])])
    done = verify(
        completions=artifacts.write(rows, "ROLLOUTS", "test"), prompts=artifacts.write(prompts, "PROMPTS", "test"), settings=VerifySettings(),
        verifier_versions=verifier_versions(prompts, VerifySettings()), max_completion_tokens=9, num_wanted_groups=3, iteration=1, shard=0,
    )  # fmt: skip
    assert done.num_missing_groups == 2
