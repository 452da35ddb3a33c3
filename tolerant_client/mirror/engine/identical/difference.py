"""What it means if a partition's logs differ, or nothing shows that they agree: a loss of the source, or a divergence.

Laws:
- A loss of the source is claimed on the source's evidence only: another topic id, an epoch that ended before the end of what
  was copied of it, or a log that, from the first difference on, is shorter or has a newer epoch.
- A shorter log, or a newer epoch, is evidence only if the target has nothing beyond what was copied: a doubled batch makes
  the target longer, too.  So either the link had acknowledged or recorded that it copied up to the target's end, or all its
  batches from the difference on, 256 MB at most, lie where they belong by their sequences (places.py) and the source has
  the first of their records nowhere near.
- Everything else is a divergence of the target, under every policy: to continue would leave out records of the source.
- The link's own producer ids have no transactions but those that fence them (life/fence.py).  Where such a marker is the last that the
  link wrote, it was promoted, whatever others wrote after that, and whatever its control says: applications write there.
- Where the control does not say that the link has begun a log, it may have been promoted, and the control deleted since: nobody is
  told to delete such a topic without that.  Deleting takes what only the target has, which every advice to delete says.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import (
    DataLossError,
    SourceTruncatedError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, LogSlice, first_difference
from tolerant_client.mirror.batches.gaps import GapFill, is_filler, is_filler_marker
from tolerant_client.mirror.batches.losses import GOES_ON, LedgerRow, Loss, LossReason
from tolerant_client.mirror.engine.identical.given_times import times_rewritten
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.open_gaps import ended_gap
from tolerant_client.mirror.engine.identical.places import MOST_STEPS_BACK, read_places, step_back
from tolerant_client.mirror.engine.troubles import fill_again, others_remedy
from tolerant_client.mirror.logs.bisection import agreement_start, first_difference_of_logs
from tolerant_client.mirror.logs.reading import read_headers, read_slices, source_truncations
from tolerant_client.records.record_batch import BatchHeader, Record

_BATCHES_OF_A_DIFFERENCE = 50  # that are searched for records of the link
_STRETCHES = 50  # that are compared if the topic was created again on the source: all of 5,000 offsets
_NEARBY = 1000  # of the source that are searched for a record that the target has elsewhere
_AFTER_IT = f"resume after that offset with {GOES_ON}, or "
_KEPT_ON_TARGET = (LossReason.TRUNCATION.value, LossReason.RECREATION.value)


class AheadOfSource(NamedTuple):
    """The ledger says that the source was truncated: its log, up to `source_end`, is shorter than the target's."""

    state: AppendState
    source_end: int


class OpenTransaction(NamedTuple):
    """Others wrote last, and a transaction is open on the target: only its end shows whether what they wrote is a copy."""

    producer_id: int  # -1 if unknown
    offset: int

    def __str__(self) -> str:
        whose = f" of producer {self.producer_id}" if self.producer_id >= 0 else ""
        return (
            f"a transaction{whose} is open on the target since offset {self.offset}; what others wrote there is compared, and"
            " copying resumes, once it is over: commit or abort it"
        )


Meaning = AppendState | AheadOfSource | Loss | TolerantClientError


class EmptiedLogError(TargetDivergedError):
    """A target log is empty, and nothing shows that it was a copy up to its end."""


class Case(NamedTuple):
    """A partition whose logs do not agree; `cut` is where an election has truncated the source's log.

    `copied` is how far the link knows that it has copied it, None if it does not know.
    """

    link: str
    partition: TopicPartition
    logs: Logs
    last: BatchHeader | None
    state: AppendState
    cut: int | None
    producer_id: int
    own: Collection[int]  # every producer id that the link has had
    is_strange: bool = False  # the target's last batch is of no known writer, and not the source's
    is_same_topic: bool = False  # on the source, as its ids show
    copied: int | None = None
    differs_at: int | None = None  # where others' records after the link's differ
    is_begun: bool = False  # as the control says, which is not that of a former topic
    mm2: str = ""  # how the link goes on after MirrorMaker 2, if that has copied here (copied_by_mm2.py)

    def is_fence(self, header: BatchHeader | None) -> bool:
        """Whether a batch is the marker of a fence of the link."""
        return (
            header is not None
            and header.is_control
            and header.producer_id in self.own
            and header.base_offset >= self.logs.adopted
        )

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    def row(self, from_offset: int, until_offset: int, reason: LossReason, detail: str) -> LedgerRow:
        now_ms = int(time.time() * 1000)
        topic, partition = self.partition.topic, self.partition.partition
        return LedgerRow(now_ms, self.link, topic, partition, from_offset, until_offset, reason.value, detail)


