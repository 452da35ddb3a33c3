"""Reads the rows of a link's offset map (map_topic.py), says there that the link is over, and deletes old rows.

Laws:
- What a writer reads after InitProducerId has fenced all others is final: no older transaction of its transactional.id
  can end any more, and the markers of those that did are below the high watermark.
- Deleting rows needs no transaction: only final rows are deleted (Law C of offset_map.py).
- A promoted link is over, whatever its control says now, if a row of the map says so (Law E of offset_map.py).  Whoever reads where
  to resume finds that row: it is after all rows of its generation.  It is no row of a topic for anybody else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import LinkPromotedError, text_of
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import orders_hidden, read_control
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.map_topic import (
    MAP_PARTITIONS,
    has_map,
    lost_map,
    map_of,
    map_partition,
    map_topic,
    require_same_map,
)
from tolerant_client.mirror.state.offset_map import (
    LAST,
    CommittedRows,
    MapRow,
    OffsetMap,
    RowKey,
    is_another,
    last_of,
)
from tolerant_client.mirror.state.state_topic import StateTopic
from tolerant_client.records.record_batch import Record

_FIRST_LOOK: Final = 2_000  # offsets before the end that are read first for the newest rows
_TOMBSTONES: Final = 1_000  # in one batch


class LastRow(NamedTuple):
    """The newest committed row of a source partition, if it has one, and the producer id of a transaction with rows that is not over."""

    row: MapRow | None = None
    writer: int | None = None


async def read_last_rows(
    target: Cluster, link: str, partitions: Iterable[TopicPartition], control: LinkControl
) -> dict[TopicPartition, LastRow]:
    """What the map says last of each source partition of which it says something, to resume there.

    Raises TargetDivergedError if the map is lost, LinkPromotedError if it says that the link is over.
    """
    parts = _by_map_partition(link, partitions)
    try:
        rows, writers = await _newest_rows(target, link, parts)
    except Errors.KafkaError:
        await require_same_map(target, link, control, parts)
        raise
    await require_same_map(target, link, control, parts)
    last = rows.pop(LAST, None)
    require_not_last(target, link, control, -1 if last is None else last.key.number)
    return {p: LastRow(rows.get(p), writers.get(p)) for p in rows.keys() | writers.keys()}


def require_not_last(target: Cluster, link: str, control: LinkControl, last: int) -> None:
    """Raises LinkPromotedError if `last`, the newest generation that the map calls over, is the link's, or a later one."""
    if last >= control.generation:
        which = link_options(link, target) + ("" if target.file_options else " --topics REGEX")
        raise LinkPromotedError(
            f"Link {link} was promoted, as {map_topic(link)} of the target says: the target belongs to its own producers, and nothing"
            f" is copied into it any more. Its record in {CONTROL_TOPIC}, which said so too, was deleted since; tolerant-kafka failover"
            f" {which} writes it again. To copy everything anew, delete first the topics that the link has copied, and then its offset"
            " map, on the target"
        )


async def say_over(target: Cluster, link: str, generation: int, *, patience_ms: int) -> dict[TopicPartition, str]:
    """Has the map say that this generation of the link is over, once its writers are fenced; where that failed, and why."""
    record = Record(0, int(time.time() * 1000), last_of(generation).key.encode(), last_of(generation).encode())
    topic, failed = map_of(target, link), dict[TopicPartition, str]()

    async def write(number: int) -> None:
        await target.insist("ending the offset map", partial(topic.append, [record], number), patience_ms)

    for number, writing in [(n, target.net.call_soon_with_future(write, n)) for n in range(MAP_PARTITIONS)]:
        try:
            await writing
        except Errors.KafkaError as error:
            failed[TopicPartition(topic.name, number)] = text_of(error)
    return failed


