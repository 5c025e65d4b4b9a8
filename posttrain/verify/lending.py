"""A few processes that judge, each started when it is first needed, lent to one caller at a time, replaced when it is lost."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar


class Held(Protocol):
    """What can be lent. `is_used_up` says, when it comes back, that it serves no more."""

    is_used_up: bool

    def close(self) -> None: ...


Kind = TypeVar("Kind", bound=Held)


class Lending(Generic[Kind]):
    """So many places, empty at first. A context manager that closes what they hold; thread-safe."""

    def __init__(self, num_places: int, start: Callable[[], Kind]) -> None:
        self._num_places, self._start = num_places, start
        self._places: queue.SimpleQueue[Kind | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        """Starts nothing yet."""
        for _ in range(self._num_places):
            self._places.put(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes each as it comes back."""
        for _ in range(self._num_places):
            held = self._places.get()
            if held is not None:
                held.close()

    @contextmanager
    def lend(self) -> Iterator[Kind]:
        """One that nobody else has; after an exception, or when used up, it is closed and its place is free for a new one."""
        held = self._places.get()
        try:
            held = held or self._start()
            yield held
        except BaseException:
            if held is not None:
                held.close()
            held = None
            raise
        finally:
            if held is not None and held.is_used_up:
                held.close()
                held = None
            self._places.put(held)
