"""One partition being copied: what is appended next, and what an answer means.

Laws (DESIGN.md of the package, M1-M4):
A. A batch is queued only when it starts exactly at `position`.
B. The sequence of a batch follows from the target's log alone, so every writer
   gives the same batch the same sequence.
C. After anything that is not the expected answer the partition drains what is
   in flight, and its place is read again from the target's log.
D. Sequences have no gaps, so a batch that was appended proves all before it.
E. What would stop the partition is believed only when it was found three times
   without progress in between.

No I/O and no clock here: the copier does the one and passes the other.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.errors import RecoveryExhaustedError, TolerantClientError, UnsupportedSourceError
from tolerant_client.produce import add_sequence
from tolerant_client.record_batch import BatchHeader, restamp

BELIEVED_AFTER = 3

# Refusals that only say "this is not the next batch": somebody else appended it
# (45, 46), or the broker's state of the producer is not what we read (47, 59).
_NOT_NEXT = {
    Errors.OutOfOrderSequenceNumberError.errno,
    Errors.DuplicateSequenceNumberError.errno,
    Errors.InvalidProducerEpochError.errno,
    Errors.UnknownProducerIdError.errno,
    Errors.OffsetOutOfRangeError.errno,
}


class AppendState(NamedTuple):
    """Where and as whom the next batch is appended, read from the target's log."""

    log_end: int
    producer_id: int
    producer_epoch: int
    next_sequence: int


class Phase(enum.Enum):
    SYNCING = "syncing"
    COPYING = "copying"
    DRAINING = "draining"
    STOPPED = "stopped"


