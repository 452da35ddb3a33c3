"""Which partitions of a target have records of a link, according to the logs themselves.

The control may name fewer topics than the link has ever copied (another --topics under the same name, a lost record of the
control topic).  So a promotion also fences the partitions whose logs have its records, and reports unreadable logs as unknown.

A broker says who has written to a partition for as long as it remembers the producer (a day by default); after that only the
batches of the log do.  With translated offsets each partition is copied with a producer id of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import (
    can_describe_producers,
    can_list_transactions,
    describe_producers,
    transactional_producers,
)
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.records.record_batch import BatchHeader

_BACK = 8  # how many batches we read back from the end: the last ones may fill gaps, with other producer ids
_STEPS = 16  # how many times we look into a log, from its start to its end
# How to go on with a link that has no control and no map, where nothing tells whether its copies are there (can_tell_copies).
START_UNTOLD: Final = (
    "start its mirror if it has identical offsets (with translated ones it would copy everything again: before Kafka 3.0 nothing tells what"
    " it has copied)"
)


class Carried(NamedTuple):
    """Partitions that have records of the link, and why that is unknown of others.

    Other producers wrote the last records of `foreign`; of `hidden` the log only shows that its last writers were transactional.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unknown: Mapping[TopicPartition, str] = {}
    foreign: frozenset[TopicPartition] = frozenset()
    hidden: frozenset[TopicPartition] = frozenset()


class Written(NamedTuple):
    """Logs with batches of a link, and logs in which nothing but `markers` was seen: those that fill gaps have other producer ids."""

    own: frozenset[TopicPartition] = frozenset()
    markers: frozenset[TopicPartition] = frozenset()


async def find_written(
    target: Cluster, producer_ids: Collection[int], partitions: Collection[TopicPartition]
) -> Written:
    """The logs among these with batches of these producer ids: remembered by the leader, at the end, or at evenly spaced offsets."""
    found = set((await find_carried(target, producer_ids, (), partitions)).partitions)
    ends = (await list_led_offsets(target, dict.fromkeys((p for p in partitions if p not in found), LATEST))).offsets
    starts = (await list_led_offsets(target, dict.fromkeys(ends, EARLIEST))).offsets
    spans = {p: range(start, ends[p]) for p, start in starts.items() if start < ends[p]}
    markers, others = set[TopicPartition](), set[TopicPartition]()
    for step in range(_STEPS + 1):
        if not (at := {p: s[step * (len(s) - 1) // _STEPS] for p, s in spans.items() if p not in found}):
            break
        headers, _ = await _read(target, at)
        found |= {p for p, header in headers.items() if header.producer_id in producer_ids}
        markers |= {p for p, header in headers.items() if header.is_control}
        others |= {p for p, header in headers.items() if not header.is_control}
    return Written(frozenset(found), frozenset(markers - others - found))


async def copied_logs(target: Cluster, start: str) -> frozenset[TopicPartition]:
    """The logs with batches of the producers whose transactional ids begin like this, and end with the name of their partition.

    Coordinators name them (Kafka 3.0, for seven days after the last start).  That a start has asked for one proves no copy: its batches do.
    """
    found = await transactional_producers(target, start) or {}
    parts = {name.removeprefix(start).rpartition("-")[::2]: number for name, number in found.items()}
    ids = {TopicPartition(topic, int(n)): number for (topic, n), number in parts.items() if n.isdecimal()}
    there = await target.partitions() if ids else {}
    ids = {p: number for p, number in ids.items() if p.partition in there.get(p.topic, ())}
    return (await find_written(target, set(ids.values()), ids)).own if ids else frozenset()


async def can_tell_copies(target: Cluster) -> bool:
    """Whether coordinators name the producers of copies (copied_logs)."""
    await target.connect()
    return can_list_transactions(target)


async def find_carried(
    target: Cluster,
    producer_ids: Collection[int],
    known: Collection[TopicPartition],
    only: Collection[TopicPartition] | None = None,
) -> Carried:
    """The partitions of the target, or of `only` these, except the `known` ones, with batches of these producer ids."""
    ids, skipped = frozenset(producer_ids), frozenset(known)
    wanted = {
        TopicPartition(topic, n)
        for topic, numbers in (await target.partitions()).items()
        if not topic.startswith((OWN_TOPICS, "__"))
        for n in numbers
        if only is None or TopicPartition(topic, n) in only
    } - skipped
    ends = await list_led_offsets(target, dict.fromkeys(wanted, LATEST))
    starts = await list_led_offsets(target, dict.fromkeys(ends.offsets, EARLIEST))
    unknown = {**ends.left_out, **starts.left_out}
    found: set[TopicPartition] = set()
    if can_describe_producers(target):
        try:
            entries = await describe_producers(target, starts.offsets)
            found = {p for p, writers in entries.items() if any(one.producer_id in ids for one in writers)}
        except Errors.AuthorizationError:
            pass  # the request fails for all if we may not read one topic: read the logs one by one
    left = {p: ends.offsets[p] - 1 for p, start in starts.offsets.items() if p not in found and ends.offsets[p] > start}
    written, foreign = frozenset(left), set[TopicPartition]()
    for _ in range(_BACK):
        if not left:
            break
        headers, unread = await _read(target, left)
        unknown.update(unread)
        left = {p: offset for p, offset in left.items() if p not in unread}
        found |= {p for p, header in headers.items() if header.producer_id in ids}
        foreign |= {p for p, h in headers.items() if p not in found and not (h.is_control or h.is_transactional)}
        unknown.update({p: "its last batch could not be read" for p in left.keys() - headers.keys()})
        left = {
            p: header.base_offset - 1
            for p, header in headers.items()
            if p not in found
            and (header.is_control or header.is_transactional)
            and header.base_offset > starts.offsets[p]
        }
    return Carried(
        frozenset(found),
        {p: why for p, why in sorted(unknown.items()) if p not in found},
        frozenset(foreign),
        written - found - foreign - unknown.keys(),
    )


async def _read(
    target: Cluster, offsets: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, BatchHeader], dict[TopicPartition, str]]:
    """The batches at these offsets, and why others cannot be read: a topic that is refused to us hides no other one."""
    try:
        return await read_headers(target, offsets), {}
    except Errors.KafkaError as error:
        topics = sorted({p.topic for p in offsets})
        if len(topics) == 1 or not isinstance(error, Errors.TopicAuthorizationFailedError):
            return {}, dict.fromkeys(offsets, f"its last batches cannot be read: {text_of(error)}")
    parts = [topics[: len(topics) // 2], topics[len(topics) // 2 :]]
    read = [await _read(target, {p: offset for p, offset in offsets.items() if p.topic in part}) for part in parts]
    return {**read[0][0], **read[1][0]}, {**read[0][1], **read[1][1]}
