"""What verify found, as a table, as JSON, and as the state from which a later run goes on.  Pure.

The JSON of a report is what `--resume` reads.  Going on from it trusts that the offsets below
`identical_until` still hold what was compared: so it is believed only between the same two clusters
(cluster ids), for the same topics (topic ids, Kafka 2.8 and newer), and for logs that still reach up to
there.  What else could change compared records in place is not seen: a disk, or an unclean election whose
log has grown beyond that offset again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.verify.log_comparison import Difference, Range
from tolerant_client.mirror.verify.slices import NotCompared, SliceResult

VERSION: Final = 2


class LogBounds(NamedTuple):
    """First offset and last stable offset (half-open) of both logs; None on the target where it has no such partition."""

    source_start: int
    source_end: int
    target_start: int | None
    target_end: int | None


@dataclass(frozen=True)
class PartitionReport:
    """One partition; offsets are half-open.

    Records of offsets [from_offset, until_offset) that both logs have were compared; all
    before `identical_until` are the same.  Offsets from `from_offset` to `resumed_at` were compared by an
    earlier run.  `lag` is how many offsets the target is behind, `filler` how many filler records stand in
    its gaps, `compacted` how many records a cleaner has removed on one side only, `accepted_records` how many
    differ or are missing in the ranges `accepted` that the ledger tells of, `not_compared` what a log has lost
    meanwhile.  `error` says why the partition could not be compared to its end.
    """

    topic: str
    partition: int
    source_start: int
    source_end: int
    target_start: int | None
    target_end: int | None
    identical_until: int
    first_difference: Difference | None
    from_offset: int = 0
    until_offset: int = 0
    resumed_at: int | None = None
    records: int = 0
    lag: int = 0
    filler: int = 0
    compacted: int = 0
    accepted: tuple[Range, ...] = ()
    accepted_records: int = 0
    not_compared: tuple[NotCompared, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["first_difference"] = None if self.first_difference is None else self.first_difference._asdict()
        found["not_compared"] = [part._asdict() for part in self.not_compared]
        return found


@dataclass(frozen=True)
class VerifyReport:
    """`records` are the same on both sides, `seconds` were spent; `ids` are those of clusters and topics."""

    partitions: tuple[PartitionReport, ...]
    records: int
    seconds: float
    ids: Mapping[str, Any]

    @property
    def is_different(self) -> bool:
        return any(p.first_difference is not None for p in self.partitions)

    @property
    def is_complete(self) -> bool:
        return all(p.error is None for p in self.partitions)

    @property
    def identical(self) -> bool:
        return self.is_complete and not self.is_different

    @property
    def lag(self) -> int:
        return sum(p.lag for p in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "identical": self.identical,
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "lag": self.lag,
            "ids": dict(self.ids),
            "partitions": [p.as_json() for p in self.partitions],
        }


class Resumed(NamedTuple):
    """What an earlier run found of a partition."""

    from_offset: int
    identical_until: int
    not_compared: tuple[NotCompared, ...] = ()


def read_state(report: Mapping[str, Any], ids: Mapping[str, Any]) -> tuple[dict[TopicPartition, Resumed], list[str]]:
    """What an earlier report proves between the clusters and topics of `ids`, and why some of it counts no more.

    Raises OptionError for a report that is none, or of another pair of clusters.
    """
    try:
        if report["version"] != VERSION:
            raise OptionError(f"the report to resume from has version {report['version']}, not {VERSION}: start anew")
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
            new = next((s for s in ("source", "target") if before[s]["topics"].get(topic) != ids[s]["topics"].get(topic)), None)
            if new is not None:
                warnings[f"topic {topic} of the {new} is not the one of the earlier run; it is compared from its start"] = None
                continue
            gone = tuple(NotCompared(**part) for part in row["not_compared"])
            state = Resumed(int(row["from_offset"]), int(row["identical_until"]), gone)
            if state.identical_until > state.from_offset:
                found[TopicPartition(topic, int(row["partition"]))] = state
        return found, list(warnings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"the report to resume from is none of verify's ({type(error).__name__}: {error})") from error


def partition_report(
    partition: TopicPartition,
    bounds: LogBounds,
    results: Sequence[SliceResult],
    *,
    allow_behind: bool,
    accepted: Sequence[Range] = (),
    resumed: Resumed | None = None,
) -> PartitionReport:
    """Puts the slices of one partition together; they are in the order of their offsets and leave nothing out."""
    topic, number = partition
    if bounds.target_start is None or bounds.target_end is None:
        missing = None if allow_behind else Difference(bounds.source_start, "the target has no such partition")
        lag = bounds.source_end - bounds.source_start
        return PartitionReport(topic, number, *bounds, bounds.source_start, missing, bounds.source_start, lag=lag)
    start, end = max(bounds.source_start, bounds.target_start), min(bounds.source_end, bounds.target_end)
    from_offset = start if resumed is None else min(resumed.from_offset, start)
    report = PartitionReport(
        topic,
        number,
        *bounds,
        identical_until=start,
        first_difference=None,
        from_offset=from_offset,
        until_offset=max(start, end),
        resumed_at=None if resumed is None else max(start, min(resumed.identical_until, end)),
        records=sum(r.records for r in results),
        lag=max(0, bounds.source_end - bounds.target_end),
        filler=sum(r.filler for r in results),
        compacted=sum(r.compacted for r in results),
        accepted=tuple(part for part in accepted if part[0] < max(start, end) and part[1] > from_offset),
        accepted_records=sum(r.accepted_records for r in results),
    )
    gone = [part for r in results for part in r.not_compared]
    if resumed is not None:
        if start > resumed.identical_until:
            gone.insert(0, NotCompared(resumed.identical_until, start, f"a log starts at {start} now"))
        gone = [*resumed.not_compared, *gone]
    report = replace(report, not_compared=tuple(gone))
    identical_until = report.resumed_at or start
    for result in results:
        identical_until = result.identical_until
        if result.first_difference is not None or result.error is not None:
            return replace(
                report,
                identical_until=identical_until,
                first_difference=next((r.first_difference for r in results if r.first_difference is not None), None),
                error=next((r.error for r in results if r.error is not None), None),
            )
    found = None
    if bounds.source_end > bounds.target_end and not allow_behind:
        found = Difference(bounds.target_end, "the target log ends earlier")
    elif bounds.source_end < bounds.target_end and not _is_covered(bounds.source_end, bounds.target_end, accepted):
        found = Difference(bounds.source_end, "the source log ends earlier")
    return replace(report, identical_until=identical_until, first_difference=found)


def _is_covered(from_offset: int, until_offset: int, ranges: Sequence[Range]) -> bool:
    """True when the ranges leave nothing of [from_offset, until_offset) out."""
    for start, end in sorted(ranges):
        if start <= from_offset:
            from_offset = max(from_offset, end)
    return from_offset >= until_offset
