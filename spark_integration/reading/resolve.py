"""From options to offsets and ranges, on the driver.

Laws:
- Every offset that a user gave is compared with the log before a task starts.
- A missing offset raises DataLossError, or is left out if failOnDataLoss is false.
- All partitions of a leader are asked for in one request.
- A range carries the id that its topic had before its offsets were asked for; the reader of the range compares the two.

Error conditions in brackets are those of Spark's kafka-error-conditions.json.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final

from kafka.errors import InvalidTopicError
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import (
    EARLIEST,
    LAST_STABLE,
    LATEST,
    AtTimestamp,
    Everywhere,
    OffsetRange,
    OffsetSpec,
    SpecificOffsets,
    check_same_partitions,
    partition_names,
    plan_ranges,
)
from spark_integration.reading.options import Assign, ReadOptions, Subscribe
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import DataLossError, OptionError

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

REMEDY: Final = "failOnDataLoss=false reads what is left"


async def resolve_ranges(cluster: Cluster, options: ReadOptions) -> list[OffsetRange]:
    """The planned ranges of a batch read.

    Raises OptionError for what does not exist, and DataLossError for what no longer exists.
    """
    partitions = await find_partitions(cluster, options)
    ids = dict(cluster.topic_ids)
    for spec in (options.start, options.end):
        check_same_partitions(spec, partitions)
    earliest, latest = await _bounds(cluster, partitions, options)
    starts = await _resolve(cluster, options, options.start, partitions, earliest, latest)
    ends = await _resolve(cluster, options, options.end, partitions, earliest, latest)
    ranges = []
    for partition in partitions:
        log_range = (earliest[partition], latest[partition])
        start, end = starts[partition], ends[partition]
        _check_order(options, partition, start, end)
        if options.fail_on_data_loss:
            _check_in_log(options, options.start, partition, start, log_range)
            _check_in_log(options, options.end, partition, end, log_range)
        start, end = max(start, log_range[0]), min(end, log_range[1])
        ranges.append(
            OffsetRange(partition.topic, partition.partition, start, max(start, end), ids.get(partition.topic))
        )
    return plan_ranges(ranges, options.min_partitions, options.max_records_per_partition)


async def find_partitions(cluster: Cluster, options: ReadOptions) -> list[TopicPartition]:
    """The partitions that the options select, sorted; a pattern may select none."""
    selection = options.selection
    if isinstance(selection, Assign):
        found = await _partitions_of(cluster, {p.topic for p in selection.partitions})
        missing = [p for p in selection.partitions if p.partition not in found[p.topic]]
        if missing:
            partition = missing[0]
            raise OptionError(
                f"assign: topic {partition.topic} has no partition {partition.partition},"
                f" only {len(found[partition.topic])} from 0 on"
            )
        return list(selection.partitions)
    if isinstance(selection, Subscribe):
        found = await _partitions_of(cluster, set(selection.topics))
    else:
        pattern = re.compile(selection.pattern)  # may match anywhere in a name, as in Spark's own source
        everything = await cluster.partitions(None)
        found = {topic: numbers for topic, numbers in everything.items() if pattern.search(topic)}
    return sorted(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers)


async def _partitions_of(cluster: Cluster, topics: set[str]) -> dict[str, list[int]]:
    """The partitions of topics; raises OptionError for a topic that does not exist, or has an invalid name."""
    try:
        found = await cluster.partitions(topics)
    except InvalidTopicError:
        raise OptionError(f"One of these is not a valid topic name: {', '.join(sorted(topics))}") from None
    if missing := sorted(topics - found.keys()):
        raise OptionError(
            f"Topic {', '.join(missing)} does not exist on {','.join(cluster.bootstrap_servers)},"
            " or this user may not describe it"
        )
    return found


async def initial_offsets(cluster: Cluster, options: ReadOptions) -> dict[TopicPartition, int]:
    """The offsets at which a new stream starts."""
    partitions = await find_partitions(cluster, options)
    check_same_partitions(options.start, partitions)
    earliest, latest = await _bounds(cluster, partitions, options)
    return await _resolve(cluster, options, options.start, partitions, earliest, latest)


async def latest_offsets(
    cluster: Cluster, options: ReadOptions, known: Offsets, told: dict[TopicPartition, int] | None = None
) -> dict[TopicPartition, int]:
    """The current ends of the logs.

    With read_committed, a log whose last stable offset is below a known offset ends at the known one: a transaction is
    open, and nothing is lost.  `told` has the last stable offsets that were warned of; the caller keeps it.
    While a known partition is missing, or ends below a known offset, it asks again, fetchOffset.numRetries times in all:
    a broker that has just started may report that (KAFKA-7703).
    """
    attempts = max(options.fetch_offset_retries, 1)
    for attempt in range(1, attempts + 1):
        is_last = attempt == attempts
        try:
            latest = await _latest(cluster, await find_partitions(cluster, options), options)
            if options.isolation_level:
                latest |= await _held_up(cluster, known, latest, {} if told is None else told)
        except OptionError:
            if is_last:
                raise
        else:
            if is_last or all(latest.get(partition, -1) >= offset for partition, offset in known.items()):
                break
        await cluster.net.sleep(options.fetch_offset_retry_ms / 1000)
    return latest


async def _held_up(
    cluster: Cluster, known: Offsets, stable: Offsets, told: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The known offsets that are after the last stable offset, but not after the log's end.

    This happens if read_uncommitted has read a transaction that is still open.
    """
    below = [partition for partition, offset in known.items() if stable.get(partition, offset) < offset]
    ends = await cluster.list_offsets(dict.fromkeys(below, LATEST)) if below else {}
    held = {partition: known[partition] for partition in below if known[partition] <= ends[partition]}
    for partition in held:
        if told.get(partition) == stable[partition]:
            continue
        told[partition] = stable[partition]
        log.warning(
            "%s-%d is at offset %d, and %s is %d: nothing is read there until it ends",
            *partition,
            known[partition],
            LAST_STABLE,
            stable[partition],
        )
    return held


