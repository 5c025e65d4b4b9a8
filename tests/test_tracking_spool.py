"""The spool without a server: nobody waits for another's contact, nothing is lost, nothing stops training."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from posttrain.tracking_silence import FIRST_SILENCE_S, LONGEST_SILENCE_S, Silence
from posttrain.tracking_spool import Operation, OutageError, Spool

LONG_S = 60.0


def operation(number: int) -> Operation:
    return {"kind": "text", "number": number}


def test_while_one_talks_to_the_server_others_add_without_waiting_and_it_takes_theirs_too(tmp_path: Path) -> None:
    taken: list[int] = []
    inside, go_on = threading.Event(), threading.Event()

    def slow(item: Operation) -> None:
        inside.set()
        assert go_on.wait(20)
        taken.append(item["number"])

    first, second = Spool(tmp_path, "run"), Spool(tmp_path, "run")
    first.append(operation(0))
    talking = threading.Thread(target=first.drain, args=(slow, LONG_S))
    talking.start()
    assert inside.wait(20)
    started = time.monotonic()
    for number in (1, 2):
        second.append(operation(number))
        assert second.drain(lambda _: pytest.fail("the turn is taken"), LONG_S) == 0
    assert time.monotonic() - started < 2
    go_on.set()
    talking.join(20)
    assert taken == [0, 1, 2]
    assert len(second) == 0


def test_a_slow_server_holds_training_no_longer_than_the_limit(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "run")
    for number in range(20):
        spool.append(operation(number))
    with pytest.raises(OutageError, match="slow"):
        spool.drain(lambda _: time.sleep(0.1), 0.45)
    assert 12 <= len(spool) <= 16
    numbers: list[int] = []
    assert spool.drain(lambda item: numbers.append(item["number"]), LONG_S) == len(numbers)
    assert numbers == list(range(20 - len(numbers), 20))


@pytest.mark.parametrize("damaged", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"5", b'{"kind": "te'])
def test_a_damaged_line_is_set_aside_and_the_rest_goes_on(damaged: bytes, tmp_path: Path) -> None:
    spool = Spool(tmp_path, "run")
    spool.append(operation(0))
    with spool.path.open("ab") as sink:
        sink.write(damaged)
    spool.append(operation(1))
    numbers: list[int] = []
    assert spool.drain(lambda item: numbers.append(item["number"]), LONG_S) == 2
    assert numbers == [0, 1]
    (refused,) = spool.refused_path.read_text().splitlines()
    assert json.loads(refused)["operation"] == damaged.decode(errors="replace")


def test_without_a_usable_directory_operations_are_kept_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "spool").write_text("a file stands in the way")
    spool, numbers = Spool(tmp_path / "spool", "run"), list[int]()
    for number in range(3):
        spool.append(operation(number))
    assert len(spool) == 3
    assert caplog.text.count("kept in memory alone") == 1
    assert spool.drain(lambda item: numbers.append(item["number"]), LONG_S) == 3
    assert (numbers, len(spool)) == ([0, 1, 2], 0)


def test_what_was_kept_in_memory_reaches_the_disk_in_order_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file stands in the way")
    spool = Spool(tmp_path / "spool", "run")
    spool.append(operation(0))
    (tmp_path / "spool").unlink()
    spool.append(operation(1))
    assert [json.loads(line)["number"] for line in spool.path.read_text().splitlines()] == [0, 1]
    assert len(spool) == 2


def test_a_silence_is_shared_and_grows_until_a_success_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "store.silence"
    assert not Silence(path).holds()
    lengths = [Silence(path).begin() for _ in range(8)]  # each by a process of its own
    assert lengths[:3] == [FIRST_SILENCE_S, 2 * FIRST_SILENCE_S, 4 * FIRST_SILENCE_S]
    assert lengths[-1] == LONGEST_SILENCE_S
    other = Silence(path)
    other.begin()
    assert Silence(path).holds()
    Silence(path).end()
    assert not other.holds()
    assert Silence(path).begin() == FIRST_SILENCE_S


@pytest.mark.parametrize(
    "content", ["", "null", "[1e400, 1]", "[" * 100_000, '["x", 2]', f"[{time.time() + 10 * LONGEST_SILENCE_S}, 3]"]
)
def test_a_damaged_silence_or_one_of_a_wrong_clock_does_not_hold(content: str, tmp_path: Path) -> None:
    (tmp_path / "store.silence").write_text(content)
    silence = Silence(tmp_path / "store.silence")
    assert not silence.holds()
    assert silence.begin() >= FIRST_SILENCE_S


def test_a_silence_that_cannot_be_written_holds_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file stands in the way")
    silence = Silence(tmp_path / "spool" / "store.silence")
    silence.begin()
    assert silence.holds()
    silence.end()
    assert not silence.holds()
