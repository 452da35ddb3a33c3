"""Whether a log holds what was acknowledged, according to the log itself (law G of producer/partition.py)."""

from __future__ import annotations

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import log_end_offsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.cluster.producer.partition import Sought
from tolerant_client.errors import TolerantClientError
from tolerant_client.records.record_batch import iter_batches


async def find_acknowledged(
    cluster: Cluster, partition: TopicPartition, sought: Sought, patience_ms: int
) -> dict[int, int]:
    """The base offsets of the sought batches, by base sequence, according to the headers in the log.

    Raises TolerantClientError where three reads found that the log lacks some of them, or it cannot be read.
    """
    name = f"{partition.topic}-{partition.partition}"
    lost = TolerantClientError(
        f"{name} lost records that had been acknowledged (a topic that was created again, or an unclean election): what this"
        " producer wrote is not complete"
    )

    async def look() -> dict[int, int]:
        found = await _find(cluster, partition, sought)
        if len(found) < len(sought.sequences):
            raise lost
        return found

    try:
        return await cluster.insist("reading what was acknowledged", look, patience_ms)
    except (Errors.KafkaError, ValueError) as error:
        if error is lost:
            raise
        raise TolerantClientError(
            f"{name} may have lost records that had been acknowledged: a response's offset contradicts them, and the log"
            f" could not be read ({type(error).__name__}: {error}); what this producer wrote may not be complete"
        ) from error


async def _find(cluster: Cluster, partition: TopicPartition, sought: Sought) -> dict[int, int]:
    offset, found = sought.from_offset, dict[int, int]()
    while offset <= sought.to_offset and len(found) < len(sought.sequences):
        try:
            part = await fetch_alone(cluster, partition, offset)
        except Errors.OffsetOutOfRangeError:
            break
        read_from = offset
        for header, _ in iter_batches(part.records):
            is_ours = (header.producer_id, header.producer_epoch) == sought.producer
            if is_ours and header.base_sequence in sought.sequences:
                found[header.base_sequence] = header.base_offset
            offset = header.next_offset
        if offset == read_from:
            # A new leader may have records that it does not show yet: its high watermark advances with its followers.
            if (await log_end_offsets(cluster, [partition])).get(partition, offset + 1) > offset:
                raise Errors.OffsetNotAvailableError(f"{partition.topic}-{partition.partition}: not all is replicated")
            break
    return found
