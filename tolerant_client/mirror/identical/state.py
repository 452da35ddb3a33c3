"""The mirror's only state is the target's log: where it ends and who wrote its last batch.

Read before the first append of a session and after anything unexpected
(M2-M4).  What the target has must be what the source has; a difference is
reported, never overwritten: it is a foreign write where somebody else wrote
the target's side of it, and a loss of the source where the link itself did.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import DataLossError, SourceTruncatedError, TargetDivergedError, TolerantClientError
from tolerant_client.mirror.divergence import (
    COMPARED_OFFSETS,
    LogSlice,
    first_difference,
    first_difference_of_logs,
    has_nothing_at,
    is_copy,
    read_headers,
    read_slices,
)
from tolerant_client.mirror.epochs import source_truncations
from tolerant_client.mirror.gaps import filler_log_start, is_filler
from tolerant_client.mirror.identical.partition import AppendState
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link.control import LinkControl
from tolerant_client.mirror.losses import LedgerRow, Loss, LossReason
from tolerant_client.mirror.producers import (
    ProducerEntry,
    can_describe_producers,
    describe_producers,
    link_entry,
    log_end_offsets,
)
from tolerant_client.mirror.topics import topic_facts
from tolerant_client.produce import add_sequence
from tolerant_client.raw import EARLIEST, LATEST, RawCluster
from tolerant_client.record_batch import BatchHeader

_STEPS_BACK = 1000  # batches that are looked at for the last sequence, where the brokers do not tell it
_KEPT_ON_TARGET = (LossReason.TRUNCATION.value, LossReason.RECREATION.value)


class LogStart(NamedTuple):
    """The target's log is empty and the source's starts at `start`: that comes first (or is half done)."""

    state: AppendState
    start: int


class AheadOfSource(NamedTuple):
    """The source was truncated, which the ledger says: its log, up to `source_end`, is shorter than the target's."""

    state: AppendState
    source_end: int


Found = AppendState | LogStart | AheadOfSource | Loss | TolerantClientError


class _Logs(NamedTuple):
    """Bounds of both logs of a partition; the source's end is the high watermark.

    The target's log up to `adopted` was found to be the source's before the link began, whoever wrote it.
    """

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    adopted: int = 0

    @property
    def common(self) -> tuple[int, int]:
        """What can be compared: behind `adopted` only the link has written."""
        return max(self.source_start, self.target_start, self.adopted), min(self.source_end, self.target_end)

    @property
    def is_written(self) -> bool:
        return self.target_end > self.target_start

    @property
    def window(self) -> tuple[int, int]:
        """The end of what can be compared."""
        start, end = self.common
        return max(start, end - COMPARED_OFFSETS), end


class _Case(NamedTuple):
    """A partition whose logs do not agree; `cut` is where an election of the source has cut its log."""

    partition: TopicPartition
    logs: _Logs
    last: BatchHeader | None
    state: AppendState
    cut: int | None

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    def row(self, link: str, from_offset: int, until_offset: int, reason: LossReason, detail: str) -> LedgerRow:
        now_ms = int(time.time() * 1000)
        topic, partition = self.partition.topic, self.partition.partition
        return LedgerRow(now_ms, link, topic, partition, from_offset, until_offset, reason.value, detail)