def topics_made_anew(known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The topics that were deleted and created again since their ids were `known`."""
    return {topic for topic, topic_id in known.items() if now.get(topic, topic_id) != topic_id}


def check_same_topics(options: ReadOptions, known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The result of topics_made_anew; raises DataLossError for any, because their known offsets are of another log."""
    anew = topics_made_anew(known, now)
    for topic in sorted(anew):
        _report(
            options,
            "PARTITION_OFFSET_CHANGED",
            f"topic {topic} was deleted and created again (its id was {known[topic]} and is {now[topic]}): what was not"
            " read of the old one is gone, and its offsets say nothing about the new one",
            "failOnDataLoss=false reads the new one from its beginning",
        )
    return anew


async def earliest_offsets(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The first offsets of those partitions that exist."""
    existing = await cluster.partitions({partition.topic for partition in partitions})
    return await cluster.list_offsets(
        dict.fromkeys((p for p in partitions if p.partition in existing.get(p.topic, ())), EARLIEST)
    )


async def micro_batch_ranges(
    cluster: Cluster, options: ReadOptions, start: Offsets, end: Offsets, ids: Mapping[str, str]
) -> list[OffsetRange]:
    """The planned ranges between two offsets of a stream; new partitions start at their beginning.

    `ids` are those of the topics in `end`, as far as they are known.
    Raises DataLossError for partitions that are gone, were added late, or whose log became shorter.
    """
    new = sorted(end.keys() - start.keys())
    first = await earliest_offsets(cluster, new) if new else {}
    if lost := [partition for partition in new if partition not in first]:
        _report(options, "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", f"{partition_names(lost)} may have been deleted")
    for partition, offset in sorted(first.items()):
        if offset:
            where = f"{partition.topic}-{partition.partition}"
            _report(
                options,
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                f"the added partition {where} starts from {offset} instead of 0",
            )
    if gone := sorted(start.keys() - end.keys()):
        condition = "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT" if options.group_id else "PARTITIONS_DELETED"
        _report(options, condition, f"{partition_names(gone)} have been deleted")
    ranges = []
    for partition, until in sorted(end.items()):
        known = start.get(partition, first.get(partition))
        if known is None:
            continue
        if until < known:
            where = f"{partition.topic}-{partition.partition}"
            _report(options, "PARTITION_OFFSET_CHANGED", f"the end of {where} was {known} and is {until} now")
        ranges.append(OffsetRange(partition.topic, partition.partition, known, until, ids.get(partition.topic)))
    return plan_ranges(ranges, options.min_partitions, options.max_records_per_partition)


def _report(options: ReadOptions, condition: str, what: str, remedy: str = REMEDY) -> None:
    message = f"[KAFKA_DATA_LOSS.{condition}] Records may have been lost: {what}"
    if options.fail_on_data_loss:
        raise DataLossError(f"{message}; {remedy}")
    log.warning("%s", message)


async def _latest(
    cluster: Cluster, partitions: Sequence[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, int]:
    return await cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=options.isolation_level)


async def _bounds(
    cluster: Cluster, partitions: Sequence[TopicPartition], options: ReadOptions
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where logs start and end; a last stable offset may be in the batch in which a log starts: nothing is there."""
    earliest = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
    latest = await _latest(cluster, partitions, options)
    return earliest, {p: max(offset, earliest.get(p, offset)) for p, offset in latest.items()}


async def _resolve(
    cluster: Cluster,
    options: ReadOptions,
    spec: OffsetSpec,
    partitions: Sequence[TopicPartition],
    earliest: Offsets,
    latest: Offsets,
) -> dict[TopicPartition, int]:
    if isinstance(spec, AtTimestamp):
        each = spec.timestamp
        times = {p: each if isinstance(each, int) else each[p] for p in partitions}
        found = await cluster.list_offsets(times, isolation_level=options.isolation_level)
        for partition, offset in found.items():
            if offset < 0 and spec.if_none == "error":
                raise OptionError(
                    f"{spec.option}: {partition.topic}-{partition.partition} has no record at or after"
                    f" {times[partition]}; startingOffsetsByTimestampStrategy=latest starts at its end"
                )
        return {p: offset if offset >= 0 else latest[p] for p, offset in found.items()}
    wanted = {p: spec.offset if isinstance(spec, Everywhere) else spec.offsets[p] for p in partitions}
    named = {EARLIEST: earliest, LATEST: latest}
    return {p: named[offset][p] if offset in named else offset for p, offset in wanted.items()}


def _check_order(options: ReadOptions, partition: TopicPartition, start: int, end: int) -> None:
    if start > end:
        given = getattr(options.start, "option", "startingOffsets")
        raise OptionError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {partition.topic}-{partition.partition}:"
            f" {given} resolves to {start}, after the end {end}{_stable(options)}"
        )


def _stable(options: ReadOptions) -> str:
    return ", or the last stable offset: a transaction is open there" if options.isolation_level else ""


def _check_in_log(
    options: ReadOptions, spec: OffsetSpec, partition: TopicPartition, offset: int, log_range: tuple[int, int]
) -> None:
    if not isinstance(spec, SpecificOffsets) or log_range[0] <= offset <= log_range[1]:
        return
    where = f"[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] {spec.option}: {partition.topic}-{partition.partition}"
    if offset < log_range[0]:
        if spec.option.startswith("ending"):
            return  # nothing is read, and nothing was asked for
        raise DataLossError(
            f"{where} starts at {offset}, but the log starts at {log_range[0]}:"
            f" {log_range[0] - offset} offsets are gone; {REMEDY}"
        )
    raise DataLossError(
        f"{where} is {offset}, but the log ends at {log_range[1]}{_stable(options)}; failOnDataLoss=false reads it"
    )
