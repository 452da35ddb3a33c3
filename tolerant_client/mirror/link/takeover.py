"""Taking a link over from MirrorMaker 2, and giving it back: where MirrorMaker 2 is in each partition.

It keeps its positions in `mm2-offsets.ALIAS.internal` of the target, Kafka Connect's topic of source offsets (KIP-382;
MirrorUtils.wrapPartition and wrapOffset, KafkaOffsetBackingStore.java): the key is ["MirrorSourceConnector", {"cluster":
alias, "partition": 0, "topic": "orders"}], the value {"offset": n}, n the last source offset that was copied.
It writes them now and then, so the exact position is looked for in the logs: where the target's last records are on the source.
Laws:
- Nothing is guessed: a position that the logs do not show is said to be unknown.
- Of several positions that the logs allow the lowest one counts: rather a record twice than one lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.divergence import read_slices
from tolerant_client.mirror.link.control import read_control, update_control
from tolerant_client.mirror.link.failback import SharedLog, compare_logs, failback
from tolerant_client.mirror.plan import select_topics
from tolerant_client.mirror.producers import raise_for
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.translated.map_topic import read_last_rows
from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, RawCluster
from tolerant_client.record_batch import Record, encode_batch

_CONNECTOR = "MirrorSourceConnector"
_TAILS = (64, 8, 1)  # records of the target's end that are looked for in one piece; fewer where MirrorMaker 2 repeated some
_PIECE = 20_000  # source offsets that are looked through at once
_MOST = 2_000_000  # source offsets that are looked through in all


class Mm2Position(NamedTuple):
    """Where MirrorMaker 2 would go on, and the record that says so: its key and partition, which it goes by."""

    offset: int
    key: bytes
    partition: int


@dataclass(frozen=True)
class TakenPartition:
    """A partition as MirrorMaker 2 has left it; offsets are the source's where nothing else is said.

    `committed` is where MirrorMaker 2 has written down that it goes on (-1: nowhere), `position` what the logs show
    (-1: they do not), `target_end` the end of the target's log.  `is_identical`: the target's log is the beginning of
    the source's, offset by offset.
    """

    topic: str
    partition: int
    is_identical: bool
    committed: int
    position: int
    target_end: int


@dataclass(frozen=True)
class TakeoverReport:
    """What was found, and whether the link can go on so (`is_done`: it is prepared for that)."""

    link: str
    offsets: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[TakenPartition, ...]
    blockers: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def offsets_topic(source_alias: str) -> str:
    """Where MirrorMaker 2's own worker keeps positions, unless its file says offset.storage.topic."""
    return f"mm2-offsets.{source_alias}.internal"


def decode_position(key: bytes | None, value: bytes | None) -> tuple[str, TopicPartition, int] | None:
    """The source's alias, the partition by the source's name, and the next offset; None for another connector's record."""
    try:
        connector, place = json.loads(key or b"")
        if connector != _CONNECTOR or value is None:
            return None
        partition = TopicPartition(str(place["topic"]), int(place["partition"]))
        return str(place["cluster"]), partition, int(json.loads(value)["offset"]) + 1
    except (ValueError, KeyError, TypeError):
        return None


def encode_position(next_offset: int) -> bytes:
    """The value that makes MirrorMaker 2 go on at `next_offset`."""
    return json.dumps({"offset": next_offset - 1}, separators=(",", ":")).encode()


def last_match(source: Sequence[Record], tail: Sequence[Record]) -> int | None:
    """The offset behind the place where `tail`, the target's last records, lies in `source` in one piece.

    Both ascend.  The lowest one where there are several; None where there is none.  Pure.
    """
    wanted = [record[1:] for record in tail]
    found = [record[1:] for record in source]
    for index in range(len(wanted) - 1, len(found)):
        if found[index] == wanted[-1] and found[index - len(wanted) + 1 : index + 1] == wanted:
            return source[index].offset + 1
    return None


