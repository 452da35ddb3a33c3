"""Reads what both logs of partitions show, and others beside them: resume_point.py decides what it means.

All is read before anything is decided, with one request for each broker, not for each partition.  What was not read this time is
no evidence: such a partition is absent.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S
from tolerant_client.cluster.admin.offsets import Unreplicated, Untold, list_led_offsets, replicated_ends
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.mirror.batches.divergence import LogSlice, first_difference
from tolerant_client.mirror.batches.gaps import is_filler_marker
from tolerant_client.mirror.engine.identical.difference import (
    Case,
    OpenTransaction,
    has_times_rewritten,
    is_all_filler,
    share_records,
)
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.next_sequence import is_data_of, read_sequences
from tolerant_client.mirror.engine.identical.other_writers import read_other_writers, unproved_tails
from tolerant_client.mirror.logs.reading import has_nothing_at, read_headers, read_slices, source_truncations
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.records.record_batch import BatchHeader

_T = TypeVar("_T")


@dataclass(frozen=True)
class Known:
    """What a process knows of its link before it reads logs.

    `copied`, where known, has the source's leader epoch of the last copied batch and the offset up to which was copied.
    With `at_high_watermark` logs are compared up to there, and nothing may be appended to them.
    """

    link: str
    producer_id: int
    control: LinkControl
    ids: Mapping[str, TopicIds]  # read_ids'
    copied: Mapping[TopicPartition, tuple[int, int]]
    at_high_watermark: bool

    @property
    def own(self) -> set[int]:
        """Every producer id that the link has had."""
        return {known for known in (self.producer_id, *self.control.producer_ids) if known >= 0}

    def ids_of(self, partition: TopicPartition) -> TopicIds:
        return self.ids.get(partition.topic, TopicIds())

    def copied_to(self, logs: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """How far the control says that the link has copied these logs, without those of former topics."""
        control = self.control
        return {p: end for p, end in control.copied.items() if p in logs and control.has_begun(p, self.ids)}

    def asked_starts(self, logs: Mapping[TopicPartition, Logs]) -> dict[TopicPartition, tuple[int, int]]:
        """What to ask the source's leaders of where those logs begin that have nothing of it yet (LinkControl.asked_start)."""
        asked = {p: self.control.asked_start(p, self.ids_of(p).source) for p in logs}
        return {p: start for p, start in asked.items() if start is not None and logs[p].target_end <= start[1]}


