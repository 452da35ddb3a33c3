"""Whether a target log already has what MirrorMaker 2 has copied of the source.

Laws:
- Its positions on the target say that it has copied a partition of this name, and up to where; records that both logs have show that it was
  this one.  Neither is enough alone: it knows no topic ids, and another source, or a topic of another name, may be meant.
- Only positions after `begin` count: a link that took over begins at MirrorMaker 2's position, or after it.
- Positions that we may not read are none, as if MirrorMaker 2 had never run.  Others that cannot be read now leave it unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, LogSlice
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.mirror.state.mm2_positions import KnownPositions, offsets_topic
from tolerant_client.records.record_batch import Record

_NO_CHANCE = 2  # so many records that both logs have are copies
_LARGEST_PIECE = 64_000  # offsets; also how many of the target's are searched, from the time of the source's records on and at its end


class Mm2Copy(NamedTuple):
    """That MirrorMaker 2 has copied a partition up to the source's offset `until`, as a topic of the target says; or why that is `unread`."""

    topic: str
    until: int = 0
    unread: str = ""


async def copies_of_mm2(
    source: Cluster, known: KnownPositions, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[Mm2Copy, ...]]:
    """What MirrorMaker 2's positions on the target, under whatever alias, say of these partitions (the target's names)."""
    found: dict[TopicPartition, tuple[Mm2Copy, ...]] = {}
    for alias in await known.aliases():
        topic = offsets_topic(alias)
        try:
            positions = await known.of(alias)
        except Errors.TopicAuthorizationFailedError:
            continue
        except Errors.KafkaError as error:
            told = {p: Mm2Copy(topic, unread=f"{type(error).__name__}: {error}") for p in partitions}
        else:
            names = {p: TopicPartition(source.wire_topic(p.topic), p.partition) for p in partitions}
            told = {p: Mm2Copy(topic, positions[name].offset) for p, name in names.items() if name in positions}
        for p, copy in told.items():
            found[p] = (*found.get(p, ()), copy)
    return found


async def find_copy_of_mm2(
    source: Cluster, target: Cluster, partition: TopicPartition, begin: int, known: Iterable[Mm2Copy]
) -> Mm2Copy | None:
    """One of the `known` copies that the target's log has, with records that the source has from `begin` on.

    Raises OffsetNotAvailableError if that is unknown, and other KafkaError.
    """
    for copy in known:
        if copy.unread:
            raise Errors.OffsetNotAvailableError(
                f"Whether MirrorMaker 2 has copied {partition.topic}-{partition.partition} before is unknown yet: {copy.topic} of the target is"
                f" not read ({copy.unread})"
            )
        if copy.until > begin and await _has_copies(source, target, partition, begin, copy.until):
            return copy
    return None