class PartitionCopy:
    """State of one partition; `until` is the offset to reach at least, or None."""

    def __init__(self, partition: TopicPartition, until: int | None, now: float) -> None:
        self.partition = partition
        self.until = until
        self.phase = Phase.SYNCING
        self.position = -1  # next source offset to queue
        self.acked = -1  # every offset before it is on the target
        self.high_watermark = -1
        self.in_flight = 0
        self.queue: deque[tuple[BatchHeader, memoryview]] = deque()
        self.hold_until = now  # copies for its owner until then, and after it while nobody else writes
        self.lease_until = now
        self.adopted_at = now
        self.not_before = now
        self.first_round = 0  # earlier fetch rounds asked for another position
        self.bytes = 0
        self.troubles = 0
        self.error: TolerantClientError | None = None
        self._state = AppendState(-1, -1, -1, 0)
        self._first_log_end = -1
        self._checked_at = now
        self._troubled_since: float | None = None
        self._reasons: deque[str] = deque(maxlen=5)
        self._doubts = 0

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    @property
    def is_behind(self) -> bool:
        return self.position < self.high_watermark

    @property
    def has_reached(self) -> bool:
        return self.until is None or self.acked >= self.until

    @property
    def records(self) -> int:
        """Offsets that the target's log has gained, by whichever writer of the link."""
        return self.acked - self._first_log_end

    @property
    def is_drained(self) -> bool:
        return self.phase is Phase.DRAINING and self.in_flight == 0

    def resume(self, state: AppendState, now: float) -> None:
        """Goes on from what the target's log says."""
        if state.log_end > self.acked:
            self._progress()
        self._state = state
        if self._first_log_end < 0:
            self._first_log_end = state.log_end
        self.position = self.acked = state.log_end
        self.phase = Phase.COPYING
        self._checked_at = now

    def accept(self, header: BatchHeader) -> bool:
        """True when this source batch is the next to append; moves the position over it.

        False for a batch that the target already has.  Raises
        UnsupportedSourceError for what cannot keep its offsets yet.
        """
        if header.next_offset <= self.position:
            return False
        where = f"{self} at offset {header.base_offset}"
        if header.base_offset != self.position:
            raise UnsupportedSourceError(
                f"The source of {self} has no record batch that starts at offset {self.position} (the next starts at"
                f" {header.base_offset}); logs with gaps are not mirrored yet, exclude the topic"
            )
        if header.is_control or header.is_transactional:
            raise UnsupportedSourceError(f"{where} is transactional; transactions are not mirrored yet, exclude the topic")
        if header.record_count != header.last_offset_delta + 1:
            raise UnsupportedSourceError(f"{where} is a compacted batch; they are not mirrored yet, exclude the topic")
        self.position = header.next_offset
        return True

    def enqueue(self, header: BatchHeader, batch: memoryview) -> None:
        """Stamps an accepted batch, in place, with our producer and queues it."""
        state = self._state
        restamp(batch, state.producer_id, state.producer_epoch, state.next_sequence)
        self._state = state._replace(next_sequence=add_sequence(state.next_sequence, header.last_offset_delta + 1))
        self.queue.append((header, batch))

    def is_lease_over(self, now: float, append_lease_s: float) -> bool:
        """M4: a broker forgets an idle producer, so an old view of the log must not be appended to."""
        return now - self._checked_at > append_lease_s

    def appended(self, header: BatchHeader, error_code: int, base_offset: int, now: float) -> None:
        """Takes the answer for one batch that was in flight."""
        if error_code == 0 and base_offset == header.base_offset:
            if self.phase is Phase.COPYING:
                self.acked = max(self.acked, header.next_offset)
                self._checked_at = now
            self.bytes += header.size
            self._progress()
        elif self.acked >= header.next_offset:
            pass  # Law D: a later batch was appended, so this one was
        elif error_code == 0:
            # M3: either the answer is wrong or somebody else writes; the log will tell.
            self.trouble(f"offset {header.base_offset} was appended at {base_offset}", now)
        else:
            self.refused("append", error_code, now)

    def lost(self, header: BatchHeader, reason: str, now: float) -> None:
        """Takes it that the answer for a batch in flight will not come."""
        if self.acked < header.next_offset:
            self.trouble(reason, now)

    def refused(self, doing: str, error_code: int, now: float) -> None:
        """Takes an error code of a fetch or an append."""
        error = Errors.for_code(error_code)
        reason = f"{doing} answered {error.__name__}"
        if error_code in _NOT_NEXT or getattr(error, "retriable", False):
            self.trouble(reason, now)
        else:
            self.doubt(
                TolerantClientError(
                    f"{self}: {doing} at offset {self.acked} was refused with {error.__name__}"
                    f" (error {error_code}: {getattr(error, 'description', '')}); check the topic's configuration and ACLs"
                ),
                now,
            )

    def doubt(self, error: TolerantClientError, now: float) -> None:
        """Takes a finding that stops the partition, if it is found again (Law E)."""
        self._doubts += 1
        if self._doubts >= BELIEVED_AFTER:
            self.stop(error)
        else:
            self.trouble(str(error), now)

    def trouble(self, reason: str, now: float) -> None:
        """Starts to drain: the place is read from the target's log once all in flight is settled."""
        if self.phase in (Phase.STOPPED, Phase.DRAINING):
            return
        self.phase = Phase.DRAINING
        self.troubles += 1
        if self._troubled_since is None:
            self._troubled_since = now
        elif len(self._reasons) > 1:
            self.not_before = now + min(0.01 * 2 ** min(self._doubts + len(self._reasons), 7), 1.0)
        self._reasons.append(reason)

    def give_up_after(self, patience_s: float, now: float) -> None:
        """Stops a partition that had nothing but trouble for `patience_s`."""
        if self._troubled_since is not None and now - self._troubled_since > patience_s and self.phase is not Phase.STOPPED:
            self.stop(
                RecoveryExhaustedError(
                    f"{self}: no progress for {patience_s:.0f} s at offset {self.acked}; check the brokers that lead it",
                    tuple(self._reasons),
                )
            )

    def drop_queue(self) -> int:
        """Forgets what is queued and returns its bytes; the copier does so after every trouble."""
        dropped = sum(header.size for header, _ in self.queue)
        self.queue.clear()
        return dropped

    def stop(self, error: TolerantClientError) -> None:
        self.phase = Phase.STOPPED
        self.error = error

    def _progress(self) -> None:
        self._troubled_since = None
        self._doubts = 0
        self._reasons.clear()
