"""Slices of partitions to compare, what came of them, and how the comparison of one stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.verify.log_comparison import Difference, LogComparison, Range

_BACKOFF: Final = 0.02
_MAX_BACKOFF: Final = 1.0
_UNTOUCHED: Final = float("inf")


class Slice(NamedTuple):
    """Offsets [from_offset, until_offset) to compare; `accepted` are ranges of losses in the ledger."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    is_compacted: tuple[bool, bool] = (False, False)
    accepted: tuple[Range, ...] = ()


class NotCompared(NamedTuple):
    """Offsets of which one side had nothing left to compare."""

    from_offset: int
    until_offset: int
    reason: str


@dataclass(frozen=True)
class SliceResult:
    """What came of a slice; `error` says why it could not be compared to its end.

    The counts are those of LogComparison.  `identical_until` is the offset before which all is the same.
    """

    slice: Slice
    records: int
    identical_until: int
    first_difference: Difference | None = None
    filler: int = 0
    compacted: int = 0
    accepted_records: int = 0
    not_compared: tuple[NotCompared, ...] = ()
    error: str | None = None


class Side:
    """How the reading of one side of a slice goes."""

    __slots__ = ("doubt", "doubts", "is_asked", "is_hungry", "limit", "not_before", "trouble_since", "wanting_since")

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes of a fetch
        self.is_asked = False
        self.is_hungry = False  # its next batch needs a fetch of its own
        self.not_before = 0.0
        self.wanting_since = _UNTOUCHED
        self.trouble_since = _UNTOUCHED
        self.doubt = ""
        self.doubts = 0

    def moved(self) -> None:
        self.doubt, self.doubts, self.is_hungry = "", 0, False
        self.not_before, self.wanting_since, self.trouble_since = 0.0, _UNTOUCHED, _UNTOUCHED

    def doubted(self, why: str, now: float) -> int:
        """Waits a little longer each time; how often the same was found in a row."""
        self.doubts = self.doubts + 1 if why == self.doubt else 1
        self.doubt = why
        self.trouble_since = min(self.trouble_since, now)
        self.not_before = now + min(_BACKOFF * 2 ** min(self.doubts, 10), _MAX_BACKOFF)
        return self.doubts


class Running:
    """One slice under way."""

    def __init__(self, wanted: Slice, limit: int) -> None:
        self.slice = wanted
        self.partition = TopicPartition(wanted.topic, wanted.partition)
        self.log = LogComparison(
            wanted.from_offset, wanted.until_offset, is_compacted=wanted.is_compacted, accepted=wanted.accepted
        )
        self.sides = (Side(limit), Side(limit))
        self.goals = [wanted.until_offset, wanted.until_offset]
        self.not_compared: list[NotCompared] = []
        self.suspect: Difference | None = None
        self.failure = ("", -1)  # what could not be compared last, and how far all was compared then
        self.failures = 0
        self.is_checking = False
        self.has_goals_behind = False  # the logs are read on to their ends, for proofs

    def result(self, error: str | None = None) -> SliceResult:
        log = self.log
        return SliceResult(
            self.slice,
            log.records,
            log.identical_until,
            log.difference,
            log.filler,
            log.compacted,
            log.accepted_records,
            tuple(self.not_compared),
            error,
        )