async def _newest_rows(
    target: Cluster, link: str, parts: Mapping[TopicPartition, set[TopicPartition]]
) -> tuple[dict[TopicPartition, MapRow], dict[TopicPartition, int]]:
    """The newest row of each of the partitions of these parts of the map that has one, and the newest LAST row of the parts.

    Also who has a transaction with further rows of some of the partitions that is not over (CommittedRows.writers).
    """
    topic, found, writers = map_of(target, link), dict[TopicPartition, MapRow](), dict[TopicPartition, int]()
    for there, wanted in parts.items():
        start, end = await topic.start(there.partition), await topic.end(there.partition)
        rows, more = await _newest_of(topic, there.partition, start, end, wanted)
        found = _joined(found, rows)
        writers |= {p: producer_id for p, producer_id in more.items() if p in wanted}
    return found, writers


async def _newest_of(
    topic: StateTopic, number: int, start: int, end: int, wanted: set[TopicPartition] | None
) -> tuple[dict[TopicPartition, MapRow], dict[TopicPartition, int]]:
    """The newest rows in one part of a map: all, or those `wanted`, and LAST, for which it reads no more than it takes.

    It reads ever larger pieces before the end, where LAST is, and the rows of what was copied lately.  Also who has a
    transaction with further rows that is not over.
    """
    size, found = end - start if wanted is None else _FIRST_LOOK, dict[TopicPartition, MapRow]()
    while True:
        from_offset = max(start, end - size)
        committed = CommittedRows(f"{topic.name}-{number}")
        async for key, row in _rows(topic, number, from_offset, end, committed):
            if row is not None and (wanted is None or key.partition in wanted or key.partition == LAST):
                found[key.partition] = row  # the last one wins: rows are written in the order of their numbers
        if from_offset == start or wanted is not None and wanted <= found.keys():
            return found, committed.writers
        size *= 8


async def last_rows(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MapRow]:
    """As last_told, only the rows."""
    return {p: last.row for p, last in (await last_told(target, link, partitions)).items() if last.row is not None}


async def last_told(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LastRow]:
    """As read_last_rows, but without checking whose map the topic is, and of a link that is over, too; empty without a map."""
    parts = _by_map_partition(link, partitions)
    if not await map_of(target, link).exists():
        return {}
    rows, writers = await _newest_rows(target, link, parts)
    return {p: LastRow(rows.get(p), writers.get(p)) for p in (rows.keys() | writers.keys()) - {LAST}}


