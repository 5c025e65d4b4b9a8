"""Intervals of work: recorded as they happened, also when the work fails."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from posttrain import tables
from posttrain.events import EventRecorder, durations


def test_phase_records_start_length_labels_and_tokens() -> None:
    recorder = EventRecorder("rollout", "cpu 0", iteration=2, shard=1, execution="run-1")
    before = datetime.now(UTC)
    with recorder.phase("generate") as phase:
        time.sleep(0.05)
        phase.tokens = 640
    event = recorder.table().to_pylist()[0]
    assert before <= event["started_at"] <= before + timedelta(seconds=0.05)
    assert 0.05 <= (event["finished_at"] - event["started_at"]).total_seconds() < 1
    labels = {"execution": "run-1", "iteration": 2, "pool": "rollout", "device": "cpu 0", "phase": "generate", "shard": 1}
    assert labels.items() <= event.items()
    assert event["tokens"] == 640


def test_a_phase_that_raises_is_recorded_and_the_error_goes_on() -> None:
    recorder = EventRecorder("learner", "cuda:0", iteration=0)
    with pytest.raises(RuntimeError, match="boom"), recorder.phase("update"):
        raise RuntimeError("boom")
    assert recorder.table()["phase"].to_pylist() == ["update"]


def test_a_recorder_without_phases_gives_an_empty_table_that_keeps_the_contract() -> None:
    assert tables.validate(EventRecorder("verify", "cpu", 0).table(), "EVENTS").num_rows == 0


def test_durations_add_up_over_devices_and_shards_by_iteration() -> None:
    start = datetime(2025, 1, 1, tzinfo=UTC)
    labels = {"execution": None, "pool": "rollout", "device": "cpu", "tokens": 0, "shard": None}
    spans = [(0, "generate", 2.5), (0, "generate", 1.5), (0, "verify", 0.25), (1, "generate", 4.0)]
    rows = [
        labels | {"iteration": k, "phase": phase, "started_at": start, "finished_at": start + timedelta(seconds=seconds)}
        for k, phase, seconds in spans
    ]
    found = durations(tables.from_rows("EVENTS", rows)).to_pylist()
    assert [(row["iteration"], row["name"], row["value"]) for row in found] == [
        (0, "time/generate", 4.0), (0, "time/verify", 0.25), (1, "time/generate", 4.0),
    ]  # fmt: skip
