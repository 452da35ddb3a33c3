"""The way back: a link onto a cluster that was the source once copies only what it lacks.

Both logs of a partition are the same up to a point.  Where the old source's log ends there, a link in the other direction
adopts what is there: it goes on at that offset, with a producer id of its own, as if it had copied all before.  Where the
old source has more (what it took and nobody copied before it went), its log cannot hold the new source's records at their
offsets, and no broker cuts a log: the operator keeps it, or gives those records up and has the topic made anew.

Roles here are those of the link to come: `source` has the newer data, `target` is the old source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.divergence import first_difference_of_logs, read_slices
from tolerant_client.mirror.gaps import is_filler
from tolerant_client.mirror.link.beginning import refuse_circle, writes
from tolerant_client.mirror.link.control import LinkControl, read_control, read_controls, update_control
from tolerant_client.mirror.plan import select_topics
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.translated.map_topic import map_topic
from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, RawCluster

_LISTED = 1_000  # offsets of lost records that are told one by one
_COUNTED = 1_000_000  # offsets that are looked through for records
_DELETE_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class SharedLog:
    """A partition that both clusters have: its logs are the same up to `shared_until`.

    What the target has from there on to `target_end` was never copied: `lost_records` committed records, whose offsets
    are in `lost_offsets` as half-open runs.  `to_copy` are the offsets that the link will copy.
    """

    topic: str
    partition: int
    shared_until: int
    target_end: int
    source_end: int
    lost_records: int = 0
    lost_offsets: tuple[tuple[int, int], ...] = ()
    is_proved: bool = True  # False: the source no longer has anything to compare the target's log with
    is_open: bool = False  # transactions are open on the target: its log will still grow

    @property
    def is_diverged(self) -> bool:
        return self.target_end > self.shared_until

    @property
    def to_copy(self) -> int:
        return max(0, self.source_end - self.shared_until)


@dataclass(frozen=True)
class FailbackReport:
    """What a link back finds, and what was done for it: `is_done` once it can be started."""

    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[SharedLog, ...]
    deleted_topics: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(p), "is_diverged": p.is_diverged, "to_copy": p.to_copy} for p in self.partitions]
        return {**asdict(self), "partitions": rows, "exit_code": self.exit_code}


def blockers(partitions: Collection[SharedLog], *, discards: bool) -> tuple[str, ...]:
    """Why a link back cannot begin; pure."""
    found = []
    if opened := [p for p in partitions if p.is_open]:
        found.append(
            f"transactions are open on the target, {opened[0].topic}-{opened[0].partition} ({len(opened)} partitions): wait until"
            " its coordinator has ended them, then look again"
        )
    if diverged := [p for p in partitions if p.is_diverged]:
        first = diverged[0]
        lost = sum(p.lost_records for p in diverged)
        if not discards:
            found.append(
                f"{len(diverged)} partitions of the target have what was never copied, {lost:,} committed records in all:"
                f" {first.topic}-{first.partition} from offset {first.shared_until} to {first.target_end}. Read what you need from"
                " there, then give it up with --discard-diverged: these topics are deleted on the target and copied anew"
            )
    return tuple(found)


async def failback(
    source: RawCluster,
    target: RawCluster,
    link: str,
    topics: LinkTopics | str,
    *,
    discards: bool = False,
    is_dry_run: bool = False,
) -> FailbackReport:
    """Prepares a link back: compares the logs, and writes down up to where the target's are adopted.

    With `discards` topics of the target that diverged are deleted, to be copied anew.  The mirror is started afterwards
    as any other.  Where something is in the way nothing is written.  Raises OptionError where the link to be is live,
    where it would run in a circle (the forward link was not promoted), and for translated offsets; KafkaError.
    """
    chosen = LinkTopics.of(topics)
    if chosen.to_target("orders") != "orders":
        raise OptionError(
            f"Link {link} renames topics (orders to {chosen.to_target('orders')}): what it copies back would be other topics."
            " Failing back needs the same names on both clusters (IdentityReplicationPolicy)"
        )
    await source.connect()
    await target.require_record_batches()
    if await source.cluster_id() == await target.cluster_id() is not None:
        raise OptionError(f"Source and target are the same cluster ({await source.cluster_id()}); give two clusters")
    names = select_topics(chosen, await source.partitions())
    await refuse_circle(source, target, [source.wire_topic(name) for name in names], link)
    await _refuse_translated(source, target, names)
    control = await read_control(target, link)
    _refuse_live(control, link)
    partitions = await _shared(source, target, names)
    logs = tuple([await compare_logs(source, target, partition) for partition in partitions])
    found = blockers(logs, discards=discards)
    doomed = tuple(sorted({p.topic for p in logs if p.is_diverged})) if discards else ()
    if found or is_dry_run:
        return FailbackReport(link, is_dry_run, False, logs, (), found)
    if doomed:
        await delete_topics(target, doomed)
    adopted = {TopicPartition(p.topic, p.partition): p.shared_until for p in logs if p.topic not in doomed and p.shared_until}
    generation = control.generation + 1 if control.producer_ids or control.is_promoted else control.generation
    cluster_id, taken = await source.cluster_id(), chosen.to_json()

    def begin(now: LinkControl) -> LinkControl:
        return replace(
            now,
            is_promoted=False,
            is_fenced=False,
            generation=generation,
            producer_ids=(),
            adopted=adopted,
            starts={},
            source_cluster_id=cluster_id,
            topics=taken,
        )

    await update_control(target, link, begin)
    return FailbackReport(link, False, True, logs, doomed)


async def _refuse_translated(source: RawCluster, target: RawCluster, names: Iterable[str]) -> None:
    """What was copied with translated offsets is at other places on the two clusters."""
    there = await target.cluster_id()
    for other, control in (await read_controls(source)).items():
        if control.source_cluster_id != there or not control.topics:
            continue
        both = sorted(name for name in names if writes(LinkTopics.from_json(control.topics), source.wire_topic(name)))
        offset_map = source.topic_of(map_topic(other))
        if both and offset_map in await source.partitions([offset_map]):
            raise OptionError(
                f"Link {other} copied topic {both[0]} with translated offsets: its records are at other offsets on the two"
                " clusters, and failback compares logs that are alike; leave such topics out"
            )


def _refuse_live(control: LinkControl, link: str) -> None:
    """A link that is copying must not be given another beginning."""
    if control.producer_ids and not control.is_promoted:
        raise OptionError(
            f"Link {link} copies into this target already and was not promoted: its mirror needs no failback to go on;"
            " for another link give --link"
        )


async def _shared(source: RawCluster, target: RawCluster, names: Iterable[str]) -> list[TopicPartition]:
    here, there = await source.partitions(names), await target.partitions(names)
    return sorted(
        TopicPartition(topic, n) for topic, numbers in here.items() for n in numbers if n in there.get(topic, ())
    )


async def compare_logs(source: RawCluster, target: RawCluster, partition: TopicPartition) -> SharedLog:
    """Up to where the two logs of a partition are the same, and what the target has beyond.

    The target was the original: only its committed records count, and what the source has besides must be what a mirror
    fills gaps with.
    """
    wanted = {partition: LATEST}
    end = (await target.list_offsets(wanted))[partition]
    stable = (await target.list_offsets(wanted, isolation_level=READ_COMMITTED))[partition]
    start = (await target.list_offsets({partition: EARLIEST}))[partition]
    source_end = (await source.list_offsets(wanted))[partition]
    source_start = (await source.list_offsets({partition: EARLIEST}))[partition]
    common = max(start, source_start), min(end, source_end)
    is_proved = True
    if common[0] < common[1]:
        difference = await first_difference_of_logs(target, source, partition, *common)
        first = common[1] if difference is None else difference
    elif start == end or source_end <= start:
        first = min(end, source_end)  # no record of the target contradicts the source
    else:
        first, is_proved = start, False  # the source has deleted all that the target has
    lost, runs = await _records_between(target, partition, first, end) if end > first else (0, ())
    topic, index = partition
    return SharedLog(topic, index, first, end, source_end, lost, runs, is_proved, stable < end)


async def _records_between(
    cluster: RawCluster, partition: TopicPartition, start: int, end: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """How many committed records there are, and where, as far as they are listed."""
    span = {partition: (start, min(end, start + _COUNTED))}
    found = (await read_slices(cluster, span, is_committed=True))[partition]
    offsets = sorted(offset for offset, record in found.records.items() if not is_filler(record))
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        elif len(runs) < _LISTED:
            runs.append((offset, offset + 1))
    return len(offsets), tuple(runs)


async def delete_topics(target: RawCluster, names: Collection[str]) -> None:
    """Deletes topics and waits until no broker knows them; raises KafkaError."""

    async def delete() -> None:
        controller = target.manager.cluster.controller
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=_DELETE_TIMEOUT_MS, max_version=5)
        answer = await target.send(request, None if controller is None else controller.node_id)
        for result in answer.responses:
            if result.error_code not in (0, Errors.UnknownTopicOrPartitionError.errno):
                raise Errors.for_code(result.error_code)(f"deleting topic {result.name}")

    async def gone() -> None:
        if left := await target.partitions(names):
            raise Errors.OffsetNotAvailableError(f"topic {min(left)} is still there")

    await target.insist("deleting topics", delete)
    await target.insist("waiting until deleted topics are gone", gone)
