"""One partition being copied: what a response means; queued_partition.py has what is appended next.

Laws (DESIGN.md of the package, M1-M4):
A. What is queued starts exactly at `position`: batches, and the gaps between them.
B. The sequence of a batch follows from the target's log alone, so every writer gives the same batch the same sequence.
C. After any response but the expected one the partition drains what is in flight, and the target's log is read again.
D. Sequences have no gaps, so a batch that was appended proves all before it.
E. A finding that would stop the partition is believed only when it was made
   three times without an acknowledged append in between.
F. A gap is filled when all before it is acknowledged, and nothing after it is
   sent before it is filled: filler and batches have no common sequence.
G. A broker that does not know a producer accepts any sequence: a batch in
   flight after one that is refused would then take its offset.  So several
   batches are in flight only while the broker surely remembers the producer:
   after `resume` one goes alone, and so does each one after records so old
   that the broker may forget the producer at any moment (it counts from their
   timestamps; AppendRules.remembered_ms).
H. The log of a topic that was created again while nothing was appended takes the next batch at its start.  So if nothing in the
   last 2 s shows that the log ends at `acked`, a batch is sent only after the log end was just read, with all before it
   replicated; steady appending shows it anyway.  The evidence counts from when its request was sent: a process that was
   frozen finds old responses.
I. A name is not a topic: batches are for the topic whose log was read (`topic_id`), and brokers that know ids refuse them for
   another one.
J. What cannot be copied (a damaged batch, a record that is too large) counts once all before it is acknowledged.

No I/O and no clock here: the copier does the I/O and passes the times.
"""

from __future__ import annotations

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Unreplicated
from tolerant_client.cluster.produce import NO_APPEND_TIME, ProducedPartition
from tolerant_client.errors import (
    OversizedRecordError,
    PartitionRefusedError,
    RecordBatchError,
    TargetDivergedError,
    TolerantClientError,
    text_of,
)
from tolerant_client.mirror.batches.appendable import AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine.identical.queued_partition import Phase, QueuedPartition
from tolerant_client.mirror.engine.troubles import fill_remedy, gone, refusal, shortened
from tolerant_client.mirror.state.health import kept_beyond
from tolerant_client.records.record_batch import BatchHeader


