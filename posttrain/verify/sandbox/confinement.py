"""What the fork server gives up before it serves, by level of isolation; see docs/verification.md for what each promises."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from posttrain.verify.sandbox import filesystem, landlock, namespaces, rights
from posttrain.verify.sandbox.seccomp import Filters


class Confined(NamedTuple):
    """The filters in force, whether the server sees no processes but its own children, and whether these have a scratch."""

    filters: Filters
    own_processes: bool
    has_scratch: bool


def confine(config: Mapping[str, Any], control: socket.socket) -> Confined:
    """Confines this process and all its children at `config["level"]`; returns in a child of the calling process.

    Raises:
        Refused, OSError: the kernel does not allow it; `system_calls.is_refusal` tells a refusal from a shortage.
    """
    idle_bytes, level = rights.address_space_bytes(), config["level"]
    user = namespaces.enter_namespaces() if level == "namespaces" else 0
    _continue_in_child(control)
    own_processes = level in ("namespaces", "bubblewrap")  # bubblewrap made its namespaces before it started this process
    if level == "namespaces":
        filesystem.enter_new_root(config["packages"], config["limits"]["scratch_mib"], user)
    if user:
        rights.become(user)
    if level == "landlock":
        landlock.restrict(filesystem.visible_paths(config["packages"]), config["import_paths"], filesystem.DEVICES)
    rights.check_readable(config["packages"])
    has_scratch = own_processes and os.path.isdir(filesystem.SCRATCH)
    os.chdir(filesystem.SCRATCH if has_scratch else os.path.dirname(os.__file__))
    rights.limit_resources(config["limits"], idle_bytes, own_processes)
    rights.drop_capabilities()
    rights.die_with_parent()
    filters = Filters(read_only=not has_scratch)
    filters.install_for_server()
    return Confined(filters, own_processes, has_scratch)


def _continue_in_child(control: socket.socket) -> None:
    """Returns in a child; this process ends the child, and with it all that it started, when the other side has gone."""
    child = os.fork()
    if child == 0:
        return
    events = select.poll()
    events.register(control, 0)  # nothing but its end
    events.register(os.pidfd_open(child), select.POLLIN)
    events.poll()
    os.kill(child, signal.SIGKILL)
    os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
