"""The report of verify, as JSON, and as the state from which a later run resumes.  Pure.

`--resume` reads the JSON of a report.  A run that resumes trusts that the offsets below `identical_until`
still have the records that were compared.  So a report counts only between the same two clusters
(cluster ids), for the same topics (topic ids, Kafka 2.8 and newer), and for logs that still reach that
offset.  Other changes of compared records in place are not seen: a faulty disk, or an unclean election
after which the log has grown beyond that offset again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state.copied_back import CopiedBack
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.verify.outcome import Difference, NotCompared, Outcome, covered, worst
from tolerant_client.mirror.verify.slices import SliceResult

VERSION: Final = 3


class LogBounds(NamedTuple):
    """Log start, last stable offset and end (half-open) of both logs; None if a side has no such partition."""

    source_start: int | None
    source_stable: int | None
    source_end: int | None
    target_start: int | None
    target_stable: int | None
    target_end: int | None

    def source_before(self, until: int | None) -> LogBounds:
        """These bounds with the source's records before an offset alone."""
        if until is None or self.source_end is None or until >= self.source_end:
            return self
        start, stable = (min(offset or 0, until) for offset in (self.source_start, self.source_stable))
        return self._replace(source_start=start, source_stable=stable, source_end=until)

    @property
    def common(self) -> tuple[int, int]:
        """The offsets to compare: those that both logs have, up to the lower last stable offset."""
        if self.source_start is None or self.target_start is None:
            return self.source_start or 0, self.source_start or 0
        start = max(self.source_start, self.target_start)
        return start, max(start, min(self.source_stable or 0, self.target_stable or 0))

    @property
    def deleted(self) -> tuple[int, int] | None:
        """The offsets after the end of the target's log that the source no longer has; None as for `rest`."""
        if self.target_end is None or self.source_start is None:
            return None
        return (self.target_end, self.source_start) if self.target_end < self.source_start else None

    @property
    def rest(self) -> tuple[int, int] | None:
        """The offsets after the end of the target's log that the source has; None without any, or if a side has no such partition."""
        if self.target_end is None or self.source_stable is None:
            return None
        start = max(self.source_start or 0, self.target_end)
        return (start, self.source_stable) if start < self.source_stable else None


class LedgerRange(NamedTuple):
    """A row of the ledger of losses about offsets [from_offset, until_offset).

    `is_proved`: the source proves the reason, since its record there is larger than the limit in the row, or its log now
    starts after them.
    """

    from_offset: int
    until_offset: int
    reason: str
    is_proved: bool = False


class Waiting(NamedTuple):
    """Why the last stable offset is before the log's end: an open transaction."""

    reason: str
    matters: bool = True


@dataclass(frozen=True)
class PartitionReport:
    """One partition; offsets are half-open, and None if a side has no such partition.

    The source has `held` offsets; `compared` of them were compared, all except those in `not_compared`.  The comparison covers
    the offsets [from_offset, until_offset) that both logs have, those up to `resumed_at` by an earlier run.  All before
    `identical_until` are the same; `untold_difference` is the first difference where the ledger has no loss.
    `records` counts equal records of this run, `lag` the offsets that the target is behind, `filler` the filler records in its
    gaps, `compacted` the records that a cleaner has removed on one side only.  `ledger` has the losses in the ledger, which
    explain that the target lacks `explained` offsets; `told_records` counts other records in its ranges that differ.
    `error` says why the comparison did not finish.
    """

    topic: str
    partition: int
    source_start: int | None
    source_stable: int | None
    source_end: int | None
    target_start: int | None
    target_stable: int | None
    target_end: int | None
    identical_until: int
    first_difference: Difference | None = None
    untold_difference: Difference | None = None
    from_offset: int = 0
    until_offset: int = 0
    resumed_at: int | None = None
    held: int = 0
    compared: int = 0
    not_compared: tuple[NotCompared, ...] = ()
    records: int = 0
    lag: int = 0
    filler: int = 0
    compacted: int = 0
    ledger: tuple[LedgerRange, ...] = ()
    explained: int = 0
    told_records: int = 0
    error: str | None = None

    @property
    def outcome(self) -> Outcome:
        if self.first_difference is not None:
            return Outcome.DIFFERENT
        is_untouched = bool(self.held or self.lag) and not self.compared
        if self.error is not None or any(part.matters for part in self.not_compared) or is_untouched:
            return Outcome.NOT_COMPARED
        return Outcome.EXPLAINED if self.explained else Outcome.IDENTICAL

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        for name in ("first_difference", "untold_difference"):
            found[name] = None if found[name] is None else found[name]._asdict()
        found["not_compared"] = [part._asdict() for part in self.not_compared]
        found["ledger"] = [part._asdict() for part in self.ledger]
        return {**found, "outcome": str(self.outcome), "share": share(self.compared, self.held)}


