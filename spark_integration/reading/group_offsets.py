"""A query's progress as the committed offsets of a consumer group, for tools that show lag.

The group has no members: generation -1 and no member id, as a consumer that
assigns partitions by itself commits (KafkaApis.scala, handleOffsetCommitRequest).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kafka.errors as Errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.transaction import GROUP, Coordinators

_PATIENCE_MS = 5_000  # the next batch commits again anyway


async def commit_group_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits the next offset to read of each partition; negative ones are left out.

    Raises a kafka error for what a broker refuses, or where none answers.
    """
    by_topic: dict[str, list[Any]] = {}
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    for partition, offset in offsets.items():
        if offset >= 0:
            by_topic.setdefault(partition.topic, []).append(
                topic_type.OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
            )
    request = OffsetCommitRequest(
        max_version=8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic_type(name=topic, partitions=parts) for topic, parts in by_topic.items()],
    )

    def read(answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    raise Errors.for_code(part.error_code)(f"{topic.name}-{part.partition_index} of group {group}")

    if by_topic:
        what = f"committing offsets of group {group}"
        await Coordinators(cluster).ask(GROUP, group, what, lambda: request, read, _PATIENCE_MS)
