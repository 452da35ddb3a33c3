"""One partition as its copier, its reader and whoever wants it copied see it; each strategy has a class of it.

No I/O and no clock here: times are passed, and are those of the copier's clock.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules, Claim, Course, appendable
from tolerant_client.mirror.engine.troubles import Troubles


class CopiedPartition(ABC):
    """What is wanted of a partition, how far it is, and where it is read."""

    def __init__(self, partition: TopicPartition, now: float) -> None:
        self.partition = partition
        self.until: int | None = None  # the source offset to reach at least
        self.hold_until = self.lease_until = now  # copied for its owner until then, and after it while nobody else asks
        self.adopted_at = now
        self.acked = -1  # every committed record before it is on the target
        self.bytes = 0
        self.filled = 0  # offsets in gaps
        self.losses = 0  # ledger rows
        self.error: TolerantClientError | None = None
        self.is_released = False  # given up: by its owner, or for another process of the run
        self.position = -1  # the next source offset to be fetched
        self.last_stable_offset = -1  # of the source
        self.first_round = 0  # earlier rounds of the reader asked for another position
        self.was_full = False  # the reader leaves it out until it has less
        self.dry_since: float | None = None  # the source has something stable, and answers nothing
        self._troubles = Troubles()
        self._shown: frozenset[Claim] = frozenset()  # what the last response said and no checksum proves

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    def want(self, until: int | None, hold_until: float, lease_until: float, now: float) -> None:
        """Takes what its owner wants from now on."""
        self.until, self.hold_until, self.lease_until, self.adopted_at = until, hold_until, lease_until, now

    @property
    def has_reached(self) -> bool:
        return self.until is None or self.acked >= self.until

    def is_held(self, now: float) -> bool:
        """Whether it is copied on beyond its end."""
        return now < max(self.hold_until, self.lease_until)

    @property
    @abstractmethod
    def records(self) -> int:
        """What the target has gained."""

    @property
    def troubles(self) -> int:
        """How often its place had to be read again."""
        return self._troubles.count

    @property
    @abstractmethod
    def is_placed(self) -> bool:
        """Whether the target's log was read, and is a copy so far."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether nothing more is copied."""

    @property
    @abstractmethod
    def paused_by(self) -> TolerantClientError | None:
        """Why it is left alone for a time."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether nobody has to wait for it now."""

    @abstractmethod
    def waits(self, after_s: float, now: float) -> tuple[float, str] | None:
        """Since when nothing moves though there is something to copy, if that is longer than `after_s`, and the last reason."""

    def without_progress(self, patience_s: float) -> RecoveryExhaustedError:
        """What stops it when it had nothing but trouble for so long."""
        text = f"{self}: no progress for {patience_s:.0f} s at offset {self.acked}; check the brokers that lead it"
        return RecoveryExhaustedError(text, self._troubles.reasons)

    def without_news(self, patience_s: float) -> RecoveryExhaustedError:
        """What stops it when nothing came of it for so long."""
        return RecoveryExhaustedError(
            f"{self}: the source sent nothing for {patience_s:.0f} s at offset {self.acked}; check its brokers, and whether a"
            " transaction hangs there"
        )

    # -- what the reader asks and tells (reader.py) ---------------------------

    @property
    def source_id(self) -> uuid.UUID | None:
        """The id of the topic that its position was read in, where that is to be the one that is fetched."""
        return None

    @property
    def is_behind(self) -> bool:
        """Whether the source has more than was taken."""
        return self.position < self.last_stable_offset

    @property
    @abstractmethod
    def is_read(self) -> bool:
        """Whether what is fetched of it is taken."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether so much waits that no more should be fetched."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether what was taken is not all appended yet."""

    def course(self, part: FetchedPartition, until: int | None, rules: AppendRules, now_ms: int) -> Course:
        """What a response to a fetch at `position` means for the target; moves the position over it.

        Raises RecordBatchError and OversizedRecordError.
        """
        course = appendable(part, self.position, until, rules, self._shown, now_ms)
        self._shown, self.position = course.shown, course.position
        return course

    @abstractmethod
    def leave_out(self, until_offset: int, now_ms: int) -> list[Appendable]:
        """Goes over offsets from the position on of which nothing is copied; what is appended for them next."""

    @abstractmethod
    def trouble(self, reason: str, now: float) -> None:
        """Has its place read again."""

    @abstractmethod
    def stop(self, error: TolerantClientError) -> None:
        """Stops it for good."""