def is_all_filler(copied: LogSlice | None) -> bool:
    return copied is not None and bool(copied.records) and all(map(is_filler, copied.records.values()))


def is_found(copied: LogSlice, visible: LogSlice, original: LogSlice, until: int) -> bool | None:
    """Whether a batch that others wrote has a record that the source has there, too: then another mirror copied it (M2).

    `copied` is what the target has of the batch, `visible` what read_committed consumers see of it; filler is the link's.
    None if the source could not be read up to `until`.
    """
    if all(map(is_filler, copied.records.values())):
        return True
    if any(
        original.records.get(offset) == record for offset, record in visible.records.items() if not is_filler(record)
    ):
        return True
    return False if original.until >= until else None


def share_records(original: LogSlice, copied: LogSlice) -> bool:
    return not original.records.keys().isdisjoint(copied.records)


def has_times_rewritten(case: Case) -> bool:
    """Whether the target's broker gave the log's last batch, one of the link's, its own time."""
    header = case.last
    return header is not None and header.next_offset > case.logs.adopted and _is_rewritten(header, case)


def _is_rewritten(header: BatchHeader, case: Case) -> bool:
    return header.producer_id in case.own and not header.is_control and header.has_log_append_time


async def explain(source: Cluster, target: Cluster, case: Case, rows: Collection[LedgerRow]) -> Meaning | None:
    """What a difference means; None if it is gone."""
    meaning = await _explain(source, target, case, rows)
    if case.last is None or not isinstance(meaning, (Loss, TolerantClientError)):
        return meaning
    p, least = case.partition, case.logs.written_from
    last = await step_back(target, {p: case.last}, {p: least}, lambda h: h.producer_id not in case.own, MOST_STEPS_BACK)
    return fenced(case, last[p]) if case.is_fence(last[p]) else meaning


async def _explain(source: Cluster, target: Cluster, case: Case, rows: Collection[LedgerRow]) -> Meaning | None:
    partition, logs = case.partition, case.logs
    accepted = [range(row.from_offset, row.until_offset) for row in rows]
    kept = [range(row.from_offset, row.until_offset) for row in rows if row.reason in _KEPT_ON_TARGET]
    is_kept = any(logs.target_end - 1 in span for span in kept)
    if has_times_rewritten(case) and not is_kept:
        return times_rewritten(str(case), await _first_rewritten(target, case), logs.target_end)
    first = await first_difference_of_logs(source, target, partition, *logs.common, accepted)
    if first is None and case.differs_at is not None:
        until = min(case.differs_at + 1, logs.common[1])
        first = await first_difference_of_logs(source, target, partition, logs.common[0], until, accepted)
        if first is None:  # or others have aborted what the source has committed there
            span = {partition: (case.differs_at, until)}
            original, copy = [
                (await read_slices(each, span, is_committed=True))[partition] for each in (source, target)
            ]
            first = first_difference(original, copy, accepted)
    if is_kept and first is None:  # a difference outside of the rows is another loss
        return AheadOfSource(case.state, logs.source_end) if logs.target_end > logs.source_end else case.state
    if case.cut is not None and (first is None or case.cut <= first):
        return _truncated(case, case.cut)
    if first is None and logs.target_end > logs.source_end:
        first = max(logs.source_end, logs.target_start)
    if first is None:
        if case.last is not None and case.is_strange:
            return _diverged(case, case.last, case.last.base_offset, _remedy(case, target))
        return case.state if accepted else None
    return await _explain_difference(source, target, case, first)


