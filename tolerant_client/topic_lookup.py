"""Finds the topic that is to be written to, as Java's producer does: the brokers may create it."""

from __future__ import annotations

import time

import kafka.errors as Errors
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.errors import RecordRefusedError
from tolerant_client.raw import RawCluster

_MAX_PAUSE = 0.25  # seconds, while a topic is being created
_MAX_NAME = 249  # characters: Topic.java of Kafka's clients
_SHOWN = 40
_MAX_CREATING = 10.0  # seconds that a cluster may take to create a topic, unless the caller waits less


async def partition_count(cluster: RawCluster, topic: str, max_block_ms: int) -> int:
    """How many partitions a topic has; where the brokers create topics by themselves, it is created.

    Its leaders are tracked from then on.  Raises RecordRefusedError naming a
    topic that does not exist, after `max_block_ms` or 10 s, or whose name none can have.
    """
    if len(topic) > _MAX_NAME:  # no request is worth it, and a much longer one is none that brokers can read
        name = f"{topic[:_SHOWN]!r}... ({len(topic)} characters)"
        raise RecordRefusedError(f"{name} is not a name that a topic can have: those have {_MAX_NAME} at most", topic)
    known = cluster.manager.cluster.partitions_for_topic(topic)
    if known:
        return len(known)
    patience = min(max_block_ms / 1000, _MAX_CREATING)
    deadline, pause = time.monotonic() + patience, 0.02
    while True:
        count = await cluster.insist(f"looking for topic {topic}", lambda: _ask(cluster, topic), max_block_ms)
        if count:
            await cluster.track([topic])
            return count
        if time.monotonic() > deadline:
            raise RecordRefusedError(
                f"Topic {topic} does not exist, and the brokers have not created it within {patience:g} s"
                " (auto.create.topics.enable); create it first",
                topic,
            )
        await cluster.net.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE)


async def _ask(cluster: RawCluster, topic: str) -> int:
    """The topic's partition count, 0 where it cannot be told yet."""
    # Java's producer always allows it; auto.create.topics.enable of the brokers decides.
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
    answer = await cluster.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    (found,) = answer.topics
    if found.error_code == Errors.TopicAuthorizationFailedError.errno:
        raise Errors.TopicAuthorizationFailedError(f"topic {topic}")
    if found.error_code == Errors.InvalidTopicError.errno:
        raise RecordRefusedError(f"{topic!r} is not a name that a topic can have", topic)
    return 0 if found.error_code else len(found.partitions)
