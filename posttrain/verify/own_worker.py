"""A process that holds one verifier of the user's own and judges what it is sent, until its parent goes.

It talks in JSON over one socket. What the verifier prints goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.errors import VerificationError
from posttrain.verify.base import VerificationRequest
from posttrain.verify.batches import Judges, verify_safely
from posttrain.verify.plugins import load_verifier
from posttrain.verify.sandbox.rights import die_with_parent


def main() -> None:
    """Says `ready`, then answers every list of requests with a list of verdicts."""
    descriptor, name, target, settings = sys.argv[1:5]
    if sys.platform == "linux":
        die_with_parent()
    os.dup2(2, 1)
    with Connection(int(descriptor)) as parent:
        process_id = os.getpid()

        def send(reply: Any) -> None:
            if os.getpid() != process_id:  # a child of a verifier that forked; its reply would be taken for that on another row
                os._exit(1)
            parent.send_bytes(json.dumps(reply).encode())

        verifier = load_verifier(name, target, VerifySettings.model_validate_json(settings))
        send({"ready": verifier.version})
        while True:
            try:
                rows = json.loads(parent.recv_bytes())
            except EOFError:
                return
            send(_answer(verifier, [VerificationRequest(**row) for row in rows]))


def _answer(verifier: Judges, requests: Sequence[VerificationRequest]) -> list[dict[str, Any]] | dict[str, str]:
    """Sound verdicts as mappings, or that nothing can be verified. Verdicts that state no seconds share the time of the call."""
    started = time.monotonic()
    try:
        judged = verify_safely(verifier, requests, fatal=(VerificationError,))
    except VerificationError as error:
        return {"refused": str(error)}
    share = (time.monotonic() - started) / len(requests)
    return [asdict(verdict if verdict.seconds else replace(verdict, seconds=share)) for verdict in judged]
