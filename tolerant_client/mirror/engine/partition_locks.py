"""Whoever works on a partition waits for who works on it already, in the same process and on the same event loop."""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition

from tolerant_client.stock.stock_names import Future


class Turns:
    """Partitions that are being worked on; `take` and `leave` go in pairs."""

    def __init__(self) -> None:
        self._taken: dict[TopicPartition, Future] = {}

    async def take(self, partitions: Collection[TopicPartition]) -> bool:
        """Waits until all of them are free, and takes them; True if it had to wait."""
        has_waited = False
        while (busy := next((self._taken[p] for p in partitions if p in self._taken), None)) is not None:
            has_waited = True
            await busy
        self._taken.update(dict.fromkeys(partitions, Future()))
        return has_waited

    def leave(self, partitions: Collection[TopicPartition]) -> None:
        """Gives partitions back that were taken together, and wakes who waits for them."""
        for done in {self._taken.pop(partition) for partition in partitions}:
            done.success(None)
