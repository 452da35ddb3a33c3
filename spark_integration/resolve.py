"""From options to ranges, on the driver: which partitions, from which offset to which.

Laws:
- Every offset that a user wrote down is compared with the log before a task starts.
- What is missing raises DataLossError, or is left out if failOnDataLoss is false.
- All partitions are asked in one request for each leader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kafka.structs import TopicPartition

from spark_integration.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    Everywhere,
    OffsetRange,
    OffsetSpec,
    SpecificOffsets,
    check_same_partitions,
    plan_ranges,
)
from spark_integration.options import Assign, ReadOptions, Subscribe
from tolerant_client.errors import DataLossError, OptionError
from tolerant_client.raw import RawCluster


async def resolve_ranges(cluster: RawCluster, options: ReadOptions) -> list[OffsetRange]:
    """The planned ranges of a batch read.

    Raises OptionError for what does not exist, DataLossError for what no longer does.
    """
    partitions = await find_partitions(cluster, options)
    for spec in (options.start, options.end):
        _check_partitions(spec, partitions)
    earliest = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
    latest = await _latest(cluster, partitions, options.isolation_level)
    starts = await _resolve(cluster, options.start, partitions, earliest, latest)
    ends = await _resolve(cluster, options.end, partitions, earliest, latest)
    ranges = []
    for partition in partitions:
        log = (earliest[partition], latest[partition])
        start, end = starts[partition], ends[partition]
        if options.fail_on_data_loss:
            _check_in_log(options.start, partition, start, log)
            _check_in_log(options.end, partition, end, log)
        ranges.append(OffsetRange(partition.topic, partition.partition, max(start, log[0]), min(end, log[1])))
    return plan_ranges(ranges, options.min_partitions, options.max_records_per_partition)


async def find_partitions(cluster: RawCluster, options: ReadOptions) -> list[TopicPartition]:
    """The partitions that the options select, sorted; a pattern may select none."""
    selection = options.selection
    if isinstance(selection, Assign):
        found = await cluster.partitions({p.topic for p in selection.partitions})
        _check_topics({p.topic for p in selection.partitions}, found, cluster)
        missing = [p for p in selection.partitions if p.partition not in found[p.topic]]
        if missing:
            partition = missing[0]
            raise OptionError(
                f"assign: topic {partition.topic} has no partition {partition.partition},"
                f" only {len(found[partition.topic])} from 0 on"
            )
        return list(selection.partitions)
    if isinstance(selection, Subscribe):
        found = await cluster.partitions(selection.topics)
        _check_topics(set(selection.topics), found, cluster)
    else:
        pattern = re.compile(selection.pattern)
        everything = await cluster.partitions(None)
        found = {topic: numbers for topic, numbers in everything.items() if pattern.fullmatch(topic)}
    return sorted(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers)


def _check_topics(wanted: set[str], found: Mapping[str, object], cluster: RawCluster) -> None:
    missing = sorted(wanted - found.keys())
    if missing:
        raise OptionError(
            f"Topic {', '.join(missing)} does not exist on {','.join(cluster.bootstrap_servers)},"
            " or this user may not describe it"
        )


def _check_partitions(spec: OffsetSpec, partitions: Sequence[TopicPartition]) -> None:
    if isinstance(spec, SpecificOffsets):
        check_same_partitions(spec.offsets.keys(), partitions, spec.option)
    elif isinstance(spec, AtTimestamp) and not isinstance(spec.timestamp, int):
        check_same_partitions(spec.timestamp.keys(), partitions, spec.option)


async def _latest(
    cluster: RawCluster, partitions: Sequence[TopicPartition], isolation_level: int
) -> dict[TopicPartition, int]:
    latest = await cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    if isolation_level:
        # ListOffsets is asked for high watermarks; a Fetch answer tells the last stable offset.
        for node, led in (await cluster.by_leader(partitions)).items():
            for answer in await cluster.fetch(
                node, {p: latest[p] for p in led}, max_wait_ms=0, isolation_level=1
            ):
                if not answer.error_code and answer.last_stable_offset >= 0:
                    stable = min(latest[answer.partition], answer.last_stable_offset)
                    latest[answer.partition] = stable
    return latest


async def _resolve(
    cluster: RawCluster,
    spec: OffsetSpec,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if isinstance(spec, AtTimestamp):
        each = spec.timestamp
        times = dict.fromkeys(partitions, each) if isinstance(each, int) else dict(each)
        found = await cluster.list_offsets(times)
        for partition, offset in found.items():
            if offset < 0 and spec.if_none == "error":
                raise OptionError(
                    f"{spec.option}: {partition.topic}-{partition.partition} has no record at or after"
                    f" {times[partition]}; startingOffsetsByTimestampStrategy=latest starts at its end"
                )
        return {p: offset if offset >= 0 else latest[p] for p, offset in found.items()}
    wanted = dict.fromkeys(partitions, spec.offset) if isinstance(spec, Everywhere) else spec.offsets
    named = {EARLIEST: earliest, LATEST: latest}
    return {p: named[offset][p] if offset in named else offset for p, offset in wanted.items()}


def _check_in_log(
    spec: OffsetSpec, partition: TopicPartition, offset: int, log: tuple[int, int]
) -> None:
    if not isinstance(spec, SpecificOffsets) or log[0] <= offset <= log[1]:
        return
    where = f"{spec.option}: {partition.topic}-{partition.partition}"
    if offset < log[0]:
        if spec.option.startswith("ending"):
            return  # nothing is read, and nothing was to be
        raise DataLossError(
            f"{where} starts at {offset}, but the log starts at {log[0]}:"
            f" {log[0] - offset} offsets are gone; failOnDataLoss=false reads what is left"
        )
    raise DataLossError(
        f"{where} is {offset}, but the log ends at {log[1]}; failOnDataLoss=false reads to its end"
    )