@dataclass(frozen=True)
class VerifyReport:
    """The whole report: equal `records`, the `seconds` it took, and the `ids` of clusters and topics."""

    partitions: tuple[PartitionReport, ...]
    records: int
    seconds: float
    ids: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """The worst partition's outcome; NOT_COMPARED if nothing was compared and there is no difference."""
        found = worst(p.outcome for p in self.partitions)
        return found if self.compared else worst((found, Outcome.NOT_COMPARED))

    @property
    def identical(self) -> bool:
        return self.outcome is Outcome.IDENTICAL

    @property
    def held(self) -> int:
        return sum(p.held for p in self.partitions)

    @property
    def uncounted(self) -> int:
        """Partitions of which it is unknown how many offsets the source has: they are in no sum, and there is no share."""
        return sum(p.error is not None and p.source_stable is None for p in self.partitions)

    @property
    def compared(self) -> int:
        return sum(p.compared for p in self.partitions)

    @property
    def lag(self) -> int:
        return sum(p.lag for p in self.partitions)

    @property
    def explained(self) -> int:
        return sum(p.explained for p in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "outcome": str(self.outcome),
            "identical": self.identical,
            "held": self.held,
            "compared": self.compared,
            "share": None if self.uncounted else share(self.compared, self.held),
            "records": self.records,
            "explained": self.explained,
            "seconds": round(self.seconds, 3),
            "lag": self.lag,
            "ids": dict(self.ids),
            "partitions": [p.as_json() for p in self.partitions],
        }


def share(compared: int, held: int) -> float | None:
    """The compared share of the source's offsets, never rounded up to 1; None if it has none."""
    return compared * 10_000 // held / 10_000 if held else None


class Resumed(NamedTuple):
    """The result of an earlier run for a partition."""

    from_offset: int
    identical_until: int
    not_compared: tuple[NotCompared, ...] = ()


def read_state(report: Mapping[str, Any], ids: Mapping[str, Any]) -> tuple[dict[TopicPartition, Resumed], list[str]]:
    """The results of an earlier report that still count between the clusters and topics of `ids`, and why others do not.

    Raises OptionError for a document that is no report, or a report of other clusters.
    """
    try:
        if report["version"] != VERSION:
            raise OptionError(
                f"the report to resume from has version {report['version']}, not {VERSION}: start without it"
            )
        before = report["ids"]
        for side in ("source", "target"):
            if before[side]["cluster"] != ids[side]["cluster"]:
                raise OptionError(
                    f"the report to resume from is of another {side} cluster ({before[side]['cluster']}, this one is"
                    f" {ids[side]['cluster']}); give its clusters, or another file"
                )
        found: dict[TopicPartition, Resumed] = {}
        warnings: dict[str, None] = {}
        for row in report["partitions"]:
            topic = str(row["topic"])
            new = next(
                (s for s in ("source", "target") if before[s]["topics"].get(topic) != ids[s]["topics"].get(topic)), None
            )
            if new is not None:
                warnings[
                    f"topic {topic} of the {new} is not the one of the earlier run; it is compared from its start"
                ] = None
                continue
            gone = tuple(NotCompared(**part) for part in row["not_compared"])
            state = Resumed(int(row["from_offset"]), int(row["identical_until"]), gone)
            if state.identical_until > state.from_offset:
                found[TopicPartition(topic, int(row["partition"]))] = state
        return found, list(warnings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"the file to resume from is no report of verify ({type(error).__name__}: {error})"
        ) from error


def partition_report(
    partition: TopicPartition,
    bounds: LogBounds,
    results: Sequence[SliceResult],
    *,
    allow_behind: bool,
    ledger: Sequence[LedgerRange] = (),
    waiting: tuple[Waiting, Waiting] = (Waiting(""), Waiting("")),
    resumed: Resumed | None = None,
    begun_at: int = 0,
    rest: Committed | None = None,
    back: CopiedBack | None = None,
) -> PartitionReport:
    """Joins the slices of one partition, which are ordered by offset and without gaps.

    `waiting` says what holds back the last stable offsets of source and target.  Offsets before `begun_at` were not to be copied:
    the link began there.  `rest` are the committed records of `bounds.rest`, None if they were not counted: without any, and with
    nothing that the source has deleted there, the target lacks nothing.  A target that was copied `back` is no copy where its end differs.
    """
    start, until = bounds.common
    resumed_at = None if resumed is None else max(start, min(resumed.identical_until, until))
    found, gaps = _at_the_ends(bounds, allow_behind and back is None, waiting, begun_at, rest)
    error = next((r.error for r in results if r.error is not None), None)
    if back is not None:
        if error is None and (found is not None or back.until is not None):
            error = back.no_copy
        found = None
    if resumed is not None and resumed_at is not None:
        before = [part._replace(until_offset=min(part.until_offset, resumed_at)) for part in resumed.not_compared]
        gaps += [part for part in before if part.until_offset > max(start, part.from_offset)]
    gaps += [part for result in results for part in result.gaps]
    low, high = bounds.source_start or 0, bounds.source_end or 0
    copied = low if bounds.target_end is None else bounds.target_end
    gaps = [
        part._replace(from_offset=max(part.from_offset, low), until_offset=min(part.until_offset, high))
        for part in gaps
        if part.from_offset < high and part.until_offset > low
    ]
    rows = [row for row in ledger if row.until_offset > _lowest(bounds) and row.from_offset < _highest(bounds)]
    ended = next((r for r in results if r.identical_until < r.slice.until_offset or r.error is not None), None)
    told = [row for row in rows if not row.is_proved]
    is_told = found is not None and any(row.from_offset <= found.offset < row.until_offset for row in told)
    return PartitionReport(
        partition.topic,
        partition.partition,
        *bounds,
        identical_until=min(until, copied) if ended is None else ended.identical_until,
        first_difference=next((r.first_difference for r in results if r.first_difference is not None), found),
        untold_difference=next((r.difference for r in results if r.difference is not None), None if is_told else found),
        from_offset=start if resumed is None else min(resumed.from_offset, start),
        until_offset=until,
        resumed_at=resumed_at,
        held=high - low,
        compared=high - low - covered(gaps, low, high),
        not_compared=tuple(sorted(gaps)),
        records=sum(r.records for r in results),
        lag=0 if back else max(0, (bounds.source_stable or 0) - (max(low, copied) if high > low else copied)),
        filler=sum(r.filler for r in results),
        compacted=sum(r.compacted for r in results),
        ledger=tuple(rows),
        explained=sum(r.left_out for r in results) + _explained_elsewhere(rows, bounds, resumed_at),
        told_records=sum(r.told_records for r in results),
        error=error,
    )


