"""One partition that is produced to: what is sent next, and what a response means.  No I/O and no clock.

Laws:
A. A broker that knows a producer appends its batches only in the order of their
   sequences, so a batch that was appended proves all before it: a lost response
   costs nothing when a later one comes.
B. Where a broker does not know the producer yet, or no longer knows it
   (producer.id.expiration.ms, KIP-854), it accepts any sequence
   (ProducerAppendInfo.java).  So until the first response, after any trouble, and
   where the last response is a minute old, one batch at a time is in flight.
C. After a refusal nothing is sent until everything in flight is settled; then the
   batches are sent again from the first one that is not proven, the same bytes
   under the same sequences.
D. A batch gets another sequence only when one before it is known to be in no
   log, and so it is in none itself.
E. An error that would end the partition, or give a record up, is believed when it
   came three times in a row; a base offset that contradicts A is a question
   (law G).  That a batch of several records should be split is believed at once.
F. A broker that starts again remembers only the last batch of a producer, so it
   refuses the first one that is not proven as out of order where later ones were
   appended as well.  After that refusal the other sent batches go alone, from the
   last to the first: the broker accepts the one that it has as its last, or that follows
   its last, and that proves all before it (A).  A broker that refuses a sequence
   knows the producer and accepts no other one (B), and the base offset is compared
   as ever (E).  No batch of another transaction can vouch for a batch: each
   transaction has an epoch of its own, in which no sequence comes twice.
G. The offset in a response may be that of another batch in flight: after a lost
   response the next one, under the lost one's id, fits.  It proves what A says,
   but its offset is too high, and true offsets contradict it later.  So a
   contradiction accuses nobody: nothing after it is believed until the log was
   read for the last acknowledged batches, as many as may have got another's
   response.  Whatever takes records back (an election, a recreated topic) takes
   the newest first, so a log that holds these batches holds all before them, and
   the rest is sent again; a log without them has lost records.

Wire facts: ProducerStateManager.java, writeSnapshot (one batch of each producer),
and ProducerAppendInfo.java, checkSequence; F was seen on Kafka 4.2 after kill -9
and after a clean stop.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.patience import BELIEVED_AFTER, Backoff
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.records.record_batch import restamp

LOST = -2  # no response: a code that no broker has

MAX_IN_FLIGHT = 5  # batches of an idempotent producer that a broker remembers
KNOWN_FOR = 60.0  # seconds after a response: brokers forget producers one partition at a time
_OUT_OF_ORDER = Errors.OutOfOrderSequenceNumberError.errno
_BACKOFF = Backoff()

_TOO_LARGE = {Errors.MessageSizeTooLargeError.errno, Errors.RecordListTooLargeError.errno}
# Refused for its contents; in a batch with several records a response by topic name does not say which one.
_FOR_ITS_RECORDS = _TOO_LARGE | {Errors.InvalidRecordError.errno, Errors.InvalidTimestampError.errno}
_TRANSIENT = {
    LOST,
    Errors.UnknownError.errno,
    Errors.CorruptRecordError.errno,
    Errors.BrokerNotAvailableError.errno,
    Errors.ReplicaNotAvailableError.errno,
}


def may_heal(code: int) -> bool:
    """True where the same batch may be accepted later."""
    return code in _TRANSIENT or issubclass(Errors.for_code(code), Errors.RetriableError)


def is_for_its_records(code: int) -> bool:
    """Whether a broker has refused a batch for its contents, and would take others."""
    return code in _FOR_ITS_RECORDS


def is_too_large(code: int) -> bool:
    """True where a smaller batch may be accepted."""
    return code in _TOO_LARGE


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A record batch on its way; `rows` are the caller's numbers of its records, `deadline` monotonic seconds."""

    data: memoryview
    record_count: int
    rows: Sequence[int]
    deadline: float
    sequence: int = -1
    sends: int = 0
    code: int = 0  # of the last response
    is_appended: bool = False


class Told(NamedTuple):
    """A batch that was acknowledged; `base_offset` is that of its response, which may be a later batch's."""

    sequence: int
    record_count: int
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.record_count


