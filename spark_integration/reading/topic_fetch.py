"""A fetch that speaks of one topic, whatever has its name by now.

Law: what is returned was read of the topic with the given id.  Brokers since Kafka 3.1 are asked by id (KIP-516); others
by name, and the leader that has answered is asked for the id after it: it never goes back to a former one.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping

from kafka import errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.fetch_by_id import RawFetchById


async def fetch_of_topic(
    cluster: Cluster,
    node_id: int,
    topic_id: str | None,
    positions: Mapping[TopicPartition, int],
    *,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation_level: int,
) -> list[FetchedPartition]:
    """What Cluster.fetch returns, for partitions of one topic; `topic_id` is as Cluster.topic_ids has it.

    A node that does not have the topic of this id answers UNKNOWN_TOPIC_ID for the partition, or UnknownTopicIdError is
    raised.  Without an id (brokers before 2.8 tell none) topics go by their names.
    """
    limits = {
        "max_wait_ms": max_wait_ms,
        "max_bytes": max_bytes,
        "partition_max_bytes": partition_max_bytes,
        "isolation_level": isolation_level,
    }
    if topic_id is None:
        return await cluster.fetch(node_id, positions, **limits)
    (topic,) = {partition.topic for partition in positions}
    known = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}=="))
    try:
        answer = await cluster.send_fetch(node_id, RawFetchById({topic: known}, positions, **limits))
    except kafka_errors.UnsupportedVersionError:
        found = await cluster.fetch(node_id, positions, **limits)
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        told = await cluster.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), node_id)
        if known not in {described.topic_id for described in told.topics}:
            raise kafka_errors.UnknownTopicIdError(f"topic {topic} with the id {topic_id}") from None
        return found
    if answer.error_code:
        raise kafka_errors.for_code(answer.error_code)(f"fetch from node {node_id} of the {cluster.name}")
    return answer.partitions
