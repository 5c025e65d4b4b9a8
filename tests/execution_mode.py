"""Flyte's real execution mode without a cluster: each task's own container command as a process, against an S3 store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from flyteidl.core import dynamic_job_pb2, errors_pb2, literals_pb2
from flytekit.configuration import Config, Image, ImageConfig, S3Config, SerializationSettings
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import LiteralMap
from flytekit.tools.translator import get_serializable
from flytekit.utils.asyn import loop_manager
from s3fs import S3FileSystem

ROOT = Path(__file__).parent.parent
BUCKET = "flyte"
IMAGES = ImageConfig(
    default_image=None, images=[Image(name, f"posttrain-{name}", "test") for name in ("rollout", "train", "cpu")]
)


class TaskFailedError(Exception):
    """The task wrote an error document; `kind` is its code, `recoverable` whether Flyte would retry."""

    def __init__(self, message: str, recoverable: bool) -> None:
        self.recoverable = recoverable
        super().__init__(message)


@contextmanager
def s3_server() -> Iterator[str]:
    """A moto server on loopback with one bucket; yields its endpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_for(endpoint)
        client(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.terminate()
        server.wait(timeout=10)


def client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )


class Executor:
    """Runs tasks as a cluster would; literals go through S3, nothing is shared but the store."""

    def __init__(self, endpoint: str) -> None:
        self._s3 = client(endpoint)
        self._endpoint = endpoint
        self._calls = 0
        config = Config.auto().with_params()
        data_config = config.data_config.__class__(s3=S3Config(endpoint=endpoint, access_key_id="test", secret_access_key="test"))
        self._access = FileAccessProvider(tempfile.mkdtemp(), f"s3://{BUCKET}/raw", data_config=data_config)

    def run(self, task: Any, **inputs: Any) -> dict[str, Any]:
        """Runs one task and returns its output literals by name; inputs are Python values or literals of earlier tasks.

        Raises:
            TaskFailedError: with the message of the error document.
        """
        prefix, log = self._call(task, inputs)
        outputs = literals_pb2.LiteralMap.FromString(self._result(prefix, "outputs.pb", log))
        return dict(LiteralMap.from_flyte_idl(outputs).literals)

    def compile(self, dynamic: Any, **inputs: Any) -> dynamic_job_pb2.DynamicJobSpec:
        """Runs a dynamic and returns the graph that it hands to Flyte."""
        prefix, log = self._call(dynamic, inputs)
        return dynamic_job_pb2.DynamicJobSpec.FromString(self._result(prefix, "futures.pb", log))

    def _call(self, task: Any, inputs: dict[str, Any]) -> tuple[str, str]:
        self._calls += 1
        prefix = f"call-{self._calls}"
        self._put(f"{prefix}/inputs.pb", self._literals(task, inputs).to_flyte_idl().SerializeToString())
        return prefix, self._execute(*self._command(task, prefix))

    def _literals(self, task: Any, inputs: dict[str, Any]) -> LiteralMap:
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(self._access)) as ctx:
            literals = {}
            for name, kind in task.python_interface.inputs.items():
                value = inputs[name]
                is_literal = hasattr(value, "to_flyte_idl")
                literals[name] = (
                    value if is_literal else TypeEngine.to_literal(ctx, value, kind, TypeEngine.to_literal_type(kind))
                )
        return LiteralMap(literals)

    def _command(self, task: Any, prefix: str) -> tuple[list[str], dict[str, str]]:
        settings = SerializationSettings(IMAGES, project="p", domain="d", version="v")
        container = get_serializable(OrderedDict(), settings, task).template.container
        values = {
            "{{.input}}": f"s3://{BUCKET}/{prefix}/inputs.pb",
            "{{.outputPrefix}}": f"s3://{BUCKET}/{prefix}/out",
            "{{.rawOutputDataPrefix}}": f"s3://{BUCKET}/raw/{prefix}",
            "{{.checkpointOutputPrefix}}": f"s3://{BUCKET}/{prefix}/check",
            "{{.prevCheckpointPrefix}}": '""',
        }
        return [values.get(argument, argument) for argument in container.args], dict(container.env or {})

    def _execute(self, command: list[str], container_environment: dict[str, str]) -> str:
        binary = Path(sys.executable).with_name(command[0])
        with tempfile.TemporaryDirectory() as workspace:
            environment = (
                os.environ
                | container_environment
                | {
                    "FLYTE_AWS_ENDPOINT": self._endpoint,
                    "FLYTE_AWS_ACCESS_KEY_ID": "test",
                    "FLYTE_AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_DEFAULT_REGION": "us-east-1",
                    "POSTTRAIN_WORKSPACE": workspace,
                    "PYTHONPATH": str(ROOT),
                    "FLYTE_INTERNAL_EXECUTION_ID": "execution-1",
                    "FLYTE_INTERNAL_EXECUTION_PROJECT": "p",
                    "FLYTE_INTERNAL_EXECUTION_DOMAIN": "d",
                }
            )
            done = subprocess.run(
                [str(binary), *command[1:]],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=180,
                check=False,
            )
        return done.stdout

    def _result(self, prefix: str, name: str, log: str) -> bytes:
        names = {item["Key"] for item in self._s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/out").get("Contents", [])}
        if f"{prefix}/out/error.pb" in names:
            document = errors_pb2.ErrorDocument.FromString(self._get(f"{prefix}/out/error.pb"))
            raise TaskFailedError(document.error.message, document.error.kind == errors_pb2.ContainerError.RECOVERABLE)
        if f"{prefix}/out/{name}" not in names:
            raise AssertionError(f"the task wrote neither {name} nor an error, but {names}:\n{log}")
        return self._get(f"{prefix}/out/{name}")

    def to_python(self, literal: Any, kind: Any) -> Any:
        """A literal as the Python value that a task would see."""
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(self._access)) as ctx:
            value = TypeEngine.to_python_value(ctx, literal, kind)
            if hasattr(value, "download"):
                value.download()
        return value

    def close(self) -> None:
        """Closes the connections that flytekit keeps open until its loop dies, noisily, with the process."""
        for file_system in S3FileSystem._cache.values():
            if file_system._s3 is not None:
                loop_manager.run_sync(file_system._s3.__aexit__, None, None, None)
        S3FileSystem.clear_instance_cache()

    def _put(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    def _get(self, key: str) -> bytes:
        return self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def _wait_for(endpoint: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
