"""What was fetched of one partition and waits to be copied in a transaction.

Laws:
A. Batches are given out in the source's order, each once; an answer to a fetch from elsewhere is too late and dropped.
B. An answer that shows a newer leader epoch is not used: the log may have been cut, and grown again, since (KIP-101).
C. That the broker has nothing although the log goes on (the cleaner has taken it) must be answered several times, and
   then be shown by fetches of this partition alone (emptiness.py): here it is a guess.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections import deque

import kafka.errors as Errors

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules, Claim, appendable
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.rewrite import SMALL_BATCH_BYTES
from tolerant_client.records.record_batch import LOG_OVERHEAD, BatchHeader

DRY_ANSWERS = 3
_SMALL_AT_ONCE = 4 << 20  # bytes of small batches that are made into few
_MAGIC_AT = 16
_LENGTH_AND_EPOCH = struct.Struct(">ii")  # from byte 8 of a record batch


class Intake:
    """The fetched batches of one partition, and where the next fetch begins (`fetch_position`; -1: there is none)."""

    def __init__(self) -> None:
        self.fetch_position = -1
        self.is_behind = False  # the source has more than was delivered
        self.queued_bytes = 0
        self.epoch = -1  # the newest leader epoch seen in the source's log
        self.dry_gap: Gap | None = None  # offsets that the broker has told to be empty (Law C)
        self._queue: deque[Appendable] = deque()
        self._shown: frozenset[Claim] = frozenset()
        self._dry = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_dry(self) -> bool:
        """Whether offsets were told to be empty, and nothing has come since."""
        return self.dry_gap is not None and self.dry_gap.from_offset == self.fetch_position and not self._queue

    def begin(self, position: int) -> None:
        """Starts anew at an offset; what waited is dropped."""
        self.forget()
        self.fetch_position = position

    def forget(self) -> None:
        """Drops what waits; no fetch is wanted until the next `begin`."""
        self.fetch_position = -1
        self.is_behind = False
        self.queued_bytes = 0
        self.dry_gap = None
        self._queue.clear()
        self._shown = frozenset()
        self._dry = 0

    def deliver(
        self, part: FetchedPartition, position: int, until: int | None, rules: AppendRules, now_ms: int
    ) -> None:
        """Takes the answer to a fetch from `position`; batches from `until` on are left for later.

        Raises Kafka's error of the answer, RecordBatchError, OversizedRecordError, and OffsetNotAvailableError (Law B).
        """
        if position != self.fetch_position:
            return
        name = f"{part.partition.topic}-{part.partition.partition}"
        if part.error_code:
            raise Errors.for_code(part.error_code)(f"Fetch of {name} at offset {position}")
        epoch, known = _newest_epoch(part.records), self.epoch
        self.epoch = max(known, epoch)
        if epoch > known >= 0:
            raise Errors.OffsetNotAvailableError(f"the source of {name} has leader epoch {epoch} now")
        course = appendable(part, position, until, rules, self._shown, now_ms)
        self._shown = course.shown
        self.is_behind = course.position < part.last_stable_offset
        self._dry = self._dry + 1 if self.is_behind and not len(part.records) else 0
        if self._dry == DRY_ANSWERS:
            self.dry_gap = Gap(position, part.last_stable_offset)
        self.fetch_position = course.position
        self._queue += course.items
        self.queued_bytes += sum(item[0].size for item in course.items if not isinstance(item, Gap))

    def settle_dry_gap(self, is_empty: bool) -> None:
        """Goes over the dry gap, if it was found to be empty and nothing has come since; else it must be shown anew."""
        is_dry = self.is_dry
        gap, self.dry_gap, self._dry = self.dry_gap, None, 0
        if is_empty and gap is not None and is_dry:
            self.is_behind = False
            self.fetch_position = gap.until_offset
            self._queue.append(gap)

    def skip_gaps(self) -> int | None:
        """Takes the gaps at the head away; the offset behind them, if there were any."""
        position = None
        while self._queue and isinstance(item := self._queue[0], Gap):
            position = item.until_offset
            self._queue.popleft()
        return position

    def next_batches(self, position: int) -> tuple[list[tuple[BatchHeader, memoryview]], int]:
        """The next batch, or small ones, with the gaps around them, and the offset behind (`position` if there is nothing).

        Their bytes stay counted in `queued_bytes` until the caller takes them off.
        """
        batches: list[tuple[BatchHeader, memoryview]] = []
        size, is_small = 0, True
        while self._queue and is_small:
            item = self._queue[0]
            if isinstance(item, Gap):
                position = item.until_offset
            else:
                is_small = item[0].size < SMALL_BATCH_BYTES
                if batches and (not is_small or size >= _SMALL_AT_ONCE):
                    break
                batches.append(item)
                size += item[0].size
                position = item[0].next_offset
            self._queue.popleft()
        return batches, position


def _newest_epoch(records: memoryview) -> int:
    """The greatest partition leader epoch of these record batches; -1 without any, and for message sets of v0 and v1."""
    newest, at = -1, 0
    while len(records) - at > _MAGIC_AT and records[at + _MAGIC_AT] > 1:
        length, epoch = _LENGTH_AND_EPOCH.unpack_from(records, at + 8)
        newest = max(newest, epoch)
        at += LOG_OVERHEAD + max(length, 0)
    return newest
