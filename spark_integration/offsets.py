"""Offsets as Spark's Kafka source writes them, and the planning of ranges: no I/O.

Laws:
- Ranges are half-open: [from_offset, until_offset).
- plan_ranges neither loses nor doubles an offset, and is deterministic.
- What is refused is named: the option, the topic, the partition.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(frozen=True)
class SpecificOffsets:
    """An offset for every partition; EARLIEST and LATEST stand for themselves."""

    offsets: Mapping[TopicPartition, int]
    option: str


@dataclass(frozen=True)
class Everywhere:
    """EARLIEST or LATEST for every partition."""

    offset: int


@dataclass(frozen=True)
class AtTimestamp:
    """The first offset at or after a time, in ms since the epoch; one for all, or by partition."""

    timestamp: int | Mapping[TopicPartition, int]
    option: str
    if_none: str = "error"  # or "latest": where no record is that young


OffsetSpec = SpecificOffsets | Everywhere | AtTimestamp


@dataclass(frozen=True)
class OffsetRange:
    """What one task reads."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int

    @property
    def size(self) -> int:
        return self.until_offset - self.from_offset


def parse_partition_numbers(text: str, option: str) -> dict[TopicPartition, int]:
    """`{"topic":{"0":23,"1":-2}}`."""
    parsed = _parse_object(text, option, '{"topic":{"0":23,"1":-2}}')
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: topic {topic} needs an object of partitions")
        for partition, number in partitions.items():
            if not partition.isascii() or not partition.isdigit():
                raise OptionError(f"{option}: topic {topic} has the partition {partition!r}, which is no number")
            if not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(f"{option}: {topic}-{partition} needs an integer, not {number!r}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The JSON that parse_partition_numbers reads, in a stable order."""
    by_topic: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return json.dumps(by_topic, separators=(",", ":"))


def parse_assignment(text: str, option: str) -> tuple[TopicPartition, ...]:
    """`{"topic":[0,1]}`."""
    found = []
    for topic, partitions in _parse_object(text, option, '{"topic":[0,1]}').items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(f"{option}: topic {topic} needs a list of partitions such as [0,1]")
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise OptionError(f"{option}: topic {topic} has the partition {partition!r}, which is no number")
            found.append(TopicPartition(topic, partition))
    if len(set(found)) != len(found):
        raise OptionError(f"{option} names a partition twice")
    return tuple(sorted(found))


def check_same_partitions(
    given: Collection[TopicPartition], wanted: Collection[TopicPartition], option: str
) -> None:
    """Raises OptionError unless the option speaks of exactly the partitions that are read."""
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing:
        raise OptionError(f"{option} must name every partition that is read; missing: {_names(missing)}")
    if extra:
        raise OptionError(f"{option} names partitions that are not read: {_names(extra)}")


def plan_ranges(
    ranges: Iterable[OffsetRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Splits ranges into what tasks read; empty ranges are left out.

    First no piece may have more than `max_records_per_partition` offsets; then the
    largest pieces are split until there are `min_partitions`, or one offset each.
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
    return [
        OffsetRange(whole.topic, whole.partition, start, end)
        for start, end in zip(cuts, cuts[1:], strict=False)
    ]


def _parse_object(text: str, option: str, example: str) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise OptionError(f"{option} names something twice")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise OptionError(f"{option} is no JSON ({error}); expected something like {example}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"{option} needs a JSON object such as {example}")
    return parsed


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{p.topic}-{p.partition}" for p in partitions)
