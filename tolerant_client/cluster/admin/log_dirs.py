"""Log directories of the brokers of one cluster, and how much partitions take there (KIP-113)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kafka.protocol.admin import DescribeLogDirsRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import by_topic, raise_for, speaks
from tolerant_client.cluster.cluster import Cluster


@dataclass(frozen=True)
class LogDir:
    """A log directory of a broker; sizes in bytes, -1 where brokers before 3.3 cannot tell (KIP-827).

    `sizes` are those of the partitions that were asked for.
    """

    node_id: int
    path: str
    error_code: int
    total_bytes: int = -1
    usable_bytes: int = -1
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict, compare=False)


def tells_log_dirs(cluster: Cluster) -> bool:
    """True for Kafka 1.0 and newer; only once connected."""
    return speaks(cluster, DescribeLogDirsRequest)


async def describe_log_dirs(
    cluster: Cluster, node_id: int, partitions: Collection[TopicPartition] | None = None
) -> list[LogDir]:
    """The log directories of a broker, with these partitions or all; asked once.  Needs Describe on the cluster.

    A replica that is being moved between directories counts in the one that it is read from.
    """
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    topics = None
    if partitions is not None:
        topics = [kind(topic=name, partitions=numbers) for name, numbers in by_topic(cluster, partitions).items()]
    response = await cluster.send(DescribeLogDirsRequest(topics=topics, max_version=4), node_id)
    raise_for(response.error_code, f"DescribeLogDirs of broker {node_id}")
    return [
        LogDir(
            node_id,
            one.log_dir,
            one.error_code,
            one.total_bytes,
            one.usable_bytes,
            {
                TopicPartition(cluster.topic_of(topic.name), part.partition_index): part.partition_size
                for topic in one.topics
                for part in topic.partitions
                if not part.is_future_key
            },
        )
        for one in response.results
    ]