async def read_append_states(
    source: RawCluster,
    target: RawCluster,
    partitions: Iterable[TopicPartition],
    producer_id: int,
    ledger: Ledger | None = None,
    copied: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
    control: LinkControl = LinkControl(),
) -> dict[TopicPartition, Found]:
    """Where each partition goes on, or why it cannot; one request a broker, not one a partition.

    Partitions that could not be read this time are absent.  What the ledger says already is not found again.
    `copied` says, where that is known, the source's leader epoch of the last batch that was copied and the offset up to
    which it was: the source is asked whether an election took back some of that, whatever its records are now.
    `control` says what was adopted, and where empty logs are to begin.
    """
    truncated = await source_truncations(source, copied)
    logs = await _bounds(source, target, list(partitions), control.adopted)
    cuts = {p: end for p, end in truncated.items() if p in logs and end < logs[p].target_end}
    last = await read_headers(target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written})
    bare = await has_nothing_at(target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written and p not in last})
    last = {p: header for p, header in last.items() if header.next_offset == logs[p].target_end}
    logs = {p: log for p, log in logs.items() if not log.is_written or p in last or p in bare}
    unproved = await _unproved(source, logs, last) | {p: logs[p].window for p in bare if logs[p].common[0] < logs[p].common[1]}
    originals = await read_slices(source, unproved, is_committed=True)
    ends = {p: (log.target_end - 1, log.target_end) for p, log in logs.items() if log.is_written and log.common[0] >= log.common[1]}
    copies = await read_slices(target, {**unproved, **ends}, is_committed=False)
    states = await _append_states(target, logs, last, producer_id, control.producer_ids)

    link = ledger.link if ledger is not None else ""
    found: dict[TopicPartition, Found] = {}
    troubled: list[_Case] = []
    for p, state in states.items():
        log = logs[p]
        case = _Case(p, log, last.get(p), state, cuts.get(p))
        first = max(log.source_start, control.starts.get(p, 0))
        if (start := await _start(target, p, log, first, _log_start_mark(copies.get(p), log))) is not None:
            found[p] = LogStart(state, start)
        elif log.target_end < log.source_start:
            found[p] = _overtaken(case, link)
        elif (
            case.cut is not None
            or log.target_end > log.source_end
            or p in unproved and first_difference(originals[p], copies[p]) is not None
            or _is_strange(case, producer_id) and not _is_all_filler(copies.get(p))
        ):
            troubled.append(case)
        else:
            found[p] = state
    if troubled:
        rows = await ledger.rows(refresh=True) if ledger is not None else {}
        for case in troubled:
            what = await _explain(source, target, case, producer_id, link, rows.get(case.partition, ()))
            if what is not None:
                found[case.partition] = what
    return found


async def _bounds(
    source: RawCluster, target: RawCluster, wanted: list[TopicPartition], adopted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _Logs]:
    # The target first: what it has by then, the source had before.
    target_start = await target.list_offsets(dict.fromkeys(wanted, EARLIEST))
    target_end = await target.list_offsets(dict.fromkeys(wanted, LATEST))
    source_start = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    source_end = await source.list_offsets(dict.fromkeys(wanted, LATEST))
    # A log that ends before what was adopted of it was made anew since.
    kept = {p: offset for p, offset in adopted.items() if offset <= target_end.get(p, 0)}
    return {p: _Logs(source_start[p], source_end[p], target_start[p], target_end[p], kept.get(p, 0)) for p in wanted}


