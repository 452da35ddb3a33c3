"""Leader epochs of the source: was what we copied taken back by an election (KIP-101, KIP-320, incident 4)?"""

from __future__ import annotations

from collections.abc import Mapping

import kafka.errors as Errors
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster

_FOR_CLIENTS = 2  # older versions are for brokers only (ClusterAction)


async def source_truncations(
    source: Cluster, copied: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Where the source's logs were cut below what was copied.

    `copied` has the leader epoch of the last copied batch and the offset behind
    it.  The leader says where its log has the end of that epoch; what was
    copied from there on is gone.  Partitions without a cut are absent, all of
    them where the brokers (before 2.1) cannot say.
    """
    asked = {p: epoch for p, (epoch, _) in copied.items() if epoch >= 0}
    if not asked:
        return {}
    await source.connect()
    versions = source.manager.broker_version_data.api_versions.get(OffsetForLeaderEpochRequest.API_KEY)
    if versions is None or versions[1] < _FOR_CLIENTS:
        return {}
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    ends: dict[TopicPartition, int] = {}

    async def ask() -> None:
        failure: Exception | None = None
        for node, members in (await source.by_leader(p for p in asked if p not in ends)).items():
            by_topic: dict[str, list[object]] = {}
            for p in members:
                by_topic.setdefault(p.topic, []).append(
                    topic_type.OffsetForLeaderPartition(
                        partition=p.partition, current_leader_epoch=-1, leader_epoch=asked[p]
                    )
                )
            request = OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    topic_type(topic=source.wire_topic(name), partitions=parts) for name, parts in by_topic.items()
                ],
            )
            for topic in (await source.send(request, node)).topics:
                name = source.topic_of(topic.topic)
                for part in topic.partitions:
                    if part.error_code:
                        failure = Errors.for_code(part.error_code)(f"{name}-{part.partition}")
                    else:
                        ends[TopicPartition(name, part.partition)] = part.end_offset
        if failure is not None:
            raise failure

    await source.insist("asking where leader epochs end", ask)
    return {p: end for p, end in ends.items() if p in copied and 0 <= end < copied[p][1]}
