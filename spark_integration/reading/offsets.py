"""Offsets in the format of Spark's Kafka source, and the planning of ranges: no I/O.

Laws:
- Ranges are half-open: [from_offset, until_offset).
- plan_ranges neither loses nor repeats an offset, and is deterministic.
- An error names the option, the topic and the partition.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
EARLIEST_LOCAL: Final = -4  # the first offset that is not in remote storage only (KIP-405)
# The position up to which read_committed reads, for messages.
LAST_STABLE: Final = "the last stable offset, where a transaction that is open begins (tolerant-kafka doctor names it),"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_BEGAN: Final = "began at:"  # no topic name has a space or a colon

NestedOffsets = dict[str, dict[str, int]]  # {"topic": {"0": 23}}
NOT_BEGUN: Final[NestedOffsets] = {"not begun": {}}  # the start of a stream without offsets; Spark never logs it


@dataclass(frozen=True)
class SpecificOffsets:
    """An offset for every partition; it may be EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]
    option: str


@dataclass(frozen=True)
class Everywhere:
    """EARLIEST or LATEST for every partition."""

    offset: int


@dataclass(frozen=True)
class AtTimestamp:
    """The first offset at or after a time, in ms since the epoch; one time for all partitions, or one for each."""

    timestamp: int | Mapping[TopicPartition, int]
    option: str
    if_none: str = "error"  # or "latest": if no record is that young


OffsetSpec = SpecificOffsets | Everywhere | AtTimestamp


@dataclass(frozen=True)
class OffsetRange:
    """The range that one task reads."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: str | None = None  # of the topic to which the offsets belong; None if the brokers do not tell

    @property
    def size(self) -> int:
        return self.until_offset - self.from_offset


def parse_partition_numbers(text: str, option: str) -> dict[TopicPartition, int]:
    """Parses `{"topic":{"0":23,"1":-2}}`."""
    parsed = _parse_object(text, option, '{"topic":{"0":23,"1":-2}}')
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: topic {topic} needs an object of partitions")
        for partition, number in partitions.items():
            if not re.fullmatch("0|[1-9][0-9]{0,9}", partition) or int(partition) > _INT32_MAX:
                raise OptionError(f"{option}: topic {topic} has the partition {partition!r}, which is not a number")
            if not isinstance(number, int) or isinstance(number, bool) or abs(number) > _INT64_MAX:
                raise OptionError(f"{option}: {topic}-{partition} needs an integer, not {number!r}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def nested_offsets(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] = MappingProxyType({}), cluster_id: str | None = None
) -> NestedOffsets:
    """Offsets by topic and partition, in a stable order: the format of a checkpoint of Spark's Kafka source.

    `ids` are those of topics in the cluster `cluster_id`.  Each is added as a name without partitions, TOPIC:ID,
    and the cluster's as :ID; no topic can have such a name, and Spark's own source ignores it.
    """
    by_topic: NestedOffsets = {}
    for partition in sorted(offsets):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    named: NestedOffsets = {f"{topic}:{ids[topic]}": {} for topic in by_topic if topic in ids}
    if named and cluster_id:
        named[f":{cluster_id}"] = {}
    return by_topic | named


def topic_ids(nested: NestedOffsets) -> dict[str, str]:
    """The ids that were given to nested_offsets."""
    named = (
        name.partition(":") for name, partitions in nested.items() if not partitions and not name.startswith(_BEGAN)
    )
    return {topic: topic_id for topic, _, topic_id in named if topic and topic_id}


def cluster_of(nested: NestedOffsets) -> str | None:
    """The id of the cluster to which the topic ids belong; None if it is not stored, or there are none."""
    return next((name[1:] for name in nested if name.startswith(":")), None)


def first_end(end: NestedOffsets, start: NestedOffsets) -> NestedOffsets:
    """The end of a stream's first micro-batch with the stream's start, stored like topic ids in a name without partitions."""
    return end | {_BEGAN + json.dumps(start, separators=(",", ":")): {}}


def began_at(end: NestedOffsets) -> NestedOffsets | None:
    """The start that was given to first_end; None if the offset has none."""
    named = next((name for name in end if name.startswith(_BEGAN)), None)
    if named is None:
        return None
    start: NestedOffsets = json.loads(named[len(_BEGAN) :])
    return start


def flat_offsets(nested: NestedOffsets) -> dict[TopicPartition, int]:
    """The inverse of nested_offsets."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in nested.items()
        for partition, offset in offsets.items()
    }