async def _explain_difference(source: Cluster, target: Cluster, case: Case, first: int) -> Meaning | None:
    """What it means that the target differs from the source from `first` on; None if the difference is gone."""
    at, marker = first, None
    for _ in range(_BATCHES_OF_A_DIFFERENCE):
        header = (await read_headers(target, {case.partition: at})).get(case.partition)
        if header is None:
            break
        span = (at, min(header.next_offset, at + COMPARED_OFFSETS))
        there = (await read_slices(target, {case.partition: span}, is_committed=False))[case.partition]
        if header.is_control and header.producer_id in case.own:
            return fenced(case, header)
        if header.is_control:
            marker = marker or (None if is_filler_marker(header) else header)
        elif not is_all_filler(there):
            if header.is_transactional or header.producer_id not in case.own:
                return _diverged(case, header, first, _remedy(case, target))
            return await _explain_own(source, target, case, first, header, there)
        at = header.next_offset
        if at >= case.logs.target_end:
            break
    if at == first and marker is None:
        return None
    # Filler has no records that could show what the source had there.
    is_own = await ended_gap(target, case.link, case.partition, marker)
    return _only_gaps(case, first, marker, _remedy(case, target), is_own=is_own)


async def _explain_own(
    source: Cluster, target: Cluster, case: Case, first: int, header: BatchHeader, there: LogSlice
) -> Meaning | None:
    if not there.records:
        return None
    offset, record = min(there.records.items())
    if (elsewhere := await _source_offset(source, case, record)) is not None:
        return TargetDivergedError(
            f"The target log of {case} has at offset {offset} (producer id {header.producer_id}, one of the mirror's own) the"
            f" record that the source has at offset {elsewhere}: the mirror's appends from offset {first} on are not at their"
            " offsets"
        ).advising(fill_again(is_begun=case.is_begun))
    logs = case.logs
    is_taken_back = logs.target_end > logs.source_end or await _has_newer_epoch(source, case.partition, first)
    if is_taken_back and case.copied == logs.target_end:
        return _truncated(case, first)
    places = await read_places(target, case.partition, (logs.written_from, logs.target_end), header, case.own)
    if (wrong := places.wrong) is not None:
        return TargetDivergedError(
            f"The target log of {case} has at offset {wrong.base_offset} a batch of the mirror (producer id {wrong.producer_id})"
            f" with sequence {wrong.base_sequence}, which does not continue the batch before it: it was appended twice, or where"
            " another batch belongs"
        ).advising(fill_again(is_begun=case.is_begun))
    if is_taken_back and places.is_proved:
        return _truncated(case, first)
    return TargetDivergedError(
        f"The target log of {case} has at offset {offset} (producer id {header.producer_id}, one of the mirror's own)"
        " another record than the source, and nothing shows that the source was truncated, or its topic created again"
    ).advising(fill_again(is_begun=case.is_begun))


async def _source_offset(source: Cluster, case: Case, record: Record) -> int | None:
    """Another offset at which the source has a record of the target; searched nearby, and by its timestamp."""
    logs, partition = case.logs, case.partition
    starts = [record.offset - _NEARBY, record.offset]
    if record.timestamp >= 0:
        try:
            starts.append((await source.list_offsets({partition: record.timestamp}))[partition])
        except UnsupportedSourceError:
            pass  # brokers before 0.10.1 have no offsets by time
    for start in starts:
        span = (max(start, logs.source_start), min(start + _NEARBY, logs.source_end))
        if start + _NEARBY > logs.source_start and span[0] < span[1]:
            there = (await read_slices(source, {partition: span}, is_committed=True))[partition]
            for offset, found in there.records.items():
                if offset != record.offset and found._replace(offset=record.offset) == record:
                    return offset
    return None


async def _has_newer_epoch(source: Cluster, partition: TopicPartition, first: int) -> bool:
    """Whether the source's epoch of the last batch before `first` ended there: what follows was written after an election."""
    before = (await read_headers(source, {partition: first - 1})).get(partition) if first else None
    return before is not None and partition in await source_truncations(
        source, {partition: (before.partition_leader_epoch, first + 1)}
    )


async def _first_rewritten(target: Cluster, case: Case) -> int:
    """Where the batches at the end of a log begin that have the broker's time."""
    assert case.last is not None
    low, high = case.logs.written_from, case.last.base_offset
    while low < high:
        middle = (low + high) // 2
        header = (await read_headers(target, {case.partition: middle})).get(case.partition)
        if header is not None and _is_rewritten(header, case):
            high = max(low, header.base_offset)
        else:
            low = middle + 1 if header is None else header.next_offset
    return high