def _at_the_ends(
    bounds: LogBounds, allow_behind: bool, waiting: tuple[Waiting, Waiting], begun_at: int, rest: Committed | None
) -> tuple[Difference | None, list[NotCompared]]:
    """The difference before or after the offsets that both logs have, and the offsets that are not compared there."""
    start, stable, end, target_start, target_stable, target_end = (offset or 0 for offset in bounds)
    if bounds.source_start is None:
        return (Difference(target_start, "the source has no such partition") if target_end else None), []
    if bounds.target_start is None:
        reason = "the target has no such partition"
        gap = NotCompared(start, end, reason, not allow_behind)
        return None if allow_behind else Difference(start, reason), [gap]
    gaps = []
    kept_from = max(start, min(begun_at, target_start))
    if kept_from > start:
        reason = f"they were never to be copied: the link was begun at a time (--from), at offset {begun_at}"
        gaps.append(NotCompared(start, kept_from, reason))
    if target_start > kept_from:
        reason = f"the target no longer has them: its log starts at {target_start}"
        gaps.append(NotCompared(kept_from, target_start, reason))
    if target_stable < min(target_end, stable):
        gaps.append(NotCompared(max(start, target_stable), min(target_end, stable), *waiting[1]))
    is_shorter = bounds.deleted is not None or bounds.rest is not None and rest != Committed(0, stable)
    if is_shorter:
        reason = f"the target log ends at {target_end}{_after(rest, stable)}"
        gaps.append(NotCompared(max(start, target_end), stable, reason, not allow_behind))
    if end > stable:
        gaps.append(NotCompared(max(start, stable), end, *waiting[0]))
    gaps = [part for part in gaps if part.until_offset > part.from_offset]
    if is_shorter and not allow_behind and (bounds.deleted is not None or not _is_unread(rest, stable)):
        gone = (
            "" if bounds.deleted is None else f", and the source no longer has its offsets {target_end:,} to {start:,}"
        )
        return Difference(target_end, f"the target log ends earlier{gone}"), gaps
    if target_end > end:
        return Difference(end, "the source log ends earlier"), gaps
    if target_end > stable:
        return Difference(stable, "the source has not committed what the target has"), gaps
    return None, gaps


def _is_unread(rest: Committed | None, stable: int) -> bool:
    """Whether the source may have no committed record after the end of the target's log: none was read, nor everything."""
    return rest is not None and rest.until < stable and not rest.records


def _after(rest: Committed | None, stable: int) -> str:
    """What the source has after the end of the target's log."""
    if rest is None:
        return ""
    if _is_unread(rest, stable):
        return ", and how many committed records the source has after that is unknown: they could not be read"
    at_least = "at least " if rest.until < stable else ""
    return f", and the source has {at_least}{counted(rest.records, 'committed record')} after that"


def _lowest(bounds: LogBounds) -> int:
    starts = [start for start in (bounds.source_start, bounds.target_start) if start is not None]
    return min(starts)


def _highest(bounds: LogBounds) -> int:
    return max(bounds.source_end or 0, bounds.target_end or 0)


def _explained_elsewhere(rows: Sequence[LedgerRange], bounds: LogBounds, resumed_at: int | None) -> int:
    """How many offsets proved rows explain before the source's log start, and where an earlier run has compared."""
    if bounds.target_start is None:
        return 0
    proved = [NotCompared(*row[:3]) for row in rows if row.is_proved]
    return covered(proved, bounds.target_start, bounds.common[0] if resumed_at is None else resumed_at)
