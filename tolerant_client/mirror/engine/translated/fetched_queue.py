"""What was fetched of one partition and waits to be copied in a transaction.

Law: batches leave in the source's order, each once.  Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tolerant_client.mirror.batches.appendable import Appendable, AppendRules
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.merge import DenseBatch, dense
from tolerant_client.mirror.batches.rewrite import is_enough
from tolerant_client.records.record_batch import LOG_OVERHEAD, BatchHeader

_MAGIC_AT = 16
_LENGTH_AND_EPOCH = struct.Struct(">ii")  # from byte 8 of a record batch


class Outgoing(NamedTuple):
    """A batch to send, the source offset after it and the gaps that follow, and the bytes of memory that it ends the use of."""

    batch: DenseBatch
    until_offset: int
    held_bytes: int


class FetchedQueue:
    """The fetched batches of one partition, and the gaps between them."""

    def __init__(self) -> None:
        self.bytes = 0  # of what waits, and of what left and was not subtracted yet
        self._items: deque[Appendable] = deque()
        self._outgoing: deque[Outgoing] = deque()  # of what was taken from the head of the items

    def __len__(self) -> int:
        return len(self._items) + len(self._outgoing)

    def put(self, items: Iterable[Appendable]) -> int:
        """Adds what was taken of a response; returns its bytes."""
        added = list(items)
        size = sum(item[0].size for item in added if not isinstance(item, Gap))
        self._items += added
        self.bytes += size
        return size

    def clear(self) -> int:
        """Drops what waits; returns the bytes that are no longer counted."""
        size, self.bytes = self.bytes, 0
        self._items.clear()
        self._outgoing.clear()
        return size

    def skip_gaps(self) -> int | None:
        """Removes the gaps at the head; returns the offset after them, or None if there were none."""
        position = None
        while not self._outgoing and self._items and isinstance(item := self._items[0], Gap):
            position = item.until_offset
            self._items.popleft()
        return position

    def next(self, rules: AppendRules) -> Outgoing:
        """The next batch to send; there must be one, with no gap before it.  Raises what `dense` does."""
        if not self._outgoing:
            batches, until = self.next_batches(0, rules)
            merged = dense(batches, rules.max_batch_bytes, rules.joined_bytes)
            held = [sum(header.size for header, _ in batches)] + [0] * len(merged)
            ends = [sum(each.spans[-1]) for each in merged[:-1]] + [until]
            self._outgoing += map(Outgoing, merged, ends, held)
        return self._outgoing.popleft()

    def put_back(self, outgoing: Outgoing) -> None:
        """Takes back what `next` has returned last, and was not sent."""
        self._outgoing.appendleft(outgoing)

    def next_batches(self, position: int, rules: AppendRules) -> tuple[list[tuple[BatchHeader, memoryview]], int]:
        """The next batch, or small ones, with the gaps around them, and the offset after them (`position` if there is nothing).

        Their bytes stay counted until the caller subtracts them.
        """
        batches: list[tuple[BatchHeader, memoryview]] = []
        size, is_small = 0, True
        while self._items and is_small:
            item = self._items[0]
            if isinstance(item, Gap):
                position = item.until_offset
            else:
                is_small = rules.joins(item[0])
                if batches and (not is_small or is_enough(len(batches), size, batches[-1][0].codec)):
                    break
                batches.append(item)
                size += item[0].size
                position = item[0].next_offset
            self._items.popleft()
        return batches, position


def newest_epoch(records: memoryview) -> int:
    """The greatest partition leader epoch of these record batches; -1 without any, and for message sets of v0 and v1."""
    newest, at = -1, 0
    while len(records) - at > _MAGIC_AT and records[at + _MAGIC_AT] > 1:
        length, epoch = _LENGTH_AND_EPOCH.unpack_from(records, at + 8)
        newest = max(newest, epoch)
        at += LOG_OVERHEAD + max(length, 0)
    return newest