class Sought(NamedTuple):
    """Batches to look for in a log, by producer id, epoch and base sequence, and the offsets where they can be."""

    producer: tuple[int, int]
    sequences: tuple[int, ...]
    from_offset: int
    to_offset: int


class Verdict(enum.Enum):
    """What the caller has to do once everything in flight is settled."""

    NOTHING = "continue, or wait for what is in flight"
    AGAIN = "send it again, at `retry_at`"
    RECORDS = "the first batch was refused for its records: split or give up"
    FAILED = "the first batch cannot be written"
    CONTRADICTED = "wait until the log was read for `sought`, and `found` was called"


class ProducerPartition:
    """State of one partition; a producer id and epoch of -1 mean a producer without idempotence."""

    def __init__(self, partition: TopicPartition, producer_id: int, producer_epoch: int, max_in_flight: int) -> None:
        self.partition = partition
        self.in_flight = 0  # requests
        self.retry_at = 0.0
        self.is_enrolled = True  # False: not in its transaction yet
        self.last_code = 0  # of the first batch that was not appended, when it was last settled
        self._producer = (producer_id, producer_epoch)
        self._max_in_flight = max_in_flight
        self._waiting: deque[ProducerBatch] = deque()
        self._window: deque[ProducerBatch] = deque()  # sent, not proven
        self._passed_over = 0  # how many of the sent batches the next one overtakes (law F)
        self._next_sequence = 0
        self._known_until = float("-inf")  # until then the leader knows this producer
        self._is_draining = False
        self._doubts = 0
        # Each got the response of a batch that was in flight with it, so the first offset is above none of the last five.
        self._told: deque[Told] = deque(maxlen=2 * MAX_IN_FLIGHT - 1)
        self.sought: Sought | None = None

    @property
    def is_idle(self) -> bool:
        """True when every batch was appended or taken out."""
        return not self._waiting and not self._window

    @property
    def first(self) -> ProducerBatch | None:
        """The oldest batch that is not appended."""
        return self._window[0] if self._window else self._waiting[0] if self._waiting else None

    def forget(self) -> None:
        """Expects nothing of the log from now on: what was appended is settled, and the topic may be another one."""
        self._told.clear()
        self._known_until = float("-inf")

    def add(self, batch: ProducerBatch) -> None:
        """Queues a batch after the others."""
        self._waiting.append(batch)

    def may_send(self, now: float) -> bool:
        """Whether a batch may be sent now."""
        is_held = self._is_draining or self.sought is not None or not self.is_enrolled
        if not self._waiting or is_held or now < self.retry_at:
            return False
        is_one_by_one = now >= self._known_until and self._producer[0] >= 0
        return len(self._window) < (1 if is_one_by_one else self._max_in_flight)

    def send(self, is_transactional: bool = False) -> ProducerBatch:
        """The next batch, stamped with its sequence; it is in flight from now on."""
        while len(self._window) < self._passed_over:
            self._window.append(self._waiting.popleft())
        batch = self._waiting.popleft()
        if batch.sequence < 0:
            batch.sequence = self._next_sequence
            self._next_sequence = add_sequence(self._next_sequence, batch.record_count)
            sequence = batch.sequence if self._producer[0] >= 0 else -1
            restamp(batch.data, *self._producer, sequence, is_transactional=is_transactional)
        batch.sends += 1
        self._window.append(batch)
        self.in_flight += 1
        return batch

    def appended(self, batch: ProducerBatch, base_offset: int, now: float) -> tuple[list[ProducerBatch], Verdict]:
        """Takes the response that `batch` was appended now or before; returns the batches that are now proven."""
        least = self._least_offset(batch)
        if not batch.is_appended and self._is_in_question(base_offset, least):
            self._is_draining = True
            return [], self.failed(batch, LOST, now)
        self.in_flight -= 1
        proven: list[ProducerBatch] = []
        if not batch.is_appended:
            if self._producer[0] < 0:
                self._window.remove(batch)
                proven.append(batch)
            else:
                while proven[-1:] != [batch]:
                    proven.append(self._window.popleft())
                self._told.append(Told(batch.sequence, batch.record_count, max(base_offset, least)))
            for each in proven:
                each.is_appended = True
            self._doubts = self._passed_over = 0
            if not self._is_draining:
                self._known_until = now + KNOWN_FOR
        return proven, self._settle(now)

    def _least_offset(self, batch: ProducerBatch) -> int:
        """The lowest offset at which a batch in flight can be, by law A."""
        before = takewhile(lambda each: each is not batch, self._window)
        return (self._told[-1].next_offset if self._told else 0) + sum(each.record_count for each in before)

    def _is_in_question(self, base_offset: int, least: int) -> bool:
        """Law G: whether an offset contradicts an earlier one, or comes after one that does."""
        if self.sought is None and 0 <= base_offset < least and self._told and self._producer[0] >= 0:
            sequences = tuple(told.sequence for told in self._told)[-MAX_IN_FLIGHT:]
            self.sought = Sought(self._producer, sequences, self._told[0].base_offset, self._told[-1].base_offset)
        return self.sought is not None

    def found(self, base_offsets: Mapping[int, int]) -> None:
        """Takes where the log holds the sought batches, by base sequence."""
        told = [
            each._replace(base_offset=base_offsets[each.sequence])
            for each in self._told
            if each.sequence in base_offsets
        ]
        self._told.clear()
        self._told.extend(told)
        self.sought = None

    def failed(self, batch: ProducerBatch, code: int, now: float) -> Verdict:
        """Takes an error code, or LOST where no response came."""
        self.in_flight -= 1
        if not batch.is_appended:
            batch.code = code
            self._is_draining = self._is_draining or code != LOST or self._producer[0] < 0
        return self._settle(now)

    def no_leader(self, now: float) -> None:
        """Notes that the partition has no leader: it is tried again after a pause."""
        self._doubts += 1
        self.retry_at = now + self._pause()

    def _settle(self, now: float) -> Verdict:
        """Laws C and E to G, once nothing is in flight any more."""
        if self.in_flight or not self._window:
            if not self.in_flight:
                self._is_draining = False
            return Verdict.NOTHING
        has_passed = self._passed_over > 0
        code = self._window[self._passed_over].code
        self._waiting.extendleft(reversed(self._window))
        self._window.clear()
        self._is_draining, self._known_until = False, float("-inf")
        if self.sought is not None:
            self._passed_over = 0
            self.last_code = LOST
            self._doubts += 1
            self.retry_at = now + self._pause()
            return Verdict.CONTRADICTED
        self._passed_over = self._next_passed_over(code)
        if not has_passed or code != _OUT_OF_ORDER:  # else only the search of law F continues
            self._doubts = self._doubts + 1 if code == self.last_code else 1
        self.last_code = code
        is_for_its_records = code in _FOR_ITS_RECORDS and not has_passed  # of the first batch
        may_split = is_for_its_records and self._waiting[0].record_count > 1
        # A batch that is refused for its records burdens nobody, and hundreds may follow one another.
        is_at_once = is_for_its_records or (code == LOST and self._doubts == 1) or self._passed_over > 0
        self.retry_at = now if is_at_once else now + self._pause()
        if has_passed or (not may_split and (may_heal(code) or self._doubts < BELIEVED_AFTER)):
            return Verdict.AGAIN
        return Verdict.RECORDS if is_for_its_records else Verdict.FAILED

    def _next_passed_over(self, code: int) -> int:
        """Law F: from the first batch to the last one that was sent, then back one by one; any other code ends it."""
        if code != _OUT_OF_ORDER or self._producer[0] < 0:
            return 0
        return (self._passed_over - 1) % sum(batch.sequence >= 0 for batch in self._waiting)

    def _pause(self) -> float:
        return _BACKOFF.pause_s(self._doubts)

    def replace_first(self, parts: Sequence[ProducerBatch], deadline: float) -> None:
        """Replaces the first batch, which is in no log (law D), with `parts`, perhaps none.

        All waiting batches get the new deadline: they waited for this one, not for the broker.
        """
        assert not self._window
        first = self._waiting.popleft()
        self._next_sequence = first.sequence
        for later in self._waiting:
            later.sequence = -1
        self._waiting.extendleft(reversed(parts))
        for each in self._waiting:
            each.deadline = deadline
        self._doubts = 0
