"""Locks within one process and event loop, on partitions or nodes: a task waits for the one that holds the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from tolerant_client.cluster.event_loop import Future

_Key = TypeVar("_Key", bound=Hashable)


class Locks(Generic[_Key]):
    """What tasks hold."""

    def __init__(self) -> None:
        self._taken: dict[_Key, Future] = {}

    @asynccontextmanager
    async def held(self, keys: Collection[_Key]) -> AsyncIterator[bool]:
        """Holds `keys` exclusively, once all of them are free; True if it had to wait."""
        has_waited = False
        while (busy := next((self._taken[key] for key in keys if key in self._taken), None)) is not None:
            has_waited = True
            await busy
        done = Future()
        self._taken.update(dict.fromkeys(keys, done))
        try:
            yield has_waited
        finally:
            for key in keys:
                del self._taken[key]
            done.success(None)