async def read_positions_of_mm2(target: RawCluster, source_alias: str) -> dict[TopicPartition, Mm2Position]:
    """Where MirrorMaker 2 goes on, by partition (the source's names); empty where it has never run."""
    topic = offsets_topic(source_alias)
    numbers = (await target.partitions([topic])).get(topic, [])
    found: dict[TopicPartition, Mm2Position] = {}
    for number in numbers:
        partition = TopicPartition(topic, number)
        start = (await target.list_offsets({partition: EARLIEST}))[partition]
        end = (await target.list_offsets({partition: LATEST}))[partition]
        if start == end:
            continue
        log = (await read_slices(target, {partition: (start, end)}, is_committed=True))[partition]
        for _, record in sorted(log.records.items()):
            told = decode_position(record.key, record.value)
            if told is not None and told[0] == source_alias:
                found[told[1]] = Mm2Position(told[2], record.key or b"", number)
    return found


async def find_position(source: RawCluster, target: RawCluster, partition: TopicPartition, committed: int) -> int:
    """The source offset behind the last record that the target has; -1 where the logs do not show it.

    Where the target has no records it is the source's first offset.  `committed` (-1: unknown) is at most that much.
    """
    start = (await target.list_offsets({partition: EARLIEST}))[partition]
    end = (await target.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
    source_start = (await source.list_offsets({partition: EARLIEST}))[partition]
    if start == end:
        return max(committed, source_start)
    tail = await _last_records(target, partition, start, end)
    for length in _TAILS:
        found = await _find(source, partition, source_start, tail[-length:], committed)
        if found is not None:
            return max(found, committed)
    return -1


async def _last_records(target: RawCluster, partition: TopicPartition, start: int, end: int) -> list[Record]:
    """The last committed records of a log; offsets between them may be markers."""
    wanted, span = _TAILS[0], _TAILS[0]
    while True:
        log = (await read_slices(target, {partition: (max(start, end - span), end)}, is_committed=True))[partition]
        tail = [record for _, record in sorted(log.records.items())][-wanted:]
        if len(tail) == wanted or end - span <= start:
            return tail
        span *= 16


async def _find(
    source: RawCluster, partition: TopicPartition, source_start: int, tail: Sequence[Record], committed: int
) -> int | None:
    if not tail:
        return source_start
    until = (await source.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
    # The broker names the first offset with this time or a later one: no record of this time lies before.
    at = (await source.list_offsets({partition: min(record.timestamp for record in tail)}))[partition]
    at = max(at, source_start) if at >= 0 else source_start
    last = min(until, max(at, committed) + _MOST)
    before: list[Record] = []
    while at < last:
        piece = (await read_slices(source, {partition: (at, min(at + _PIECE, last))}, is_committed=True))[partition]
        before = [*before, *(record for _, record in sorted(piece.records.items()))]
        if (found := last_match(before, tail)) is not None:
            return found
        before, at = before[-len(tail) :], max(piece.until, at + 1)
    return None


def blockers(partitions: Sequence[TakenPartition], offsets: str) -> tuple[str, ...]:
    """Why the link cannot go on behind MirrorMaker 2; pure."""
    if offsets == "identical":
        others = [p for p in partitions if not p.is_identical]
        if others:
            names = sorted({p.topic for p in others})
            return (
                f"{len(others)} partitions of {len(names)} topics do not have the source's offsets on the target"
                f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}): set tolerant.offsets = translated for the flow,"
                " leave these topics to a flow of their own that has it, or delete them on the target to have them copied anew",
            )
        return ()
    unknown = [p for p in partitions if p.position < 0]
    if unknown:
        first = unknown[0]
        return (
            f"the last records of {first.topic}-{first.partition} ({len(unknown)} partitions) are not found on the source:"
            " somebody else has written there, or the source has deleted them; leave these topics out, or delete them on the target",
        )
    return ()


