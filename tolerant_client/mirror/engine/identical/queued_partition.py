"""What one partition being copied appends next; laws as in identical/partition.py.

No I/O and no clock here: the copier does the I/O and passes the times.
"""

from __future__ import annotations

import enum
import uuid
from collections import deque
from collections.abc import Iterator

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules, AppendState, cover
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.identical.unread import Unread
from tolerant_client.records.record_batch import BatchHeader, restamp

_BEHIND_A_GAP = 1 << 20  # bytes that may wait for a gap to be filled, besides those of the same response
_IDLE_S = 2.0  # without an acknowledged append
_FORGOTTEN = float("-inf")


class Phase(enum.Enum):
    SYNCING = "syncing"
    COPYING = "copying"
    DRAINING = "draining"
    PAUSED = "paused"  # until `not_before`: by policy, with an error, or until the source catches up
    RELEASED = "released"  # given up while it was copied: what is in flight counts
    STOPPED = "stopped"


class QueuedPartition(CopiedPartition):
    """What waits to be appended to one partition, and whether it may be sent now."""

    def __init__(self, partition: TopicPartition, now: float) -> None:
        super().__init__(partition, now)
        self.phase = Phase.SYNCING
        self.leader_epoch = -1  # of the source, of the last batch that was taken
        self.former_epoch = -1  # the one before a new one appeared, until both logs were compared
        self.term: int | None = None  # of the claim under which the log was read (claims.py, law H)
        self.in_flight = 0
        self.queue: deque[Appendable] = deque()
        self.queued_bytes = 0
        self.queued_gaps = 0
        self.not_before = now
        self._state = AppendState(-1, -1, -1, 0)
        self._rules: AppendRules | None = None
        self._first_log_end: int | None = None
        self.is_looked_at = False  # its log end is being read
        self.read_at = now  # when its logs began to be read
        self._checked_at = now
        self.unread = Unread()
        self._remembered_until_ms = _FORGOTTEN  # until then the broker knows the producer, whatever of ours it appends
        self.log_start = 0  # the offset up to which this process fills the log, where it should begin
        self.left_out: set[int] = set()  # offsets of records that the user's policy gave up
        self.has_finding = False  # the batch at `position` cannot be copied, while something before it waits (Law J)

    @property
    def is_read(self) -> bool:
        return self.phase is Phase.COPYING

    @property
    def is_full(self) -> bool:
        return self.has_finding and self.has_work or self.queued_gaps > 0 and self.queued_bytes > _BEHIND_A_GAP

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.in_flight)

    @property
    def records(self) -> int:
        """Counted in offsets, whichever writer of the link appended them."""
        return 0 if self._first_log_end is None else self.acked - self._first_log_end

    @property
    def is_placed(self) -> bool:
        return self._first_log_end is not None

    @property
    def is_stopped(self) -> bool:
        return self.phase is Phase.STOPPED or self.is_released

    @property
    def is_settled(self) -> bool:
        return self.is_stopped or self.phase is Phase.PAUSED or self.paused is not None or self.has_reached

    def rests(self, after_s: float, now: float) -> bool:
        """Whether it has nothing to append, and its last append was acknowledged at least `after_s` ago."""
        is_idle = not self.in_flight and not self.queue and self.is_placed
        return is_idle and self.phase in (Phase.COPYING, Phase.PAUSED) and now - self._checked_at >= after_s

    @property
    def rules(self) -> AppendRules:
        """The append rules of the target's topic; only of a partition that is placed."""
        assert self._rules is not None
        return self._rules

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of the target's topic whose log was read; None if its brokers have none (Law I)."""
        return self._state.topic_id

    def resume(self, state: AppendState, rules: AppendRules, now: float) -> None:
        """Resumes from the state of the target's log."""
        if state.log_end > self.acked:
            self._troubles.moved()
        self._state = state
        self._rules = rules
        self._reached(state.log_end)
        self.unread.since = None
        self.unread.ends_with(_FORGOTTEN if state.last_ms is None else state.last_ms + rules.remembered_ms)
        self.was_full = False
        self._troubles.absent_since = None
        self.phase = Phase.COPYING
        self.paused = None
        self.former_epoch = -1
        self._checked_at = min(self.read_at, now)
        self._remembered_until_ms = _FORGOTTEN

    def take(self, part: FetchedPartition, until: int | None, now_ms: int) -> Iterator[list[Appendable]]:
        """Like `courses`, under the rules of the target's topic."""
        for course in self.courses(part, until, self.rules, now_ms):
            self.left_out.difference_update([offset for offset in self.left_out if offset < self.position])
            self.leader_epoch = max(self.leader_epoch, course.leader_epoch)
            yield course.items

    def leave_out(self, until_offset: int, now_ms: int) -> list[Appendable]:
        """Like CopiedPartition.leave_out, but skips only a part if there are many offsets.

        Always fills with records: another writer may still have what was lost, and only by sequences can the broker choose one.
        """
        self._troubles.since = None
        rules = self.rules._replace(fills_with_records=True)
        items, self.position = cover(Gap(self.position, until_offset), rules, now_ms)
        return items

    def enqueue(self, item: Appendable) -> int:
        """Queues an item and returns its bytes; stamps a batch, in place, with our producer."""
        self.queue.append(item)
        if isinstance(item, Gap):
            self.queued_gaps += 1
            return 0
        header, batch = item
        state = self._state
        restamp(batch, state.producer_id, state.producer_epoch, state.next_sequence)
        self._state = state._replace(next_sequence=add_sequence(state.next_sequence, header.last_offset_delta + 1))
        self.queued_bytes += header.size
        return header.size

    def dequeue(self) -> Appendable:
        """Takes the first item out of the queue."""
        item = self.queue.popleft()
        if isinstance(item, Gap):
            self.queued_gaps -= 1
        else:
            self.queued_bytes -= item[0].size
        return item

    def drop_queue(self) -> int:
        """Forgets what is queued and returns its bytes; the copier calls it after every trouble."""
        dropped = self.queued_bytes
        self.queue.clear()
        self.queued_bytes = self.queued_gaps = 0
        return dropped

    def is_unchecked(self, now: float) -> bool:
        """Whether the log end must be read before the next append, with nothing in flight (Law H)."""
        return now - self._checked_at > _IDLE_S

    def may_send(self, now_ms: float) -> bool:
        """Whether the next batch may go out now (Law G); `now_ms` is the time of day."""
        return not self.in_flight or now_ms < self._remembered_until_ms and not self.is_next_old(now_ms)

    def is_next_old(self, now_ms: float) -> bool:
        """Whether the broker may forget the producer once it has appended the next batch (Law G)."""
        first = self.queue[0] if self.queue else None
        return first is not None and not isinstance(first, Gap) and now_ms >= self._remembers_until_ms(first[0])

    def wait_for_unread(self, now: float) -> None:
        """Waits until nothing can lie unread any more, with nothing in flight; then the log is read again (unread.py)."""
        self.phase, self._shown = Phase.DRAINING, frozenset()
        self.not_before = self.unread.wait(now)

    def _remembers_until_ms(self, header: BatchHeader) -> int:
        return header.max_timestamp + self.rules.remembered_ms

    def sent(self, header: BatchHeader) -> None:
        """Notes that a batch is in flight."""
        self.in_flight += 1
        self.unread.ends_with(remembered_ms := self._remembers_until_ms(header))
        self._remembered_until_ms = min(self._remembered_until_ms, remembered_ms)

    def is_lease_over(self, now: float, append_lease_s: float) -> bool:
        """M4: a broker forgets an idle producer, so an old state of the log must not be appended to."""
        return now - self._checked_at > append_lease_s

    def _reached(self, log_end: int) -> None:
        if self._first_log_end is None:
            self._first_log_end = log_end
        elif log_end < self.acked:
            self._first_log_end -= self.acked - log_end  # what an election or a deletion removed is copied again
        self.position = self.acked = log_end