def _diverged(case: Case, foreign: BatchHeader, offset: int, remedy: str) -> TargetDivergedError:
    return TargetDivergedError(
        f"The target log of {case} has a foreign record batch at offset {max(offset, foreign.base_offset)}"
        f"{_whose(case, foreign)} that the source does not have"
    ).advising(remedy)


def _whose(case: Case, foreign: BatchHeader) -> str:
    """Both producer ids, if they tell the writers apart."""
    if foreign.producer_id == case.producer_id:
        return ""
    return f" (producer id {foreign.producer_id}, the mirror's is {case.producer_id})"


def _remedy(case: Case, target: Cluster) -> str:
    return case.mm2 + others_remedy(case.partition.topic, case.link, target, is_begun=case.is_begun)


def fenced(case: Case, fence: BatchHeader) -> TargetDivergedError:
    return TargetDivergedError(
        f"The target log of {case} has at offset {fence.base_offset} the fence of this very link (a marker of producer id"
        f" {fence.producer_id}, the mirror's own), which its promotion or failover wrote: nothing more is copied into it"
    ).advising(
        "tolerant-kafka failback copies back. If tolerant-kafka status says nothing of the promotion (its record is gone), tolerant-kafka"
        " failover with --target, --link and --topics writes it again"
    )


def _only_gaps(
    case: Case, first: int, marker: BatchHeader | None, remedy: str, *, is_own: bool | None
) -> TargetDivergedError:
    what = "filler" if marker is None else "the marker of a transaction"
    whose = "" if marker is None else _whose(case, marker)
    at = first if marker is None else max(first, marker.base_offset)
    if is_own:
        return TargetDivergedError(
            f"The target log of {case} has the end of a gap transaction of the mirror at offset {at}, where the source has a"
            " record: its coordinator wrote that twice while it moved to another broker (the target's brokers were restarted), or"
            " the topic was created again, or lost records, while the transaction was open"
        ).advising(f"{fill_again(is_begun=case.is_begun)}. {GapFill.MARKERS.option} needs no coordinator")
    why = "another producer wrote it, or the source lost what the mirror had filled"
    if is_own is None:
        why = "whether another producer wrote it, or the mirror's own coordinator, is unknown, since that does not respond"
        remedy = "ask again (tolerant-kafka status) once it does, before you delete anything"
    return TargetDivergedError(
        f"The target log of {case} has {what} at offset {at}{whose} that the source does not have there: {why}"
    ).advising(remedy)


def misplaced(case: Case) -> TargetDivergedError:
    """The link's sequences count every offset once, and no gaps (M2): a sequence ahead of its offset was meant for a later one."""
    return TargetDivergedError(
        f"The target log of {case} ends at offset {case.logs.target_end}, and the mirror's last batch there was meant for a later"
        f" offset: its next sequence is {case.state.next_sequence}. The topic was deleted and created again on the target, or emptied,"
        " while the mirror wrote it"
    ).advising(fill_again(is_begun=case.is_begun))


async def created_again(target: Cluster, case: Case) -> TargetDivergedError:
    """For a log with content, of another topic than the one that the link has begun: a name is not a topic (M4)."""
    is_own = await ended_gap(target, case.link, case.partition, case.last)
    last = ", the end of a gap transaction that the mirror had left open in the former topic" if is_own else ""
    return TargetDivergedError(
        f"The topic of {case} was deleted and created again on the target since the mirror began to copy into it, and its new log"
        f" ends at offset {case.logs.target_end}{last}: what lies there is no copy"
    ).advising(f"{fill_again()}; if somebody needs those records, mirror into a topic of another name")


def nothing_proves(case: Case) -> TargetDivergedError:
    logs = case.logs
    has = f"has only offsets {logs.target_start} to {logs.target_end}" if logs.is_written else "is empty"
    kind = TargetDivergedError if logs.is_written else EmptiedLogError
    return kind(
        f"The target log of {case} ends at offset {logs.target_end}, but {has}: nothing shows that its former records were the"
        " source's, since the link has not recorded that it copied up to there"
    ).advising(fill_again(is_begun=case.is_begun))