async def take_over(
    source: RawCluster,
    target: RawCluster,
    link: str,
    topics: LinkTopics,
    source_alias: str,
    *,
    offsets: str = "identical",
    is_dry_run: bool = False,
) -> TakeoverReport:
    """Prepares a link to go on where MirrorMaker 2, which must have been stopped, has left its target topics.

    With identical offsets what is there is adopted; with translated ones copying begins at the exact position.
    Where something is in the way nothing is written.  Raises OptionError for a link that copies already, and KafkaError.
    """
    await source.connect()
    await target.require_record_batches()
    control = await read_control(target, link)
    if control.producer_ids and not control.is_promoted:
        raise OptionError(f"Link {link} copies into this target already; nothing is to be taken over")
    names = select_topics(topics, await source.partitions())
    there = await target.partitions(names)
    known = await read_positions_of_mm2(target, source_alias)
    found = []
    for topic, numbers in sorted(there.items()):
        for number in numbers:
            partition = TopicPartition(topic, number)
            if partition.partition in (await source.partitions([topic])).get(topic, ()):
                found.append(await _look(source, target, partition, known))
    wrong = blockers(found, offsets)
    is_done = not wrong and not is_dry_run
    if is_done and offsets == "identical":
        is_done = (await failback(source, target, link, topics)).is_done
    elif is_done:
        starts = {TopicPartition(p.topic, p.partition): p.position for p in found}
        await update_control(target, link, lambda now: replace(now, starts={**now.starts, **starts}))
    return TakeoverReport(link, offsets, is_dry_run, is_done, tuple(found), wrong)


async def _look(
    source: RawCluster, target: RawCluster, partition: TopicPartition, known: Mapping[TopicPartition, Mm2Position]
) -> TakenPartition:
    told = known.get(TopicPartition(source.wire_topic(partition.topic), partition.partition))
    committed = -1 if told is None else told.offset
    logs: SharedLog = await compare_logs(source, target, partition)
    is_identical = not logs.is_diverged
    position = logs.target_end if is_identical else await find_position(source, target, partition, committed)
    return TakenPartition(partition.topic, partition.partition, is_identical, committed, position, logs.target_end)


async def hand_back(
    target: RawCluster, positions: Mapping[TopicPartition, int], source_alias: str, *, is_dry_run: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """Has MirrorMaker 2, which must not run, go on at `positions` (the source's names): what it had, and has now.

    Only partitions that it knows: those that it has never copied it would begin at their first record.
    Raises OptionError where one is among `positions` that has records already, and KafkaError.
    """
    known = await read_positions_of_mm2(target, source_alias)
    strange = sorted(p for p, offset in positions.items() if p not in known and offset > 0)
    if strange:
        raise OptionError(
            f"MirrorMaker 2 has no position of {strange[0].topic}-{strange[0].partition} ({len(strange)} partitions) in"
            f" {offsets_topic(source_alias)}: it would copy it from its beginning, a second time; leave these"
            " topics out of its file"
        )
    changed = {p: (known[p].offset, offset) for p, offset in positions.items() if p in known and known[p].offset != offset}
    if not is_dry_run:
        for partition, (_, offset) in changed.items():
            write = partial(_write, target, source_alias, known[partition], offset)
            await target.insist("writing MirrorMaker 2's position", write)
    return changed


async def copied_until(
    target: RawCluster, link: str, partitions: Sequence[TopicPartition], *, is_translated: bool
) -> dict[TopicPartition, int]:
    """How far our own link has copied partitions (the target's names), in source offsets."""
    if not is_translated:
        return await target.list_offsets(dict.fromkeys(partitions, LATEST))
    starts = (await read_control(target, link)).starts
    rows = await read_last_rows(target, link, partitions)
    return {p: rows[p].position if p in rows else starts.get(p, 0) for p in partitions}


async def _write(target: RawCluster, source_alias: str, known: Mm2Position, offset: int) -> None:
    place = TopicPartition(offsets_topic(source_alias), known.partition)
    batch = encode_batch([Record(0, int(time.time() * 1000), known.key, encode_position(offset))])
    node = await target.leader(place)
    (produced,) = await target.produce_and_wait(node, {place: memoryview(bytearray(batch))})
    raise_for(produced.error_code, f"appending to {place.topic}")
