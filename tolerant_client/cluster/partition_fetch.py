"""What one partition has at an offset, and whether a response without records proves that it has none.

Laws:
- A partition that is fetched alone always returns its first batch, whatever its size and the limits (KIP-74).  Beside
  others it is left out once they have filled the response, and under a quota any partition is.
- Where the offset is only in remote storage, "no records" may mean "not yet" (KIP-405).
"""

from __future__ import annotations

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST_LOCAL, Cluster
from tolerant_client.cluster.fetch import FetchedPartition


async def fetch_alone(
    cluster: Cluster, partition: TopicPartition, offset: int, max_bytes: int = 4 << 20, *, max_wait_ms: int = 0
) -> FetchedPartition:
    """One fetch of a partition, from its leader.  Raises Kafka's error."""
    node = await cluster.leader(partition)
    fetched = await cluster.fetch(node, {partition: offset}, max_wait_ms=max_wait_ms, partition_max_bytes=max_bytes)
    name = f"{partition.topic}-{partition.partition}"
    if not fetched:
        raise Errors.UnknownTopicOrPartitionError(f"{name}: missing in the response")
    (part,) = fetched
    if part.error_code:
        raise Errors.for_code(part.error_code)(f"Fetch of {name}")
    return part


async def is_local(cluster: Cluster, partition: TopicPartition, offset: int) -> bool:
    """Whether the leader has everything from an offset on, on its own disks.  Raises Kafka's error."""
    return not cluster.has_tiers or (await cluster.list_offsets({partition: EARLIEST_LOCAL}))[partition] <= offset