def parse_assignment(text: str, option: str) -> tuple[TopicPartition, ...]:
    """Parses `{"topic":[0,1]}`."""
    found = []
    for topic, partitions in _parse_object(text, option, '{"topic":[0,1]}').items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(f"{option}: topic {topic} needs a list of partitions such as [0,1]")
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _INT32_MAX:
                raise OptionError(f"{option}: topic {topic} has the partition {partition!r}, which is not a number")
            found.append(TopicPartition(topic, partition))
    return tuple(sorted(set(found)))


def check_same_partitions(spec: OffsetSpec, wanted: Collection[TopicPartition]) -> None:
    """Raises OptionError unless the option names exactly the partitions that are read, or applies to all."""
    if isinstance(spec, SpecificOffsets):
        given, condition = spec.offsets.keys(), "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    elif isinstance(spec, AtTimestamp) and not isinstance(spec.timestamp, int):
        given, condition = spec.timestamp.keys(), "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    else:
        return
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing:
        raise OptionError(
            f"[{condition}] {spec.option} must name every partition that is read; missing: {partition_names(missing)}"
        )
    if extra:
        raise OptionError(f"[{condition}] {spec.option} names partitions that are not read: {partition_names(extra)}")


def check_start_before_end(start: OffsetSpec, end: OffsetSpec) -> None:
    """Raises OptionError if two options of the same kind contradict each other."""
    if isinstance(start, SpecificOffsets) and isinstance(end, SpecificOffsets):
        starts, ends = start.offsets, end.offsets
    elif isinstance(start, AtTimestamp) and isinstance(end, AtTimestamp):
        if isinstance(start.timestamp, int) or isinstance(end.timestamp, int):
            return  # records are not ordered by time: the resolved offsets are compared instead
        starts, ends = start.timestamp, end.timestamp
    else:
        return
    if starts.keys() != ends.keys():
        odd = sorted(starts.keys() ^ ends.keys())
        raise OptionError(
            f"[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] {start.option} and {end.option}"
            f" must name the same partitions; only one names {partition_names(odd)}"
        )
    for partition, first in sorted(starts.items()):
        if first > ends[partition] >= 0:
            raise OptionError(
                f"[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {partition.topic}-{partition.partition}:"
                f" {start.option} is {first}, {end.option} is {ends[partition]}"
            )


def plan_ranges(
    ranges: Iterable[OffsetRange],
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> list[OffsetRange]:
    """Splits ranges into what tasks read; leaves out empty ranges.

    First, no piece may have more than `max_records_per_partition` offsets; then the
    largest pieces are split until there are `min_partitions`, or until each has one offset.
    """
    whole = [r for r in ranges if r.size > 0]
    pieces = [-(-r.size // max_records_per_partition) if max_records_per_partition else 1 for r in whole]
    total = sum(pieces)
    if min_partitions is not None and total < min_partitions:
        largest = [(-r.size / count, index) for index, (r, count) in enumerate(zip(whole, pieces, strict=True))]
        heapq.heapify(largest)
        while total < min_partitions and largest:
            _, index = heapq.heappop(largest)
            if pieces[index] < whole[index].size:
                pieces[index] += 1
                total += 1
                heapq.heappush(largest, (-whole[index].size / pieces[index], index))
    return [part for r, count in zip(whole, pieces, strict=True) for part in _split(r, count)]


def _split(whole: OffsetRange, count: int) -> list[OffsetRange]:
    cuts = [whole.from_offset + whole.size * i // count for i in range(count + 1)]
    return [replace(whole, from_offset=start, until_offset=end) for start, end in zip(cuts, cuts[1:], strict=False)]


def _parse_object(text: str, option: str, example: str) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise OptionError(f"{option} names something twice")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=without_repeats)
    except OptionError:
        raise
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option} is not JSON ({error}); expected something like {example}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"{option} needs a JSON object such as {example}")
    return parsed


def partition_names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{p.topic}-{p.partition}" for p in partitions)