async def _has_copies(source: Cluster, target: Cluster, partition: TopicPartition, begin: int, until: int) -> bool:
    """Whether the target's log has the first or the last records that the source has in [begin, until).

    Raises OffsetNotAvailableError while no record there is committed, and a transaction is open before `until`.
    """
    begin = max(begin, (await source.list_offsets({partition: EARLIEST}))[partition])
    stable = (await source.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
    first = await _first_records(source, partition, begin, min(until, stable))
    last = await _last_records(source, partition, begin, min(until, stable))
    if not first and not last:
        if stable < min(until, (await source.list_offsets({partition: LATEST}))[partition]):
            raise Errors.OffsetNotAvailableError(
                f"Whether MirrorMaker 2 has copied {partition.topic}-{partition.partition} before is unknown until the source's"
                f" transaction at offset {stable} has ended"
            )
        return False
    evidence = _Evidence([*first, *last])
    for at, end in await _searched(target, partition, first, last):
        while at < end:
            # Also what is in an open transaction of others, or after one: the mirror would append after it.
            span = {partition: (at, min(at + 10 * COMPARED_OFFSETS, end))}
            log = (await read_slices(target, span, is_committed=False))[partition]
            if evidence.is_enough(log):
                return True
            at = log.until if log.until > at else end
    return False


async def _first_records(source: Cluster, partition: TopicPartition, at: int, until: int) -> Collection[Record]:
    piece = COMPARED_OFFSETS
    while at < until:
        log = (await read_slices(source, {partition: (at, min(at + piece, until))}, is_committed=True))[partition]
        if log.records or log.until <= at:
            return log.records.values()
        at, piece = log.until, min(4 * piece, _LARGEST_PIECE)
    return ()


async def _last_records(source: Cluster, partition: TopicPartition, begin: int, until: int) -> Collection[Record]:
    piece = COMPARED_OFFSETS
    while begin < until:
        span = {partition: (max(begin, until - piece), until)}
        log = (await read_slices(source, span, is_committed=True))[partition]
        if log.records or until - piece <= begin or piece >= _LARGEST_PIECE:
            return log.records.values()
        piece *= 4
    return ()


async def _searched(target: Cluster, partition: TopicPartition, *wanted: Collection[Record]) -> list[tuple[int, int]]:
    """The offsets of the target's log where such records are searched: from their times on, and at the end."""
    end = (await target.list_offsets({partition: LATEST}))[partition]
    tail = max((await target.list_offsets({partition: EARLIEST}))[partition], end - _LARGEST_PIECE)
    spans = [(tail, end)]
    for records in filter(None, wanted):
        # The first offset with this timestamp or a later one; the special ones are negative.
        earliest = max(0, min(record.timestamp for record in records))
        at = (await target.list_offsets({partition: earliest}))[partition]
        if 0 <= at < tail and all(not since <= at < until for since, until in spans):
            spans.append((at, min(at + _LARGEST_PIECE, tail)))
    return spans


class _Evidence:
    """Whether a log has records of the source, by all but their offsets, and by their times unless the target's brokers gave those."""

    def __init__(self, records: Collection[Record]) -> None:
        self._wanted = {record[1:] for record in records}
        self._without_times = {record[2:] for record in records}
        self._found = 0

    def is_enough(self, log: LogSlice) -> bool:
        """Takes a piece of the log; two records prove it, one with a key at the same millisecond, or the only one that the source has."""
        for offset, record in log.records.items():
            if log.is_stamped(offset):
                self._found += record[2:] in self._without_times
            elif record[1:] in self._wanted:
                self._found += 1 if record.key is None else _NO_CHANCE
        return self._found >= min(len(self._wanted), _NO_CHANCE)


async def renamed_beside(source: Cluster, target: Cluster, partition: TopicPartition, copy: Mm2Copy) -> str:
    """The other topic of the target to which MirrorMaker 2 would have copied this partition by its default policy; "" without one.

    Its position does not say to which topic it has copied: equal records of ours may be by chance.
    """
    alias = copy.topic.removeprefix("mm2-offsets.").removesuffix(".internal")
    renamed = f"{alias}.{source.wire_topic(partition.topic)}"
    return renamed if renamed != partition.topic and await target.partitions([renamed]) else ""


def take_over_command(link: str, target: Cluster) -> str:
    """The command by which a link goes on after MirrorMaker 2, which has a file."""
    return f"tolerant-kafka take-over {target.file_options or f'with --config and the --flow of link {link}'}"


async def take_over_first(
    source: Cluster, target: Cluster, link: str, known: KnownPositions, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, str]:
    """For those of these partitions that the target has from MirrorMaker 2: sentences on how the link goes on after it.  Raises KafkaError."""
    found: dict[TopicPartition, str] = {}
    for p, copies in (await copies_of_mm2(source, known, partitions)).items():
        copy = await find_copy_of_mm2(source, target, p, 0, [copy for copy in copies if not copy.unread])
        if copy is not None:
            found[p] = (
                f"MirrorMaker 2 has copied here up to the source's offset {copy.until}, as {copy.topic} of the target says: stop it, and run"
                f" {take_over_command(link, target)}, which names the topics whose copies have other offsets, and what to do with them. "
            )
    return found
