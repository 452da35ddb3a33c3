"""What a mirrored log must look like, judged offset by offset from what was written and what consumers read.

Laws:
- A committed record is on the target at its offset with its timestamp, key, value and headers.
- An offset without a committed record is invisible on the target, or shows filler.
- Only in a compacted topic may a record be missing, or filler in its place: a cleaner has removed it on one
  side, for it is a tombstone or a later record has its key.

Nothing here comes from the engine: what filler looks like is said again, not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from support.log_readers import Bounds, LogRecord, Logs
from support.nasty_topics import NastyTopic
from tolerant_client.records.record_batch import Record

_FILLER = "tolerant.filler"
_CREATE_TIME = 0


class Judgement(NamedTuple):
    """`differences` is empty for a good mirror; the numbers tell whether the comparison had something to compare."""

    differences: list[str]
    records: int = 0
    fillers: int = 0
    cleaned_away: int = 0

    def __add__(self, other: tuple[object, ...]) -> Judgement:  # type: ignore[override]
        assert isinstance(other, Judgement)
        return Judgement(*(mine + yours for mine, yours in zip(self, other, strict=True)))


def is_filler(record: LogRecord) -> bool:
    return (
        record.value is None and record.key in (None, _FILLER.encode()) and [n for n, _ in record.headers] == [_FILLER]
    )


def judge(
    name: str,
    written: Mapping[int, Record],
    source: Mapping[int, LogRecord],
    target: Mapping[int, LogRecord],
    *,
    is_compacted: bool,
    is_stamped: bool = False,
) -> Judgement:
    """Compares one partition; `written` are all committed records, `source` what a cleaner has left of them."""
    last_of_key = {record.key: offset for offset, record in sorted(written.items())} if is_compacted else {}
    differences: list[str] = []
    fillers = cleaned_away = 0

    def may_be_cleaned(offset: int) -> bool:
        record = written[offset]
        return is_compacted and (record.value is None or last_of_key[record.key] > offset)

    for offset in sorted(written.keys() | target.keys()):
        wanted, found = written.get(offset), target.get(offset)
        if wanted is not None and is_stamped and offset in source:
            wanted = wanted._replace(timestamp=source[offset].timestamp)
        if found is None or (is_filler(found) and not _same(wanted, found)):
            fillers += found is not None
            if wanted is not None:
                cleaned_away += 1
                if not may_be_cleaned(offset):
                    differences.append(
                        f"{name} offset {offset}: {'filler' if found else 'nothing'} instead of {_show(wanted)}"
                    )
        elif wanted is None:
            differences.append(f"{name} offset {offset}: no committed record was written there, the target has {found}")
        elif not _same(wanted, found):
            differences.append(f"{name} offset {offset}: written was {_show(wanted)}, the target has {found}")
        elif found.timestamp_type > _CREATE_TIME:
            differences.append(f"{name} offset {offset}: timestamp type {found.timestamp_type}")
    return Judgement(differences, len(target) - fillers, fillers, cleaned_away)


def judge_source(
    name: str, written: Mapping[int, Record], source: Mapping[int, LogRecord], *, is_compacted: bool, is_stamped: bool
) -> Judgement:
    """The same of the source itself: readers and plan agree, so that they may judge the mirror."""
    judgement = judge(name, written, source, source, is_compacted=is_compacted, is_stamped=is_stamped)
    differences = [d for d in judgement.differences if not (is_stamped and "timestamp type" in d)]
    if judgement.fillers:
        differences.append(f"{name}: filler on the source")
    return judgement._replace(differences=differences)


def judge_bounds(name: str, source: Bounds, target: Bounds, *, is_compact_only: bool) -> list[str]:
    """The target ends at the source's last stable offset and starts where the source starts, if brokers let it."""
    differences = []
    if target.end != source.stable:
        differences.append(
            f"{name}: the target's log ends at {target.end}, the source's last stable offset is {source.stable}"
        )
    if target.stable != target.end:
        differences.append(
            f"{name}: the target has an open transaction at {target.stable}, before its end {target.end}"
        )
    if target.start != (0 if is_compact_only else source.start):
        differences.append(f"{name}: the target's log starts at {target.start}, the source's at {source.start}")
    return differences


def judge_topics(
    topics: Iterable[NastyTopic],
    source: Mapping[TopicPartition, Bounds],
    target: Mapping[TopicPartition, Bounds],
    source_logs: Logs,
    target_logs: Logs,
) -> Judgement:
    """Every partition of every topic."""
    total = Judgement([])
    for topic in topics:
        policy = {**topic.config, **topic.config_later}.get("cleanup.policy", "delete")
        for partition, log in topic.by_partition.items():
            name = f"{partition.topic}-{partition.partition}"
            total += judge(
                name,
                log.committed(),
                source_logs[partition],
                target_logs[partition],
                is_compacted=topic.is_compacted,
                is_stamped="message.timestamp.type" in topic.config,
            )
            total.differences.extend(
                judge_bounds(name, source[partition], target[partition], is_compact_only=policy == "compact")
            )
    return total


def _same(wanted: Record | None, found: LogRecord) -> bool:
    return wanted is not None and tuple(wanted) == (
        found.offset,
        found.timestamp,
        found.key,
        found.value,
        found.headers,
    )


def _show(record: Record) -> str:
    return str(LogRecord(record.offset, record.timestamp, _CREATE_TIME, record.key, record.value, record.headers))
