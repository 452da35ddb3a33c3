"""A query's progress as the committed offsets of a consumer group, for tools that show lag.

The group has no members: generation -1 and no member id, as a consumer that
assigns partitions by itself commits (KafkaApis.scala, handleOffsetCommitRequest).
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.cluster.cluster import Cluster


async def commit_group_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits the next offset to read of each partition; negative ones are left out.

    Raises a kafka error for what a broker refuses, or where none answers for some seconds: the next batch commits again.
    """
    wanted = {partition: CommittedOffset(offset, "") for partition, offset in offsets.items() if offset >= 0}
    if not wanted:
        return
    codes, failures = await commit_offsets(cluster, {group: wanted})
    for error in failures.values():
        raise error
    for partition, code in codes[group].items():
        raise_for(code, f"{partition.topic}-{partition.partition} of group {group}")