@dataclass(frozen=True)
class Evidence:
    """What was read of a partition; its properties are what that proves.

    `tail` is the end of the target's log, and `original` what the source has there; None unless that had to be compared.
    `is_remembered`: a broker of the target remembers the link's producer.  `start_cut` is where the source's log was cut below the
    offset at which the target's was to begin, of a log that has nothing after that.
    """

    case: Case
    control: LinkControl
    ids: TopicIds  # of its topic, now
    is_remembered: bool = False
    tail: LogSlice | None = None
    original: LogSlice | None = None
    at_high_watermark: bool = False
    start_cut: int | None = None

    @property
    def begun(self) -> TopicIds | None:
        """The ids of the topics whose logs the link had begun; None if the target's log is not that one."""
        begun = self.control.begun.get(self.case.partition)
        return begun if begun is not None and begun.is_of_target(self.ids) else None

    @property
    def is_created_again(self) -> bool:
        """Whether the log has content, and belongs to another topic than the one that the link had begun."""
        return bool(self.case.logs.target_end and self.case.partition in self.control.begun and self.begun is None)

    @property
    def filled_to(self) -> int | None:
        """The offset where the filled log was to begin, if the control has one."""
        return self.control.log_starts.get(self.case.partition)

    @property
    def first(self) -> int:
        """Where a log begins of which nothing is begun."""
        return max(self.case.logs.source_start, self._given)

    @property
    def begun_at(self) -> int | None:
        """Where an empty log that the link has begun is to begin; None if the link has not begun it."""
        return (self.filled_to or self._given) if self._is_begun_empty else None

    @property
    def is_start_unproved(self) -> bool:
        """Whether the link has begun the log, and has not recorded that it copied anything after its start."""
        is_begun = self.begun is not None and not self.case.logs.adopted
        return is_begun and (self.case.copied or 0) < (self.filled_to or 0)

    @property
    def is_sequence_ahead(self) -> bool:
        """Whether the link's last batch was meant for a later offset."""
        case = self.case
        # A broker that is asked may remember batches that were appended after what is compared.
        is_of_this_end = not self.at_high_watermark or case.last is not None and is_data_of(case.last, case.own)
        return is_of_this_end and case.state.next_sequence > case.logs.target_end

    @cached_property
    def is_proved(self) -> bool:
        """Whether something shows that the log is a copy up to its end."""
        case = self.case
        if case.is_strange:
            return False
        has_link_written = self.begun is not None or self.is_remembered or case.logs.adopted > 0
        return (
            has_link_written
            and self._is_end_known
            or case.last is not None
            and (case.last.producer_id in case.own or is_filler_marker(case.last))
            or is_all_filler(self.tail)
            or case.logs.has_common
            and (self.original is None or self.tail is not None and share_records(self.original, self.tail))
        )

    @property
    def is_contradicted(self) -> bool:
        """Whether anything shows that the target has what the source does not have there."""
        case = self.case
        return (
            case.cut is not None
            or case.logs.target_end > case.logs.source_end
            or case.differs_at is not None
            or case.is_strange
            or has_times_rewritten(case)
        )

    @property
    def _is_end_known(self) -> bool:
        case, end = self.case, self.case.logs.target_end
        return (
            case.last is not None
            or case.logs.adopted == end
            or self.begun is not None
            and end in (case.copied, self.filled_to)
            or self.is_remembered
            and case.state.next_sequence == add_sequence(end, 0)
        )

    @property
    def _is_begun_empty(self) -> bool:
        # Without ids, an empty log that was copied before must have been created again since.
        return self.begun is not None and (bool(self.begun.target) or not self.case.copied)

    @property
    def _given(self) -> int:
        # Once it is begun, what the source lost is a loss.
        found = (None, None) if self._is_begun_empty else (self.case.logs.source_end, self.start_cut)
        return self.control.start_of(self.case.partition, self.ids.source, *found) or 0


class Read(NamedTuple):
    """What was read of partitions; of those in `left_out` an end is unknown, and of those in `opened` how a transaction ends."""

    evidence: Mapping[TopicPartition, Evidence]
    left_out: Mapping[TopicPartition, Unreplicated | Untold]
    opened: Mapping[TopicPartition, OpenTransaction | Untold]

    def replaced(self, partitions: Collection[TopicPartition], anew: Read) -> Read:
        """With what was read `anew` of these partitions in place of what was read before.  Pure."""
        return Read(
            with_anew(self.evidence, anew.evidence, partitions),
            with_anew(self.left_out, anew.left_out, partitions),
            with_anew(self.opened, anew.opened, partitions),
        )


def with_anew(
    before: Mapping[TopicPartition, _T], anew: Mapping[TopicPartition, _T], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, _T]:
    """What is said of partitions: `anew` of these, and as `before` of all others.  Pure."""
    kept = {p: said for p, said in before.items() if p not in partitions}
    return kept | {p: said for p, said in anew.items() if p in partitions}