async def _unproved(
    source: RawCluster, logs: Mapping[TopicPartition, _Logs], last: Mapping[TopicPartition, BatchHeader]
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets to compare of the partitions whose last batch is not proved by the headers alone."""
    comparable = {p: logs[p] for p in last if logs[p].common[0] < logs[p].common[1]}
    original = await read_headers(
        source, {p: last[p].base_offset for p, log in comparable.items() if log.source_start <= last[p].base_offset < log.source_end}
    )
    return {p: log.window for p, log in comparable.items() if p not in original or not is_copy(last[p], original[p])}


# -- the next sequence --------------------------------------------------------


async def _append_states(
    target: RawCluster,
    logs: Mapping[TopicPartition, _Logs],
    last: Mapping[TopicPartition, BatchHeader],
    producer_id: int,
    own: Collection[int] = (),
) -> dict[TopicPartition, AppendState]:
    # What was adopted others wrote: it says nothing of the link's sequence.
    last = {p: header for p, header in last.items() if header.next_offset > logs[p].adopted}
    unsaid = [p for p in logs if (p not in last or not _is_plain(last[p])) and logs[p].target_end]
    entries: dict[TopicPartition, list[ProducerEntry]] = {}
    if unsaid and can_describe_producers(target):
        # As a race: 1. we read the log end, 2. another writer appends the next batch, 3. the broker tells us the sequence
        # behind it.  With both we would append that batch again, and the broker would take it.  So the log must still end
        # there once the sequence is known, for the leader too, which counts batches that are not replicated yet.
        told = await describe_producers(target, unsaid)
        ends = await log_end_offsets(target, told)
        entries = {p: found for p, found in told.items() if ends.get(p) == logs[p].target_end}
    elif unsaid:
        last = {**last, **await _last_plain(target, {p: last[p] for p in unsaid if p in last}, logs)}
        entries = dict.fromkeys(unsaid, [])
    return {
        p: next_append(log.target_end, last.get(p), _of_link(log, entries.get(p, ()), {producer_id, *own}), producer_id)
        for p, log in logs.items()
        if p not in unsaid or p in entries
    }


def next_append(
    log_end: int, last: BatchHeader | None, entries: Iterable[ProducerEntry], producer_id: int
) -> AppendState:
    """The next append, from the log's last batch or, where that is no data batch, from what the broker remembers."""
    if last is not None and _is_plain(last):
        sequence = add_sequence(last.base_sequence, last.last_offset_delta + 1)
        return AppendState(log_end, last.producer_id, last.producer_epoch, sequence)
    if (entry := link_entry(entries, producer_id)) is not None:
        return AppendState(log_end, entry.producer_id, entry.producer_epoch, add_sequence(entry.last_sequence, 1))
    # Nothing says a sequence.  The offset is one that all writers derive alike.
    return AppendState(log_end, producer_id, 0, add_sequence(log_end, 0))


def _of_link(log: _Logs, entries: Iterable[ProducerEntry], own: Collection[int]) -> list[ProducerEntry]:
    """Those that the link may go on with: in an adopted log other plain producers are not former ids of the link."""
    return [entry for entry in entries if not log.adopted or entry.producer_id in own]


async def _last_plain(
    target: RawCluster, last: dict[TopicPartition, BatchHeader], logs: Mapping[TopicPartition, _Logs]
) -> dict[TopicPartition, BatchHeader]:
    """The last data batches before what fills gaps, for brokers that do not tell their producers (before 2.8)."""
    for _ in range(_STEPS_BACK):
        back = {p: h.base_offset - 1 for p, h in last.items() if not _is_plain(h) and h.base_offset > max(logs[p].target_start, logs[p].adopted)}
        found = await read_headers(target, back) if back else {}
        if not found:
            break
        last |= found
    return last


def _is_plain(header: BatchHeader) -> bool:
    return header.producer_id >= 0 and not header.is_control and not header.is_transactional


# -- where a log starts -------------------------------------------------------


def _log_start_mark(copied: LogSlice | None, log: _Logs) -> int | None:
    """Where the target's log is to start, if its last record is filler that says so."""
    record = None if copied is None else copied.records.get(log.target_end - 1)
    return None if record is None else filler_log_start(record)


async def _start(target: RawCluster, partition: TopicPartition, log: _Logs, first: int, mark: int | None) -> int | None:
    """The offset to start the target's log at, `first` where nothing is begun; None when it has its start."""
    if log.target_end == 0:
        return first or None
    # A source's start only grows, so a mark beyond it is a copied record that looks like filler.
    if mark is None or not log.target_end <= mark <= first:
        return None
    if max(mark, first) > log.target_end:
        return max(mark, first)  # half done, or the source's start has moved on since
    if log.target_start >= mark:
        return None
    facts = (await topic_facts(target, [partition.topic])).get(partition.topic)
    return mark if facts is not None and facts.can_delete_records else None


# -- losses and foreign writes ------------------------------------------------


def _is_strange(case: _Case, producer_id: int) -> bool:
    """True for a last batch of another plain producer, unless it could be compared: an older id of the link (M2)."""
    header, (start, end) = case.last, case.logs.common
    if header is None or header.is_control or header.is_transactional or header.producer_id == producer_id:
        return False
    if header.next_offset <= case.logs.adopted:
        return False
    return header.producer_id < 0 or start >= end


def _is_all_filler(copied: LogSlice | None) -> bool:
    return copied is not None and bool(copied.records) and all(map(is_filler, copied.records.values()))


async def _explain(
    source: RawCluster, target: RawCluster, case: _Case, producer_id: int, link: str, rows: Collection[LedgerRow]
) -> Found | None:
    """What a difference means; None when it is gone."""
    partition, logs = case.partition, case.logs
    accepted = [range(row.from_offset, row.until_offset) for row in rows]
    kept = [range(row.from_offset, row.until_offset) for row in rows if row.reason in _KEPT_ON_TARGET]
    if any(logs.target_end - 1 in span for span in kept):
        return AheadOfSource(case.state, logs.source_end) if logs.target_end > logs.source_end else case.state
    first = await first_difference_of_logs(source, target, partition, *logs.common, accepted)
    if case.cut is not None and (first is None or case.cut <= first):
        return _truncated(case, link, case.cut)
    if first is None and logs.target_end > logs.source_end:
        first = max(logs.source_end, logs.target_start)
    if first is None:
        if case.last is not None and _is_strange(case, producer_id):
            return _diverged(case, case.last, case.last.base_offset, producer_id)
        return case.state if accepted else None
    header = (await read_headers(target, {partition: first})).get(partition)
    if header is None:
        return None
    there = (await read_slices(target, {partition: (first, first + 1)}, is_committed=False))[partition]
    if not _is_links_own(header, producer_id) and not _is_all_filler(there):
        return _diverged(case, header, first, producer_id)
    return _truncated(case, link, first)


def _is_links_own(header: BatchHeader, producer_id: int) -> bool:
    """Whether the link wrote a batch; a marker may have been anybody's, and stands for nothing."""
    return header.is_control or header.producer_id == producer_id and not header.is_transactional


def _diverged(case: _Case, foreign: BatchHeader, offset: int, producer_id: int) -> TargetDivergedError:
    return TargetDivergedError(
        f"The target log of {case} has a foreign record batch at offset {max(offset, foreign.base_offset)} (producer id"
        f" {foreign.producer_id}, the mirror's is {producer_id}) that is not the source's; stop that writer and mirror into"
        " a topic of its own"
    )


def _overtaken(case: _Case, link: str) -> Loss:
    start, until = case.logs.target_end, case.logs.source_start
    row = case.row(link, start, until, LossReason.RETENTION, "deleted on the source before they were copied")
    error = DataLossError(
        f"The source of {case} no longer has offsets {start} to {until}: retention overtook the mirror;"
        " go on behind them with --on-loss continue, or delete the target topic to copy what is left"
    )
    return Loss(row, error, case.state, until)


def _truncated(case: _Case, link: str, first: int) -> Loss:
    logs = case.logs
    start, end = logs.common
    if start >= end or first <= start and logs.source_start == 0:  # a log that is made anew begins at 0
        reason, what = LossReason.RECREATION, "none of the records that were copied: its topic was deleted and created again"
    else:
        reason, what = LossReason.TRUNCATION, f"other records from offset {first} on than those that were copied: it was truncated"
    row = case.row(link, first, logs.target_end, reason, f"the source has {what}; the target keeps what it has")
    error = SourceTruncatedError(
        f"The source of {case}, offsets {logs.source_start} to {logs.source_end}, has {what} (the target's log ends at"
        f" {logs.target_end}); go on behind that offset with --on-loss continue, or delete the target topic to copy it anew"
    )
    return Loss(row, error, case.state, logs.target_end)
