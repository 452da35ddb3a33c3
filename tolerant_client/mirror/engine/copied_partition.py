"""One partition as the copier, the reader and its owner see it; each strategy has its own subclass.

No I/O and no clock here: times are arguments, from the copier's clock.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.producer.partition import is_for_its_records, is_too_large
from tolerant_client.errors import RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules, Claim, Course, appendable
from tolerant_client.mirror.engine.troubles import Troubles


class CopiedPartition(ABC):
    """What is wanted of a partition, how far it has been copied, and where it is read."""

    def __init__(self, partition: TopicPartition, now: float) -> None:
        self.partition = partition
        self.until: int | None = None  # the source offset to reach at least
        self.hold_until = self.lease_until = now  # copied for its owner until then; in its lease until another asks
        self.adopted_at = now
        self.acked = -1  # every committed record before it is on the target
        self.bytes = 0
        self.filled = 0  # offsets in gaps
        self.losses = 0  # ledger rows
        self.error: TolerantClientError | None = None  # that stopped it
        self.paused: TolerantClientError | None = None  # by the operator, or by policy until it is checked again
        self.is_released = False  # its owner gave it up, or another process of the run asked for it
        self.position = -1  # the next source offset to be fetched
        self.last_stable_offset = -1  # of the source
        self.first_round = 0  # the reader drops responses of earlier rounds: they are for another position
        self.was_full = False  # the reader does not fetch it until less of it waits
        self.is_recoded = False  # batches are sent in the codec of the target's topic
        # Before this source offset a batch was refused, or several that were joined; or at it a record.
        self.separate_until = 0
        self.dry_since: float | None = None  # since when the source has stable records but returns none
        self.dry_turns = 0  # of the reader then
        self._troubles = Troubles()
        self._shown: frozenset[Claim] = frozenset()  # claims of the last response that no checksum covers

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    def want(self, until: int | None, hold_until: float, lease_until: float, now: float) -> None:
        """Sets what its owner wants from now on."""
        self.until, self.hold_until, self.lease_until, self.adopted_at = until, hold_until, lease_until, now

    @property
    def has_reached(self) -> bool:
        return self.until is None or self.acked >= self.until

    def is_held(self, now: float) -> bool:
        """Whether copying continues beyond `until`."""
        return now < max(self.hold_until, self.lease_until)

    @property
    @abstractmethod
    def records(self) -> int:
        """What was added to the target."""

    @property
    def troubles(self) -> int:
        """How often the target's log had to be read again."""
        return self._troubles.count

    @property
    @abstractmethod
    def is_placed(self) -> bool:
        """Whether the target's log was read, and is a copy so far."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether nothing more is copied: it stopped, or was given up."""

    @property
    def paused_by(self) -> TolerantClientError | None:
        """Why copying is paused: also while it is checked again, or cannot be."""
        return self.paused if self.error is None else None

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether no call has to wait for it now."""

    @abstractmethod
    def waits(self, after_s: float, now: float) -> tuple[float, str] | None:
        """Since when nothing moves though there is something to copy, if that is more than `after_s` ago, and the last reason."""

    def refused_with(self, error_code: int, until: int) -> None:
        """Notes the code with which the target has refused a batch that ends at `until`, or its record at `until`.

        It may store batches otherwise than they are sent; and what lies before a refused record is sent without it.
        """
        self.is_recoded = self.is_recoded or is_too_large(error_code)
        if is_for_its_records(error_code):
            self.separate_until = until

    def without_progress(self, patience_s: float) -> RecoveryExhaustedError:
        """The error for a partition that had only trouble for `patience_s`."""
        text = f"{self}: no progress for {patience_s:.0f} s at offset {self.acked}; check the brokers that lead it"
        return RecoveryExhaustedError(text, self._troubles.reasons)

    def without_news(self, patience_s: float) -> RecoveryExhaustedError:
        """The error for a partition of which the source sent nothing for `patience_s`."""
        return RecoveryExhaustedError(
            f"{self}: the source sent nothing for {patience_s:.0f} s at offset {self.acked}; check its brokers, and whether a"
            " transaction hangs there"
        )

    # -- for the reader (reader.py) -------------------------------------------

    @property
    def source_id(self) -> uuid.UUID | None:
        """The id of the source topic in which `position` was read; None if any topic of this name may be fetched."""
        return None

    @property
    def is_behind(self) -> bool:
        """Whether the source has stable offsets that were not taken yet."""
        return self.position < self.last_stable_offset

    @property
    @abstractmethod
    def is_read(self) -> bool:
        """Whether fetched batches are accepted."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether enough is waiting that no more should be fetched."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether something taken is not appended yet."""

    def courses(self, part: FetchedPartition, until: int | None, rules: AppendRules, now_ms: int) -> Iterator[Course]:
        """What a response to a fetch at `position` means for the target, step by step; moves `position` with each course.

        To be continued only while `position` is where it was left.  Raises RecordBatchError and OversizedRecordError, before
        the first item.
        """
        for course in appendable(part, self.position, until, rules, self._shown, now_ms):
            self._shown, self.position = course.shown, course.position
            yield course

    @abstractmethod
    def leave_out(self, until_offset: int, now_ms: int) -> list[Appendable]:
        """Moves `position` to `until_offset` without copying; returns what to append for the offsets that it skips."""

    @abstractmethod
    def trouble(self, reason: str, now: float) -> None:
        """Records trouble; the target's log is read again."""

    @abstractmethod
    def stop(self, error: TolerantClientError) -> None:
        """Stops it for good."""
