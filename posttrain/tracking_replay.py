"""Sends what runs have left behind while the store was out of reach: `python -m posttrain.tracking_replay WORKSPACE`."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from posttrain.tracking_address import check_address, default_store, store_key
from posttrain.tracking_credentials import mask_credentials
from posttrain.tracking_silence import Silence
from posttrain.tracking_spool import REFUSED_ENDING, OutageError, Spool
from posttrain.tracking_store import RunStore

logger = logging.getLogger("posttrain.tracking")
PATIENCE_S = 3_600.0


def replay_spools(tracking_uri: str, directory: Path, limit_s: float) -> int:
    """Sends the spools of all executions in `directory` that are meant for this store; returns how many operations it took.

    Raises:
        OutageError: the store is out of reach, or `limit_s` is over; what is left waits.
        OSError: a spool cannot be read or written.
    """
    end, num_applied = time.monotonic() + limit_s, 0
    for path in waiting_spools(directory):
        run = _run_of(path)
        if run is not None and run["store"] == store_key(tracking_uri):
            store = RunStore(tracking_uri, run["experiment"], run["execution"], run["run_name"], run.get("parent_execution", ""))
            num_applied += Spool(directory, path.stem).drain(store.apply, end - time.monotonic())
    return num_applied


def waiting_spools(directory: Path) -> list[Path]:
    """The files of operations that wait, of whatever store."""
    return [path for path in sorted(directory.glob("*.jsonl")) if not path.name.endswith(REFUSED_ENDING)]


def _run_of(path: Path) -> dict[str, Any] | None:
    """Which run the operations belong to: each says it; damaged ones are passed over."""
    for line in path.read_bytes().splitlines():
        try:
            run = json.loads(line)["run"]
            needed = {name: str(run[name]) for name in ("store", "experiment", "execution", "run_name")}
            return needed | {"parent_execution": str(run.get("parent_execution", ""))}
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
    return None


def main(workspace: Path) -> int:
    """Sends everything; the exit status is 1 when the store is out of reach."""
    tracking_uri, spool_directory = default_store(workspace), workspace / "spool"
    shown = mask_credentials(tracking_uri)
    check_address(tracking_uri)
    try:
        num_applied = replay_spools(tracking_uri, spool_directory, PATIENCE_S)
    except (OutageError, OSError) as error:
        logger.error("MLflow at %s is out of reach, what is left in %s still waits: %s", shown, spool_directory, error)
        return 1
    Silence.of(spool_directory, store_key(tracking_uri)).end()
    logger.info("sent %d operations to %s", num_applied, shown)
    left = [path.name for path in waiting_spools(spool_directory)]
    if left:
        logger.info("of another store, or being sent by another process: %s", ", ".join(left))
    return 0


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "workspace")))
