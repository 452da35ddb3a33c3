"""The bytes that a copier holds in memory, from a fetch's response until they are settled on the target."""

from __future__ import annotations

from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.tasks import resolve


class Memory:
    """At most `most` bytes, plus the excess of one response; on one event loop."""

    def __init__(self, most: int) -> None:
        self.in_flight = 0
        self._most = most
        self._room: Future | None = None  # resolved when bytes are settled

    async def room(self, size: int) -> None:
        """Waits until `size` more bytes may arrive; with nothing in flight there is always room."""
        while self.in_flight and self.in_flight + size > self._most:
            self._room = self._room or Future()
            await self._room

    def take(self, size: int) -> None:
        """Adds bytes that have arrived."""
        self.in_flight += size

    def settle(self, size: int) -> None:
        """Subtracts bytes that are no longer in memory."""
        self.in_flight -= size
        if self._room is not None and size:
            room, self._room = self._room, None
            resolve(room)
