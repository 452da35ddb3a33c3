"""Whether a source really has no records where its responses show none.

Law: an empty response proves nothing.  A broker leaves a partition empty when others have filled the response (KIP-74),
when it throttles, and while remote storage is slow (KIP-405).  Only a fetch of this partition alone would bring a record.
"""

from __future__ import annotations

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST_LOCAL, READ_COMMITTED, Cluster

_ANSWERS = 2
_BYTES = 1 << 20


async def has_no_records(source: Cluster, partition: TopicPartition, position: int, stable: int) -> bool:
    """Whether the log of the source has none in [position, stable); False where that could not be told this time."""
    try:
        for _ in range(_ANSWERS):
            leader = await source.leader(partition)
            session = await source.session(leader, isolation_level=READ_COMMITTED)
            if source.has_tiers:
                local = await source.list_offsets({partition: EARLIEST_LOCAL})
                if local[partition] > position:
                    return False
            session.seek(partition, position)
            request = session.request(max_wait_ms=100, max_bytes=_BYTES, partition_max_bytes=_BYTES)
            answer = await source.send_fetch(leader, request)
            if answer.error_code or answer.throttle_time_ms or len(answer.partitions) != 1:
                return False
            (part,) = answer.partitions
            if part.error_code or len(part.records) or part.last_stable_offset < stable:
                return False
            if not 0 <= part.log_start_offset <= position:
                return False
    except Errors.KafkaError:
        return False
    return True
