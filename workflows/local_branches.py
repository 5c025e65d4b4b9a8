"""Conditions inside a dynamic that itself runs inside a branch: flytekit 1.16 needs help when it runs locally."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flytekit.core.context_manager import FlyteContextManager


@contextmanager
def outside_branch() -> Iterator[None]:
    """The body of a dynamic starts without the branch state of its caller.

    Locally a dynamic shares the execution state of the branch it was called in; the first condition inside marks that
    state as skipped when it ends, and every later node of the dynamic silently returns nothing. On a cluster each
    dynamic has a state of its own and this does nothing.
    """
    context = FlyteContextManager.current_context()
    state = context.execution_state
    if state is None or not state.is_local_execution():
        yield
        return
    own_state = state.with_params()
    object.__setattr__(own_state, "branch_eval_mode", None)
    builder = context.with_execution_state(own_state)
    builder.in_a_condition = False
    with FlyteContextManager.with_context(builder):
        yield
