"""Locks on partitions within one process and event loop: a task waits for the one that holds the partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from kafka.structs import TopicPartition

from tolerant_client.cluster.event_loop import Future


class PartitionLocks:
    """The partitions that tasks hold."""

    def __init__(self) -> None:
        self._taken: dict[TopicPartition, Future] = {}

    @asynccontextmanager
    async def held(self, partitions: Collection[TopicPartition]) -> AsyncIterator[bool]:
        """Holds partitions exclusively, once all of them are free; True if it had to wait."""
        has_waited = False
        while (busy := next((self._taken[p] for p in partitions if p in self._taken), None)) is not None:
            has_waited = True
            await busy
        done = Future()
        self._taken.update(dict.fromkeys(partitions, done))
        try:
            yield has_waited
        finally:
            for partition in partitions:
                del self._taken[partition]
            done.success(None)
