"""The batches of a producer with `acks="mirrored"` that its own cluster has acknowledged, and the standby may not have yet.

Laws:
- A cluster acknowledges them as with `acks="all"`, and the next batches of their partitions are sent.  Their futures, `flush()`
  and their memory wait until the standby has their records at their offsets.
- What is held for `timeout_ms` ends with NotMirroredError: it is written on its own cluster, and is not sent again.
- At a move nothing that is held is lost: moved_batches.py takes it, acknowledges what was copied, and has the rest sent.
- A producer that hears of a promotion only after it was undone stays.  What is held may have been given up meanwhile (failback
  discards what was not copied), and offsets tell nothing: others may have been written there since.  So it is read there.
- At a move, and where a producer stays, what is read decides, in one place (settle_found): a batch at its offset is acknowledged,
  any other one fails.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import NotMirroredError
from tolerant_client.stock.sought_batches import PAUSE_S, Doubts, Find, Sought

MIRRORED: Final = "mirrored"  # a producer's `acks`
SOMETHING_ELSE = (
    "the standby has something else at its offset: filler for what the mirror has left out, a part of its batch, records of others, or"
    " none, since a newer one has superseded it in a compacted topic, or retention has deleted it there"
)
GIVEN_UP = (
    "it is not there any more: the link was promoted, and then the way back, before the producer had heard of that. failback has discarded"
    " the record as one that was not copied (--discard-diverged), or retention or a newer record of its key has removed it"
)
_LATE = (
    "the standby was not seen to have it within mirrored_timeout_ms ({:g}): tolerant-kafka status says whether the link's mirror runs, and"
    " what it waits for (it is paused, or a transaction is open in the partition); this producer's log says what it may not read there"
)


class HeldBatch(NamedTuple):
    """A batch, what its leader said, and until when it waits (seconds, of the monotonic clock)."""

    batch: Any
    base_offset: int
    log_append_time_ms: int
    until_s: float

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.base_offset + int(self.batch.record_count)


class HeldBatches:
    """What one producer holds; `has_some` is called, in its sender's thread, when it holds the first batch.

    Batches end on the sender's event loop; any thread may ask what is held, or say what becomes of it.
    """

    def __init__(self, sender: Any, timeout_ms: float, has_some: Callable[[], None]) -> None:
        self._records, self._manager = sender._accumulator, sender._client._manager
        self._timeout_ms = timeout_ms
        self._has_some = has_some
        self._held: dict[TopicPartition, deque[HeldBatch]] = {}
        self._lock = threading.Lock()
        self._is_timed = False

    def hold(self, batch: Any, response: Any) -> None:
        """Keeps a batch that its leader has appended."""
        until_s = time.monotonic() + self._timeout_ms / 1000
        held = HeldBatch(batch, response.base_offset, response.log_append_time_ms, until_s)
        if held.base_offset < 0:  # its leader had it before, and does not remember where
            self._fail(held, "its leader does not tell the offset")
            return
        with self._lock:
            is_first = not self._held
            self._held.setdefault(batch.topic_partition, deque()).append(held)
        if not self._is_timed:
            self._is_timed = True
            self._manager.call_soon(self._end_late)
        if is_first:
            self._has_some()

    @property
    def record_count(self) -> int:
        """How many records are held."""
        with self._lock:
            return sum(held.batch.record_count for partition in self._held.values() for held in partition)

    def waiting(self) -> set[TopicPartition]:
        """The partitions of which anything is held."""
        with self._lock:
            return set(self._held)

    def up_to(self, partition: TopicPartition, end: float = math.inf) -> list[HeldBatch]:
        """The batches of a partition that end at `end` or before it."""
        with self._lock:
            return [held for held in self._held.get(partition, ()) if held.end <= end]

    def end(self, ended: Sequence[tuple[HeldBatch, str | None]]) -> None:
        """Completes batches that the standby has; the others fail with the reason that is given.

        They are held no longer at once, though the event loop may be late: nobody compares them again.
        """
        dropped = [(held, why) for held, why in ended if self.drop(held)]
        if dropped:
            with contextlib.suppress(RuntimeError):  # the producer has just been closed
                self._manager._net.call_soon_with_future(self._complete, dropped)

    async def settle_found(
        self,
        find: Find,
        why_not: str,
        doubts: Doubts,
        release: Callable[[Set[TopicPartition]], None] = lambda partitions: None,
    ) -> None:
        """Acknowledges what is held and a cluster has at its offset; the rest fails, since it is `why_not` there.

        Asks again until it is told.  Calls `release` with the partitions of which nothing is held any more.
        """

        def hear(partition: TopicPartition, offsets: Sequence[int] | Exception) -> None:
            if isinstance(offsets, Exception):
                doubts(offsets)
                return
            there = set(offsets)
            ended = [(one, None if one.base_offset in there else why_not) for one in self.up_to(partition)]
            release({partition})
            self.settle(ended)  # callbacks may send records

        muted = self.waiting()
        while (waiting := self.waiting()) and not self._manager.closed:
            try:
                await find(self._manager._net, {p: sought_at(self.up_to(p)) for p in waiting}, hear)
            except Exception as error:
                doubts(error)
            release(muted - self.waiting())  # also those whose time is over
            if self.waiting():
                await self._manager._net.sleep(PAUSE_S)
        release(muted)

    def settle(self, ended: Sequence[tuple[HeldBatch, str | None]]) -> None:
        """Like `end`, on the event loop."""
        self._complete([(held, why) for held, why in ended if self.drop(held)])

    def _complete(self, dropped: Sequence[tuple[HeldBatch, str | None]]) -> None:
        for held, why in dropped:
            if why is not None:
                self._fail(held, why)
            elif held.batch.complete(held.base_offset, held.log_append_time_ms):
                self._records.deallocate(held.batch)

    def drop(self, held: HeldBatch) -> bool:
        """No longer holds a batch; returns whether it did."""
        with self._lock:
            batches = self._held.get(held.batch.topic_partition, deque())
            try:
                batches.remove(held)  # it is the first one, in most cases
            except ValueError:
                return False
            if not batches:
                del self._held[held.batch.topic_partition]
            return True

    async def _end_late(self) -> None:
        while not self._manager.closed:
            now = time.monotonic()
            late = [held for partition in self.waiting() for held in self.up_to(partition) if held.until_s <= now]
            self.settle([(held, _LATE.format(self._timeout_ms)) for held in late])
            with self._lock:
                next_s = min((held[0].until_s for held in self._held.values()), default=now + self._timeout_ms / 1000)
            await self._manager._net.sleep(next_s - now)

    def _fail(self, held: HeldBatch, why: str) -> None:
        (topic, number), first = held.batch.topic_partition, held.base_offset
        offsets = range(first, held.end) if first >= 0 else [-1] * held.batch.record_count
        errors = [NotMirroredError(why, topic, number, offset) for offset in offsets]
        if held.batch.complete_exceptionally(errors[0], errors.__getitem__):
            self._records.deallocate(held.batch)


def sought_at(batches: Sequence[HeldBatch]) -> Sought:
    """What to look for at the offsets that batches have on another cluster; where that gives times, their content alone counts."""
    places = [held.base_offset for held in batches]
    gives_times = any(held.log_append_time_ms >= 0 for held in batches)
    return Sought.of([held.batch for held in batches], places[0], 0 if gives_times else None, places)