async def read_evidence(source: Cluster, target: Cluster, partitions: Collection[TopicPartition], known: Known) -> Read:
    """What both logs of partitions show; partitions that could not be read this time are absent."""
    own = known.own
    truncated = await source_truncations(source, known.copied)
    logs, left_out = await _read_bounds(source, target, partitions, known)
    start_cuts = await source_truncations(source, known.asked_starts(logs))
    last, bare = await _read_last(target, logs)
    logs = {p: log for p, log in logs.items() if not log.is_written or p in last or p in bare}
    copied = known.copied_to(logs)
    originals, tails = await _read_tails(source, target, logs, last, bare, own)
    others = await read_other_writers(source, target, logs, last, own, copied)
    logs = {p: log for p, log in logs.items() if p not in others.unread}
    last = {p: header for p, header in last.items() if p in logs}
    states, remembered = await read_sequences(target, logs, last, known.producer_id, own, known.at_high_watermark)
    evidence: dict[TopicPartition, Evidence] = {}
    for p, state in states.items():
        ids, log, cut = known.ids_of(p), logs[p], truncated.get(p, start_cuts.get(p))
        begun = known.control.begun[p] if known.control.has_begun(p, known.ids) else None
        differs_at = first_difference(originals[p], tails[p]) if p in originals else None
        case = Case(
            known.link,
            p,
            log,
            last.get(p),
            state._replace(topic_id=uuid.UUID(ids.target) if ids.target else None),
            cut if cut is not None and cut < log.target_end else None,
            known.producer_id,
            own,
            p in others.strange,
            begun is not None and bool(begun.source) and begun.source == ids.source,
            copied.get(p),
            others.differ_at.get(p, differs_at),
            begun is not None or log.adopted > 0,
        )
        evidence[p] = Evidence(
            case,
            known.control,
            ids,
            p in remembered,
            tails.get(p),
            originals.get(p),
            known.at_high_watermark,
            start_cuts.get(p),
        )
    return Read(evidence, left_out, others.opened)


async def _read_bounds(
    source: Cluster, target: Cluster, partitions: Collection[TopicPartition], known: Known
) -> tuple[dict[TopicPartition, Logs], dict[TopicPartition, Unreplicated | Untold]]:
    unknown: dict[TopicPartition, Unreplicated | Untold] = {}

    async def told(
        cluster: Cluster, partitions: Iterable[TopicPartition], which: int, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, which)
        offsets, left_out = await list_led_offsets(cluster, asked, isolation_level=isolation_level, within_s=LATE_S)
        unknown.update((p, Untold(why)) for p, why in left_out.items())
        return offsets

    # The target first: whatever it has by then, the source had before.
    target_start = await told(target, partitions, EARLIEST)
    target_end: dict[TopicPartition, int] = {}
    if known.at_high_watermark:
        target_end = await told(target, target_start, LATEST)
    else:
        for p, end in (await replicated_ends(target, target_start)).items():
            if isinstance(end, int):
                target_end[p] = end
            else:
                unknown[p] = end
    source_start = await told(source, target_end, EARLIEST)
    if known.at_high_watermark:
        # A mirror may append meanwhile, and somebody purge what it has copied: an end from before proves no loss.
        below = [p for p, start in source_start.items() if target_end[p] < start]
        target_end = with_anew(target_end, await told(target, below, LATEST), below)
    # Nothing after the last stable offset was ever copied: what the target has there is somebody else's.
    source_end = await told(source, source_start.keys() & target_end.keys(), LATEST, READ_COMMITTED)
    # A log that ends before the end of what was adopted was created again since.
    adopted = {p: offset for p, offset in known.control.adopted.items() if offset <= target_end.get(p, 0)}
    return {
        p: Logs(source_start[p], max(end, source_start[p]), target_start[p], target_end[p], adopted.get(p, 0))
        for p, end in source_end.items()
    }, unknown


async def _read_last(
    target: Cluster, logs: Mapping[TopicPartition, Logs]
) -> tuple[dict[TopicPartition, BatchHeader], set[TopicPartition]]:
    """The last batches of logs, and the logs that the cleaner has left without one at their end."""
    ends = {p: log.target_end - 1 for p, log in logs.items() if log.is_written}
    last = await read_headers(target, ends)
    bare = await has_nothing_at(target, {p: end for p, end in ends.items() if p not in last})
    return {p: header for p, header in last.items() if header.next_offset == logs[p].target_end}, bare


async def _read_tails(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    bare: Collection[TopicPartition],
    own: Collection[int],
) -> tuple[dict[TopicPartition, LogSlice], dict[TopicPartition, LogSlice]]:
    """What the source has at the ends of the logs that their headers do not prove; and what the target has, also in those of
    which the source has nothing any more.
    """
    unproved = await unproved_tails(source, logs, last, own)
    unproved |= {p: logs[p].window for p in bare if logs[p].has_common}
    originals = await read_slices(source, unproved, is_committed=True)
    ends = {p: (log.target_end - 1, log.target_end) for p, log in logs.items() if log.is_written and not log.has_common}
    return originals, await read_slices(target, {**unproved, **ends}, is_committed=False)