async def copied_until(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The source offset before which each partition is on the target: copied, or there when the link took over.

    A log that the link took over and that is empty now was created again: it has nothing, as a topic with another id than was copied to.
    Empty if the map is lost: then it is unknown.
    """
    wanted = list(partitions)
    rows = await last_rows(target, link, wanted)
    control = await read_control(target, link)
    if await lost_map(target, link, control) is not None:
        return {}
    adopted = control.adopted
    uncopied = [p for p in wanted if p not in rows or not rows[p].is_kept]
    taken = [p for p in uncopied if p in adopted or p in rows and rows[p].is_adopted]
    ends = (await list_led_offsets(target, dict.fromkeys(taken, LATEST))).offsets if taken else {}
    found = {p: max(rows[p].position if p in rows else 0, adopted.get(p, 0)) for p in wanted}
    now = await topic_ids(target, {p.topic for p in rows})
    anew = [p for p, row in rows.items() if is_another(row.ids[1], str(now.get(p.topic, "")))]
    return {**found, **{p: 0 for p, end in ends.items() if not end}, **dict.fromkeys(anew, 0)}


async def read_maps(
    target: Cluster, link: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetMap]:
    """The whole maps of these source partitions, or of all; partitions without copied records are absent."""
    topic, rows = map_of(target, link), dict[TopicPartition, dict[int, MapRow]]()
    chosen = None if partitions is None else set(partitions)
    everywhere = [TopicPartition(map_topic(link), number) for number in range(MAP_PARTITIONS)]
    for there in everywhere if chosen is None else _by_map_partition(link, chosen):
        async for key, row in _rows(topic, there.partition):
            if key.partition == LAST or chosen is not None and key.partition not in chosen:
                continue
            of = rows.setdefault(key.partition, {})
            if row is None:
                of.pop(key.number, None)
            else:
                of[key.number] = row
    if (control := await read_control(target, link)).is_hidden:
        raise orders_hidden()  # what was taken over from another mirror is unknown
    adopted = control.adopted
    maps = {partition: OffsetMap(of.values(), adopted.get(partition, 0)) for partition, of in rows.items() if of}
    return {partition: found for partition, found in maps.items() if found.runs}


def leaderless_parts(target: Cluster) -> frozenset[TopicPartition]:
    """The parts, of all maps that were asked for, that have no leader according to the last Metadata."""
    parts = (TopicPartition(name, n) for name in target.tracked(map_topic("")) for n in range(MAP_PARTITIONS))
    return frozenset(part for part in parts if target.known_leader(part) is None)


class MappedTopics(NamedTuple):
    """The partitions (names on the target) of which a map has rows; and why some of the map's own partitions are unread.

    `copies` are the newest rows of those whose target logs have records of the link, or had some when it took them over, `uncopied`
    those of the others, which it has begun.
    `last` is the newest generation of the link that the map calls over; -1: none.  `undecided` are rows in transactions that are not
    over, of maps that are `known`.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unread: Mapping[TopicPartition, str] = MappingProxyType({})
    copies: Mapping[TopicPartition, MapRow] = MappingProxyType({})
    last: int = -1
    undecided: Mapping[TopicPartition, MapRow] = MappingProxyType({})
    uncopied: Mapping[TopicPartition, MapRow] = MappingProxyType({})

    @property
    def names(self) -> frozenset[str]:
        return frozenset(p.topic for p in self.partitions)


NO_MAP: Final = MappedTopics()


async def mapped_topics(
    target: Cluster,
    link: str,
    control: LinkControl,
    *,
    of: Iterable[TopicPartition] | None = None,
    patience_ms: int = 0,
    within_s: float | None = None,
    known: KnownMaps | None = None,
    is_there: bool = False,
) -> MappedTopics:
    """The partitions in the map of a link, if it has one; no partition of the map waits for the leader of another one.

    `of`: those among these, for which less is read, or what is not `known` yet.  Waits `patience_ms` for missing leaders; partitions
    that are not read `within_s` seconds, if given, stay unread.  `is_there`: has_map and lost_map have said that.  The rows that a map
    still has are true, also if it was trimmed.
    """
    if not is_there:
        is_there = await has_map(target, link, control) and await lost_map(target, link, control, ()) is None
    if not is_there:
        return NO_MAP
    parts: dict[TopicPartition, set[TopicPartition] | None] = {**_by_map_partition(link, of or ())}
    if of is None:
        parts = {TopicPartition(map_topic(link), number): None for number in range(MAP_PARTITIONS)}
    ends, unread = await list_led_offsets(target, dict.fromkeys(parts, LATEST), patience_ms=patience_ms)
    starts, more = await list_led_offsets(target, dict.fromkeys(ends, EARLIEST))
    unread = {**unread, **more}
    until = None if within_s is None else time.monotonic() + within_s
    topic, found, undecided = map_of(target, link), dict[TopicPartition, MapRow](), dict[TopicPartition, MapRow]()
    read_before = {} if known is None else {p: known.part(topic, p.partition, s, ends[p]) for p, s in starts.items()}

    async def read(partition: TopicPartition) -> dict[TopicPartition, MapRow]:
        end, wanted = ends[partition], parts[partition]
        if wanted is not None and partition in read_before:
            return await read_before[partition].newest(end, {*wanted, LAST})
        return (await _newest_of(topic, partition.partition, starts[partition], end, wanted))[0]

    reads = {p: target.net.call_soon_with_future(read, p) for p in starts}
    for partition, reading in reads.items():
        try:
            left_ms = None if until is None else max(0.0, 1000 * (until - time.monotonic()))
            found = _joined(found, await target.manager.wait_for(reading, left_ms))
            if partition in read_before:
                undecided |= read_before[partition].undecided(parts[partition] or set())
        except Errors.KafkaTimeoutError as error:
            so_far = read_before[partition].position if partition in read_before else None
            unread[partition] = (
                text_of(error) if so_far is None else f"read up to {so_far:,} of {ends[partition]:,} so far"
            )
        except Errors.KafkaError as error:
            unread[partition] = text_of(error)
    last = found.pop(LAST, None)
    copies = {p: row for p, row in found.items() if row.target_until}
    uncopied = {p: row for p, row in found.items() if p not in copies}
    over = -1 if last is None else last.key.number
    return MappedTopics(frozenset(found), unread, copies, over, undecided, uncopied)


async def read_each_map(
    target: Cluster,
    of: Mapping[str, tuple[LinkControl, Collection[TopicPartition]]],
    *,
    within_s: float | None,
    known: KnownMaps | None = None,
) -> dict[str, MappedTopics]:
    """What the maps of several links, with their controls, say of some partitions; all are read at the same time."""

    async def read(link: str, control: LinkControl, wanted: Collection[TopicPartition]) -> MappedTopics:
        return await mapped_topics(target, link, control, of=wanted, within_s=within_s, known=known)

    reads = {link: target.net.call_soon_with_future(read, link, *asked) for link, asked in of.items()}
    return {link: await reading for link, reading in reads.items()}


def _joined(found: dict[TopicPartition, MapRow], more: Mapping[TopicPartition, MapRow]) -> dict[TopicPartition, MapRow]:
    """The rows of two parts of a map; each part has LAST rows of its own, of which the newest generation counts."""
    last = max((rows[LAST] for rows in (found, more) if LAST in rows), key=lambda row: row.key.number, default=None)
    return {**found, **more, **({} if last is None else {LAST: last})}


async def clear_deleted(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> int:
    """Deletes rows whose records the target's retention has deleted, never a partition's newest; returns how many."""
    topic, doomed = map_of(target, link), dict[TopicPartition, list[RowKey]]()
    for there, wanted in _by_map_partition(link, partitions).items():
        rows: dict[RowKey, MapRow | None] = {}
        async for key, row in _rows(topic, there.partition):
            if key.partition in wanted:
                rows[key] = row
        known = [row for row in rows.values() if row is not None]
        newest: dict[TopicPartition, int] = {}
        for row in known:
            newest[row.key.partition] = max(row.key.number, newest.get(row.key.partition, 0))
        places = {row.key: TopicPartition(row.target_topic, row.key.partition.partition) for row in known}
        present = await target.partitions({place.topic for place in places.values()})
        there_now = {place for place in places.values() if place.partition in present.get(place.topic, ())}
        log_starts = (await list_led_offsets(target, dict.fromkeys(there_now, EARLIEST))).offsets
        for row in known:
            is_final = row.key.number < newest[row.key.partition]
            if is_final and row.target_until <= log_starts.get(places[row.key], 0):
                doomed.setdefault(there, []).append(row.key)
    for there, keys in doomed.items():
        for some in chunks(keys, _TOMBSTONES):
            now_ms = int(time.time() * 1000)
            records = [Record(0, now_ms, key.encode(), None) for key in some]
            await target.insist("clearing the offset map", partial(topic.append, records, there.partition))
    return sum(map(len, doomed.values()))


def _by_map_partition(link: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, set[TopicPartition]]:
    places: dict[TopicPartition, set[TopicPartition]] = {}
    for partition in partitions:
        places.setdefault(map_partition(link, partition), set()).add(partition)
    return places


async def _rows(
    topic: StateTopic,
    number: int,
    start: int | None = None,
    end: int | None = None,
    committed: CommittedRows | None = None,
) -> AsyncIterator[tuple[RowKey, MapRow | None]]:
    """The `committed` rows of a map partition in the order of its log; all of them, or those between two offsets."""
    committed = committed or CommittedRows(f"{topic.name}-{number}")
    start = await topic.start(number) if start is None else start
    end = await topic.end(number) if end is None else end
    async for header, batch in topic.batches(start, end, number):
        if header.base_offset < end:
            for found in committed.feed(header, batch):
                yield found
