"""Whether the target's brokers overwrote record timestamps: the log shows it, a response does not.

Law: a Produce response with a log append time only raises the question.  For a batch that it already has, a broker returns
the time of its copy, even if the topic keeps the records' timestamps (UnifiedLog.java, append); and filler gets a new time at
each sending.  The batch's attribute in the log decides (KIP-32).
"""

from __future__ import annotations

from collections.abc import Iterable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.engine.troubles import fill_again
from tolerant_client.records.record_batch import HEADER_SIZE, BatchHeader, read_header

_READ_BYTES = 1 << 10  # a broker sends the first batch whole, whatever its size


async def rewritten_offsets(
    target: Cluster, partition: TopicPartition, spans: Iterable[tuple[int, int]]
) -> tuple[int, int] | None:
    """The range from the first to the last of these batches that have the broker's time, half-open; None if there are none.

    Raises KafkaError if one could not be read.
    """
    found: list[tuple[int, int]] = []
    for first, until in spans:
        header = await _batch_at(target, partition, first)
        if header is not None and header.has_log_append_time:
            found.append((first, until))
    return (min(first for first, _ in found), max(until for _, until in found)) if found else None


async def _batch_at(target: Cluster, partition: TopicPartition, offset: int) -> BatchHeader | None:
    """The batch with this offset; None if retention or the cleaner removed it."""

    async def ask() -> BatchHeader | None:
        try:
            part = await fetch_alone(target, partition, offset, _READ_BYTES)
        except Errors.OffsetOutOfRangeError:
            return None
        if len(part.records) < HEADER_SIZE:
            raise Errors.OffsetNotAvailableError(
                f"the batch at offset {offset} of {partition.topic}-{partition.partition}"
            )
        header = read_header(part.records)
        return header if header.base_offset <= offset else None

    found: BatchHeader | None = await target.insist("reading a batch that was appended", ask)
    return found


def times_rewritten(partition: str, first: int, until: int) -> TargetDivergedError:
    """The error for records whose timestamps the target's brokers overwrote."""
    return TargetDivergedError(
        f"The target log of {partition} has offsets {first} to {until} with times that its brokers gave them, not the"
        " source's: message.timestamp.type of the topic is LogAppendTime, or was while they were written"
    ).advising(f"Set it to CreateTime, then {fill_again()}")