class PartitionCopy(QueuedPartition):
    """State of one partition."""

    def __init__(self, partition: TopicPartition, now: float) -> None:
        super().__init__(partition, now)
        self._misplaced = ""  # evidence that the target's log has become shorter than what was acknowledged
        self.has_doubtful_facts = False  # the target refused what the topic's configuration, as we read it, allows
        self.retimed: list[tuple[int, int]] = []  # offsets of batches whose response returned another time than theirs
        self._ahead_since: float | None = None  # the target keeps more than the source has
        self.too_large: OversizedRecordError | None = None  # a record that no batch of the target can hold

    def resume(self, state: AppendState, rules: AppendRules, now: float) -> None:
        self._ahead_since, self._misplaced = None, ""
        super().resume(state, rules, now)

    @property
    def is_drained(self) -> bool:
        return self.phase is Phase.DRAINING and self.in_flight == 0

    def looked_at(self, log_end: int | Unreplicated | Exception | None, asked_at: float, now: float) -> None:
        """Handles the log end that the target's leader returned (Law H)."""
        self.is_looked_at = False
        if log_end == self.acked:
            self._checked_at = max(self._checked_at, asked_at)
        elif isinstance(log_end, int):
            self.trouble(f"the target's log was left ending at {self.acked}, and ends at {log_end} now", now)
        elif isinstance(log_end, Unreplicated):
            self.trouble(str(log_end), now)
        else:
            self.trouble(f"the end of the target's log could not be read: {type(log_end).__name__}", now)

    def rested(self) -> None:
        """Notes that its log is unchanged: former trouble is over if nothing waits to be copied."""
        has_all = 0 <= self.last_stable_offset <= self.acked or self.until is not None and self.has_reached
        if has_all and self.phase is Phase.COPYING:
            self._troubles.moved()

    def appended(self, header: BatchHeader, response: ProducedPartition, sent_at: float, now: float) -> None:
        """Handles the response for one batch that was in flight."""
        _, error_code, base_offset, log_append_time, refused_index, reason = response
        if error_code == 0 and log_append_time not in (NO_APPEND_TIME, header.max_timestamp):
            # Either the broker's own time, or that of the same batch, sent before: the log decides.
            self.retimed.append((base_offset, base_offset + header.last_offset_delta + 1))
            self.has_doubtful_facts = True
            self.trouble(f"the response for offset {base_offset} has another time than its records", now)
        elif error_code == 0 and base_offset == header.base_offset:
            if self.phase in (Phase.COPYING, Phase.RELEASED):
                self.acked = max(self.acked, header.next_offset)
                self._checked_at = max(self._checked_at, sent_at)
                if not self.in_flight:
                    self._remembered_until_ms = self._remembers_until_ms(header)
            self.bytes += header.size
            self._troubles.progressed()
        elif self.acked >= header.next_offset:
            pass  # Law D: a later batch was appended, so this one was
        elif error_code == 0:
            # M3: either the response is wrong or somebody else writes; the log decides.
            finding = f"offset {header.base_offset} was appended at {base_offset}"
            if base_offset < header.base_offset:
                self._misplaced = finding
            self.trouble(finding, now)
        else:
            refused = None  # the offset of the record; what we send has one at each of its offsets
            if refused_index is not None and 0 <= refused_index <= header.last_offset_delta:
                refused = header.base_offset + refused_index
            self.refused_with(error_code, header.next_offset if refused is None else refused)
            self.refused("append", error_code, self._needed, now, refused, reason)

    def gap_filled(self, gap: Gap, log_end: int, began_at: float, now: float) -> None:
        """Handles the log end that was read after a gap was filled."""
        if log_end == gap.until_offset:
            if self.phase in (Phase.COPYING, Phase.RELEASED):
                self.acked = max(self.acked, log_end)
                self._checked_at = max(self._checked_at, began_at)
            self.filled += gap.until_offset - gap.from_offset
            self._troubles.progressed()
        else:
            self.trouble(f"the log ends at {log_end} after the gap {gap.from_offset} to {gap.until_offset}", now)

    def not_filled(self, gap: Gap, error: Errors.KafkaError, now: float) -> None:
        """Handles a gap that was not filled, or of which this is unknown."""
        finding = f"the gap {gap.from_offset} to {gap.until_offset} was not filled: {error}"
        if getattr(error, "retriable", False):
            self.trouble(finding, now)
            return
        self.has_doubtful_facts = True  # its size may be the cause
        if isinstance(error, TolerantClientError):
            self.doubt(error, now)
        else:
            what = fill_remedy(error, self._needed)
            self.doubt(PartitionRefusedError(f"{self}: {finding}").advising(what), now)

    def lost(self, header: BatchHeader, reason: str, now: float) -> None:
        """Handles a batch in flight whose response will not come."""
        if self.acked < header.next_offset:
            self.trouble(reason, now)

    @property
    def _needed(self) -> str:
        """The right without which nothing is appended."""
        return f"Write on topic {self.partition.topic} of the target"

    def refused(
        self, doing: str, error_code: int, right: str, now: float, offset: int | None = None, reason: str = ""
    ) -> None:
        """Handles an error code of a fetch or an append, which needs `right`: for the record at `offset`, if the broker says so, and why."""
        error = refusal(str(self), doing, self.acked if offset is None else offset, error_code, right, reason)
        if error is None:
            self.trouble(f"the {doing} failed with {Errors.for_code(error_code).__name__}", now)
        else:
            self.has_doubtful_facts = True
            self.doubt(error, now)

    def doubt(self, error: TolerantClientError, now: float) -> None:
        """Handles a finding that stops the partition if it is made again (Law E)."""
        if isinstance(error, RecordBatchError):
            self._troubles.damaged(str(error))
            error = error.at(str(self))
        if self.is_believed(text_of(error), now):
            self.stop(error)

    def absent(self, now: float) -> None:
        """Handles a partition that the target does not have; believed when that lasts."""
        if self._troubles.is_absent_for_good(now):
            self.stop(gone(str(self)))
        else:
            self.paused = None  # another log will be in its place
            self.trouble("the target topic does not exist", now)

    def is_too_large(self, log_end: int, rules: AppendRules) -> bool:
        """True while the record that was found too large is still the next one, and still too large."""
        if (error := self.too_large) is not None and (
            log_end != error.offset or rules.max_batch_bytes > error.limit or rules.codec != self.rules.codec
        ):
            self.too_large = None
        return self.too_large is not None

    @property
    def misplaced(self) -> TargetDivergedError | None:
        """The error if the target's log differs from the source's and a batch of ours was appended at a lower offset.

        A broker that knows nothing of a producer accepts any sequence, so a log that was created again, empty, between two
        batches takes the second one at its start.
        """
        return shortened(str(self), self._misplaced) if self._misplaced else None

    def is_believed(self, finding: str, now: float) -> bool:
        """True once a finding was made often enough; before that it is trouble (Law E).

        Refusals of several batches in flight count once.
        """
        if self.phase in (Phase.STOPPED, Phase.DRAINING):
            return False
        if self._troubles.is_believed():
            return True
        self.trouble(finding, now)
        return False

    def trouble(self, reason: str, now: float) -> None:
        """Starts to drain: the target's log is read once all in flight is settled."""
        if self.phase in (Phase.STOPPED, Phase.DRAINING):
            return
        self.phase = Phase.DRAINING
        self._shown = frozenset()
        if (pause_s := self._troubles.add(reason, now)) is not None:
            self.not_before = now + pause_s

    def give_up_after(self, patience_s: float, now: float) -> None:
        """Stops a partition that had only trouble for `patience_s`."""
        troubles = self._troubles
        if troubles.since is not None and now - troubles.since > patience_s and self.phase is not Phase.STOPPED:
            self.stop(self.without_progress(patience_s))

    @property
    def is_troubled(self) -> bool:
        """Whether it had only trouble since it last moved; give_up_after reports it."""
        return self._troubles.since is not None

    def waits(self, after_s: float, now: float) -> tuple[float, str] | None:
        troubles = self._troubles
        if self._ahead_since is not None:
            since = self._ahead_since
            reason = kept_beyond(self.acked)
        elif self.unread.since is not None:
            since, reason = self.unread.since, self.unread.reason
        elif troubles.since is not None and (self.phase is not Phase.COPYING or self.acked < self.last_stable_offset):
            since, reason = troubles.since, troubles.reasons[-1]
        else:
            return None
        is_over = self.error is not None or self.paused is not None
        return None if is_over or now - since < after_s else (since, reason)

    def pause(self, error: TolerantClientError, until: float) -> None:
        """Leaves the partition alone for a time, by the user's policy."""
        self.phase = Phase.PAUSED
        self.paused = error
        self.not_before = until
        self._troubles.since = None

    def wait(self, log_end: int, now: float, until: float) -> None:
        """Takes the target's log end as reached, and leaves the partition alone for a time."""
        if self._ahead_since is None:
            self._ahead_since = now
        self._reached(log_end)
        self.phase = Phase.PAUSED
        self.paused = None
        self.not_before = until
        self._troubles.since = None

    def stop(self, error: TolerantClientError) -> None:
        self.phase = Phase.STOPPED
        self.error = error
