"""Checks the target's logs of partitions that have nothing to append: no response would show what became of them.

Laws:
- Each resting log is checked every LOOK_S.  One that does not end where the copy does, or whose end is unknown, is trouble:
  the target's log is read again, and what both logs show then decides (resume_point.py).
- A log that ends where the copy does, with all of the source, ends earlier trouble: a resting partition does not wait.
- A check is one ListOffsets for each node, however many partitions it leads.
- A node that does not respond says nothing of its logs: they are checked again later, at their leaders of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase

LOOK_S = 30.0
_RESTS_S = 2.0  # since the last acknowledged append


class RestingLogs:
    """Checks the logs of a target; on its loop.

    `spawn` runs a coroutine in the background; `on_trouble` gets each partition whose log has changed.
    """

    def __init__(
        self,
        target: Cluster,
        clock: Callable[[], float],
        spawn: Callable[..., None],
        on_trouble: Callable[[PartitionCopy], None],
    ) -> None:
        self._target = target
        self._clock = clock
        self._spawn = spawn
        self._on_trouble = on_trouble
        self._next_look = clock() + LOOK_S
        self._asked: set[int] = set()  # nodes that have not responded yet

    def look(self, copies: Iterable[PartitionCopy]) -> None:
        """Starts a check of those of these partitions that rest, if one is due."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        by_node: dict[int | None, list[PartitionCopy]] = {}
        for copy in copies:
            if _rests(copy, _RESTS_S, now):
                by_node.setdefault(self._target.known_leader(copy.partition), []).append(copy)
        for copy in by_node.pop(None, ()):
            self._told(copy, Errors.LeaderNotAvailableError(), now)
        for node_id, resting in by_node.items():
            if node_id is not None and node_id not in self._asked:
                self._asked.add(node_id)
                self._spawn(self._look_at, node_id, resting)

    async def _look_at(self, node_id: int, copies: list[PartitionCopy]) -> None:
        acked = {copy.partition: copy.acked for copy in copies}
        wanted: dict[TopicPartition, int] = dict.fromkeys(acked, LATEST)
        asked_at = self._clock()
        try:
            ends = await self._target.offsets_at(node_id, wanted, wanted, 0)
        except Errors.KafkaError:
            self._target.manager.cluster.request_update()
            return
        finally:
            self._asked.discard(node_id)
        now = self._clock()
        for copy in copies:
            # An append since then shows the log end itself.
            if copy.acked == acked[copy.partition] and _rests(copy, 0.0, now):
                self._told(copy, ends.get(copy.partition), asked_at)

    def _told(self, copy: PartitionCopy, log_end: int | Exception | None, asked_at: float) -> None:
        if log_end == copy.acked:
            copy.rested()
        else:
            copy.looked_at(log_end, asked_at, self._clock())
            self._on_trouble(copy)


def _rests(copy: PartitionCopy, after_s: float, now: float) -> bool:
    return copy.phase is Phase.COPYING and copy.rests(after_s, now)
