"""What travels between tasks: tables as Arrow files, policies and trainer states as directories, cached by content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from flytekit import HashMethod, current_context
from flytekit.core.context_manager import FlyteContextManager
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from posttrain import directories, policy, tables
from posttrain.errors import InfrastructureError
from posttrain.table_checks import list_lengths
from tasks.workspace import new_path


def _hash_table(file: FlyteFile) -> str:
    with pa.memory_map(os.fspath(file)) as source:
        return tables.content_hash(pa.ipc.open_file(source).read_all())


def _hash_judged(file: FlyteFile) -> str:
    """Of what a verdict can depend on: not when, with which seed, by which engine or with which logprobs it was sampled."""
    table = read(file, "ROLLOUTS", tables.JUDGED_COLUMNS)
    num_tokens = pa.array(list_lengths(table, "completion_ids"))
    return tables.content_hash(table.drop_columns(["completion_ids"]).append_column("num_tokens", num_tokens))


def _hash_policy(directory: FlyteDirectory) -> str:
    return policy.policy_hash(local_directory(directory))


def _hash_directory(directory: FlyteDirectory) -> str:
    files = directories.hash_files(local_directory(directory), leave_out="")
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


NO_STATE = "NEW"  # a file of this name marks the trainer state before the first update

TableFile = Annotated[FlyteFile, HashMethod(_hash_table)]
CompletionsFile = Annotated[FlyteFile, HashMethod(_hash_judged)]  # the columns of ROLLOUTS that verification reads
PolicyDirectory = Annotated[FlyteDirectory, HashMethod(_hash_policy)]
StateDirectory = Annotated[FlyteDirectory, HashMethod(_hash_directory)]


def local_directory(directory: FlyteDirectory) -> Path:
    """The directory on this machine, downloaded where it is remote."""
    return Path(os.fspath(directory))


def read(file: FlyteFile, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Downloads (where remote), maps and validates a table, or these columns of it."""
    return tables.read_table(os.fspath(file), name, columns)


def read_all(files: Sequence[FlyteFile], name: str) -> list[pa.Table]:
    """Every table, in the order of the files."""
    return [read(file, name) for file in files]


def write(table: pa.Table, name: str, task: str, columns: Sequence[str] | None = None) -> FlyteFile:
    """Validates and writes a table, or these columns of it; flytekit uploads it where the run is remote."""
    file = f"{name.lower()}.arrow" if columns is None else f"{name.lower()}-part.arrow"
    return FlyteFile(str(tables.write_table(table, name, new_path(task, file), columns=columns)))


def fetch(source: str) -> str:
    """`source` itself, or a local copy of it where it is a URL of an object store (s3://…)."""
    if "://" not in source:
        return source
    local = new_path("inputs", Path(source).name)
    access = FlyteContextManager.current_context().file_access
    is_directory = access.get_filesystem_for_path(source).isdir(source)
    access.get_data(source, str(local), is_multipart=is_directory)
    return str(local)


@contextmanager
def recoverable_faults() -> Iterator[None]:
    """Translates faults of the machine into the one exception that Flyte retries; user errors pass through."""
    try:
        yield
    except InfrastructureError as error:
        raise FlyteRecoverableException(str(error)) from error
    except RuntimeError as error:
        import torch

        if isinstance(error, (torch.OutOfMemoryError, torch.distributed.DistError)):
            raise FlyteRecoverableException(f"device fault: {error}") from error
        raise


@cache
def execution_name(run_name: str) -> str:
    """Flyte's own execution name; for a local run one made of the run's name and the time, the same all through the process."""
    identifier = current_context().execution_id
    if identifier.name and identifier.name != "local":
        return identifier.name
    return f"{folder_name(run_name or 'grpo')}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def folder_name(run_name: str) -> str:
    """The run's name as one part of a path: 80 bytes at most, and never a path that leads elsewhere."""
    return re.sub(r"[^\w.-]+|^\.+", "-", run_name).encode()[:80].decode(errors="ignore")


def device_name() -> str:
    """The accelerator of this machine, or `cpu`; torch is asked only where a task runs."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def prompt_texts(prompts: FlyteFile) -> dict[str, str]:
    """The last message of every prompt by prompt_id."""
    table = read(prompts, "PROMPTS")
    return {
        key: messages[-1]["content"]
        for key, messages in zip(table["prompt_id"].to_pylist(), table["messages"].to_pylist(), strict=True)
    }