def overtaken(case: Case) -> Loss:
    start, until = case.logs.target_end, case.logs.source_start
    if case.last is not None and case.last.is_control and not is_filler_marker(case.last):
        start = case.last.base_offset  # a marker is the link's or another's: without the source's records nothing tells
    row = case.row(start, until, LossReason.RETENTION, "deleted on the source before they were copied")
    anew = f", or {fill_again(is_begun=case.is_begun)}" if case.logs.target_end else ""
    error = DataLossError(
        f"The source of {case} no longer has offsets {start} to {until}: retention overtook the mirror"
    ).advising(f"resume after them with {GOES_ON}{anew}")
    return Loss(row, error, case.state, until)


async def recreated(source: Cluster, target: Cluster, case: Case) -> Loss | AppendState:
    """What a new id of the source's topic means; the row spans the offsets from the first to the last difference.

    No loss, but the state to resume from, if all of a log of up to 5,000 offsets agrees and the source has as much.
    """
    logs, (start, end) = case.logs, case.logs.common
    first, until = min(logs.source_start, logs.target_start), logs.target_end
    if start < end:
        last = end
        difference = await first_difference_of_logs(source, target, case.partition, start, end)
        if difference is None:
            is_small = end - start <= _STRETCHES * COMPARED_OFFSETS  # then all of it is compared
            if is_small and until <= end and await _agree(source, target, case.partition, start, end):
                return case.state
            last = await agreement_start(source, target, case.partition, start, end)
            difference = await first_difference_of_logs(source, target, case.partition, start, last)
        elif difference > start and not await _agree(source, target, case.partition, start, difference):
            difference = start
        if logs.source_start == logs.target_start and (difference is not None or until > end):
            first = end if difference is None else difference
        if difference is not None and until <= end:
            until = last
    here = "has other records here; the target keeps what it has"
    if not logs.target_end:
        here = "its former records were not copied, and are not known"
    detail = f"the source's topic was deleted and created again, and {here}"
    row = case.row(first, until, LossReason.RECREATION, detail)
    error = SourceTruncatedError(
        f"The source topic of {case} was deleted and created again, as its id shows, and its log spans offsets"
        f" {logs.source_start} to {logs.source_end} now (the target's ends at {logs.target_end})"
    ).advising(_AFTER_IT + fill_again(is_begun=case.is_begun))
    return Loss(row, error, case.state, logs.target_end)


async def _agree(source: Cluster, target: Cluster, partition: TopicPartition, start: int, end: int) -> bool:
    """Whether both logs agree in a few samples, and both have records in the first and the last sample."""
    last = max(start, end - COMPARED_OFFSETS)
    step = max(COMPARED_OFFSETS, (last - start) // _STRETCHES)
    for at in (last, *range(start, last, step)):
        span = (at, min(at + COMPARED_OFFSETS, end))
        original = (await read_slices(source, {partition: span}, is_committed=True))[partition]
        copied = (await read_slices(target, {partition: span}, is_committed=False))[partition]
        if (
            first_difference(original, copied) is not None
            or at in (start, last)
            and not share_records(original, copied)
        ):
            return False
    return True


def _truncated(case: Case, first: int) -> Loss:
    logs = case.logs
    start, end = logs.common
    before = "those that were copied" if logs.is_written else "when its copy was begun, which has none yet"
    # The log of a topic that was created again begins at 0.
    if not case.is_same_topic and (start >= end or first <= start and logs.source_start == 0):
        reason = LossReason.RECREATION
        what = f"other records from offset {first} on: its topic was deleted and created again"
    else:
        reason = LossReason.TRUNCATION
        what = f"other records from offset {first} on than {before}: it was truncated"
    row = case.row(first, logs.target_end, reason, f"the source has {what}; the target keeps what it has")
    error = SourceTruncatedError(
        f"The source of {case}, offsets {logs.source_start} to {logs.source_end}, has {what} (the target's log ends at"
        f" {logs.target_end})"
    ).advising(_AFTER_IT + fill_again(is_begun=case.is_begun))
    return Loss(row, error, case.state, logs.target_end)
