"""Coroutines that run concurrently with their callers on a cluster's event loop, and how callers wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future


class Tasks:
    """The tasks of one owner.  `failure` is the error that ended one of them; the owner is then of no more use."""

    def __init__(self, cluster: Cluster) -> None:
        self.failure: Exception | None = None
        self._net = cluster.net
        self._waiters: set[Future] = set()

    def spawn(self, function: Callable[..., Any], *args: Any) -> None:
        """Runs a coroutine concurrently with the caller."""

        async def guarded() -> None:
            try:
                await function(*args)
            except Exception as error:
                self.failure = error
                self.notify()

        self._net.call_soon(guarded)

    def notify(self) -> None:
        """Wakes all waiters."""
        for future in list(self._waiters):
            resolve(future)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until `is_so`.  Raises the error that ended a task."""
        while self.failure is None and not is_so():
            await self.wait(1.0)
        if self.failure is not None:
            raise self.failure

    async def wait(self, left_s: float) -> None:
        """Waits for a notification, for at most `left_s` and a second; for a second where nothing is left."""
        future = Future()
        self._waiters.add(future)
        timer = self._net.call_later(min(1.0, left_s) if left_s > 0 else 1.0, lambda: resolve(future))
        try:
            await future
        finally:
            self._waiters.discard(future)
            self._net.cancel(timer)


def resolve(future: Future) -> None:
    """Wakes whoever waits for a future; does nothing to one that is done."""
    if not future.is_done:
        future.success(None)
