"""Slices of partitions to compare, their results, and the state of a slice that is being compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.patience import Backoff, Belief
from tolerant_client.mirror.verify.log_comparison import LogComparison, Range
from tolerant_client.mirror.verify.outcome import Difference, NotCompared

_BACKOFF: Final = Backoff(0.04)
_UNTOUCHED: Final = float("inf")


class Slice(NamedTuple):
    """Offsets [from_offset, until_offset) to compare; `told` and `left_out`, from the ledger, are LogComparison's."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    is_compacted: tuple[bool, bool] = (False, False)
    told: tuple[Range, ...] = ()
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class SliceResult:
    """The result of a slice; `error` says why it could not be compared to its end.

    The counts are those of LogComparison.  All offsets before `compared_until` were compared, except `not_compared`;
    `told_difference` is the first difference in a range of the ledger, after which the comparison resumed, `difference` the one
    that ended it.
    """

    slice: Slice
    records: int
    compared_until: int
    difference: Difference | None = None
    told_difference: Difference | None = None
    told_records: int = 0
    left_out: int = 0
    filler: int = 0
    compacted: int = 0
    not_compared: tuple[NotCompared, ...] = ()
    error: str | None = None

    @property
    def first_difference(self) -> Difference | None:
        return self.told_difference or self.difference

    @property
    def identical_until(self) -> int:
        """The offset before which all records are the same."""
        found = self.first_difference
        return self.compared_until if found is None else min(self.compared_until, found.offset)

    @property
    def gaps(self) -> tuple[NotCompared, ...]:
        """All offsets that were not compared, also those after the end of the comparison."""
        until = self.slice.until_offset
        if self.compared_until >= until:
            return self.not_compared
        if self.difference is None:
            rest = NotCompared(self.compared_until, until, self.error or "the comparison has not reached them yet")
        else:
            offset = self.difference.offset
            rest = NotCompared(offset + 1, until, f"they are after the difference at offset {offset}")
        return (*self.not_compared, rest) if rest.until_offset > rest.from_offset else self.not_compared


class Side:
    """The state of reading one side of a slice."""

    __slots__ = ("_belief", "is_asked", "is_hungry", "limit", "not_before", "trouble_since", "wanting_since")

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes of a fetch
        self.is_asked = False
        self.is_hungry = False  # its next batch needs a fetch of its own
        self.not_before = 0.0
        self.wanting_since = _UNTOUCHED
        self.trouble_since = _UNTOUCHED
        self._belief = Belief()

    def moved(self) -> None:
        self._belief.forget()
        self.is_hungry = False
        self.not_before, self.wanting_since, self.trouble_since = 0.0, _UNTOUCHED, _UNTOUCHED

    def doubted(self, why: str, now: float) -> int:
        """Waits a little longer each time; returns how often the same was found in a row."""
        self._belief.hear(why)
        self.trouble_since = min(self.trouble_since, now)
        self.not_before = now + _BACKOFF.pause_s(self._belief.times)
        return self._belief.times


class Running:
    """One slice that is being compared."""

    def __init__(self, wanted: Slice, limit: int) -> None:
        self.slice = wanted
        self.partition = TopicPartition(wanted.topic, wanted.partition)
        self.log = LogComparison(
            wanted.from_offset,
            wanted.until_offset,
            is_compacted=wanted.is_compacted,
            told=wanted.told,
            left_out=wanted.left_out,
        )
        self.sides = (Side(limit), Side(limit))
        self.goals = [wanted.until_offset, wanted.until_offset]
        self.not_compared: list[NotCompared] = []
        self.suspect: Difference | None = None
        self.failure = Belief()  # the error of the comparison, and the offset it had reached
        self.is_checking = False
        self.has_goals_behind = False  # the logs are read on to their ends, for proofs

    def goal(self, number: int) -> int:
        """The offset up to which a side is to be read now."""
        return self.log.look_until(number) if self.log.is_looking_back else self.goals[number]

    def result(self, error: str | None = None) -> SliceResult:
        log = self.log
        return SliceResult(
            self.slice,
            log.records,
            log.identical_until,
            log.difference,
            log.told_difference,
            log.told_records,
            log.left_out_records,
            log.filler,
            log.compacted,
            tuple(self.not_compared),
            error,
        )
