"""Topics of one cluster: what Metadata says of them, their ids, and creating, growing, emptying and deleting them.

Brokers before 2.8 tell no topic id: what they cannot tell is left out here, never guessed.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import kafka.errors as Errors
from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import ClusterUnreachableError

READ, WRITE = 3, 4  # AclOperation.java
_WITH_IDS = 10
_TIMEOUT_MS = 30_000
_ELECTION_MS = 10_000
_MISSING_S = 1.0  # between two looks
_NO_TOPIC_ID = uuid.UUID(int=0)


class Wanted(Protocol):
    """A topic to create, or to give more partitions."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def replication_factor(self) -> int: ...
    @property
    def config(self) -> Mapping[str, str]: ...


class Outcome(NamedTuple):
    """What the controller did for a topic: error code 0, or another code and the broker's message."""

    name: str
    error_code: int
    words: str


async def read_metadata(cluster: Cluster, topics: Collection[str]) -> dict[str, Any]:
    """What one Metadata response says of these topics, including error codes."""
    if not topics:
        return {}
    response = await cluster.send(metadata_request(map(cluster.wire_topic, topics)))
    return {cluster.topic_of(topic.name): topic for topic in response.topics}


async def replication_factors(cluster: Cluster, topics: Collection[str] | None = None) -> dict[str, int]:
    """The replication factor of each of these topics, or of each that this client may see; asked once."""
    if topics is None:
        told = {cluster.topic_of(topic.name): topic for topic in (await cluster.send(metadata_request(None))).topics}
    else:
        told = await read_metadata(cluster, topics)
        for name, topic in told.items():
            raise_for(topic.error_code, f"Metadata of {name}")
    return {name: max((len(p.replica_nodes) for p in topic.partitions), default=1) for name, topic in told.items()}


async def visible_topics(
    cluster: Cluster, topics: Collection[str]
) -> tuple[dict[str, list[int]], dict[str, Exception]]:
    """Partition numbers of the topics that exist, and errors of those that may not be described, existing or not.

    They are asked for by name: a Metadata of all topics leaves the latter out.  Brokers before 0.11 list all topics instead
    (naming one could create it), so a topic that they hide does not exist here.
    """
    try:
        return await cluster.partitions(topics), {}
    except Errors.TopicAuthorizationFailedError:
        refusal = Errors.TopicAuthorizationFailedError
        told = await read_metadata(cluster, topics)
        hidden = {name for name, topic in told.items() if topic.error_code == refusal.errno}
        if not hidden:
            raise
        why = f"of the {cluster.name} may not be described; grant Describe on it"
        there = await cluster.partitions([name for name in topics if name not in hidden])
        return there, {name: refusal(f"topic {name} {why}") for name in hidden}


async def still_missing(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those of these topics, which the cluster has said not to have, that it does not show in the next looks either.

    A broker that has just started knows no topic before its controller has told it (UpdateMetadata, with ZooKeeper).
    """
    missing = set(topics)
    for _ in range(BELIEVED_AFTER):
        if not missing:
            break
        await cluster.net.sleep(_MISSING_S)
        missing -= (await cluster.partitions(missing)).keys()
    return missing


async def not_allowed(cluster: Cluster, topics: Collection[str], operation: int) -> list[str]:
    """Those of these topics on which we may not do this (AclOperation.java), if the brokers tell (KIP-430, Kafka 2.3).

    Without Describe we may do nothing, and are not told whether a topic exists: it is one of them.
    """
    if not topics:
        return []

    async def ask() -> Any:
        return await cluster.send(metadata_request(map(cluster.wire_topic, topics), has_rights=True))

    told = (await cluster.insist("reading our rights to topics", ask)).topics
    return sorted(cluster.topic_of(topic.name) for topic in told if _is_refused(topic, operation))


def _is_refused(topic: Any, operation: int) -> bool:
    if topic.error_code:
        return bool(topic.error_code == Errors.TopicAuthorizationFailedError.errno)
    allowed = topic.authorized_operations
    return allowed is not None and operation not in allowed


async def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, uuid.UUID]:
    """The ids of the topics that exist (KIP-516): another id is another topic of the same name.

    Empty from brokers before 2.8.
    """
    return {name: topic_id for name, topic_id in (await present_ids(cluster, topics)).items() if topic_id is not None}


async def present_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, uuid.UUID | None]:
    """The topics that exist, with their ids; from brokers before 2.8, which tell no ids, all topics with None.

    A topic is left out when one response calls it unknown, which says nothing of its id.
    """
    await cluster.connect()
    wanted = list(topics)
    if not wanted or cluster.highest_version(MetadataRequest) < _WITH_IDS:
        return dict.fromkeys(wanted)

    async def ask() -> dict[str, uuid.UUID | None]:
        found: dict[str, uuid.UUID | None] = {}
        for name, topic in (await read_metadata(cluster, wanted)).items():
            if topic.error_code != Errors.UnknownTopicOrPartitionError.errno:
                raise_for(topic.error_code, f"Metadata of {name}")
                found[name] = topic.topic_id if topic.topic_id != _NO_TOPIC_ID else None
        return found

    return await cluster.insist("reading the topics' ids", ask)


async def require_topic(cluster: Cluster, topic: str, topic_id: uuid.UUID | None) -> None:
    """Raises UnknownTopicIdError, which is retriable, where a topic has another id by now, or does not exist."""
    if topic_id is not None and (await present_ids(cluster, [topic])).get(topic) != topic_id:
        error: Exception = Errors.UnknownTopicIdError(f"topic {topic} no longer has the id {topic_id}")
        raise error


async def create_topics(cluster: Cluster, topics: Iterable[Wanted], *, validate_only: bool) -> list[Outcome]:
    """Creates topics, or with `validate_only` says what would happen to them; asked once."""
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            creatable(
                name=t.name,
                num_partitions=t.partitions,
                replication_factor=t.replication_factor,
                assignments=[],
                configs=[creatable.CreatableTopicConfig(name=k, value=v) for k, v in t.config.items()],
            )
            for t in topics
        ],
        timeout_ms=_TIMEOUT_MS,
        validate_only=validate_only,
    )
    response = await cluster.send(request, await _controller(cluster))
    # Version 0 (Kafka 0.10) has no error messages.
    outcomes = [Outcome(r.name, r.error_code, getattr(r, "error_message", None) or "") for r in response.topics]
    if any(outcome.error_code == Errors.NotControllerError.errno for outcome in outcomes):
        await cluster.refresh()
    return outcomes


async def create_partitions(cluster: Cluster, topics: Iterable[Wanted]) -> list[Outcome]:
    """Raises the partition counts of topics to the given ones; asked once."""
    wanted = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[wanted(name=t.name, count=t.partitions, assignments=None) for t in topics],
        timeout_ms=_TIMEOUT_MS,
        validate_only=False,
    )
    response = await cluster.send(request, await _controller(cluster))
    return [Outcome(r.name, r.error_code, r.error_message or "") for r in response.results]


async def wait_for_leaders(cluster: Cluster, topics: Iterable[Wanted]) -> None:
    """Waits until all partitions of new topics are led, as long as some more of them are every few seconds.

    A broker tells of a leader before that leader has made its logs (KRaft): many at once, on a busy machine, take it seconds, for which
    it says that it does not lead them.  Users of the topics wait for those that are not led then.
    """
    left = {TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)}
    before = len(left) + 1
    while 0 < len(left) < before:
        before = len(left)
        try:
            _, away = await list_led_offsets(cluster, dict.fromkeys(left, LATEST), patience_ms=_ELECTION_MS)
        except ClusterUnreachableError:
            return
        left.intersection_update(away)


async def delete_topics(cluster: Cluster, names: Collection[str]) -> None:
    """Deletes topics and waits until no broker knows them; raises KafkaError."""

    async def delete() -> None:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=_TIMEOUT_MS, max_version=5)
        for result in (await cluster.send(request, await _controller(cluster))).responses:
            if result.error_code != Errors.UnknownTopicOrPartitionError.errno:
                raise_for(result.error_code, f"deleting topic {result.name}")

    async def gone() -> None:
        if left := await cluster.partitions(names):
            raise Errors.OffsetNotAvailableError(f"topic {min(left)} is still there")

    await cluster.insist("deleting topics", delete)
    await cluster.insist("waiting until deleted topics are gone", gone)


async def delete_records(cluster: Cluster, partition: TopicPartition, before: int) -> int:
    """Deletes the records before an offset; returns the leader's error code.  Asked once."""
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = topic_type.DeleteRecordsPartition(partition_index=partition.partition, offset=before)
    request = DeleteRecordsRequest(
        topics=[topic_type(name=partition.topic, partitions=[wanted])], timeout_ms=_TIMEOUT_MS, max_version=2
    )
    response = await cluster.send(request, await cluster.leader(partition))
    (code,) = (int(part.error_code) for topic in response.topics for part in topic.partitions)
    return code


async def _controller(cluster: Cluster) -> int | None:
    await cluster.connect()
    controller = cluster.manager.cluster.controller
    return None if controller is None else int(controller.node_id)


async def lacking(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those of these topics that the cluster does not have, believed when it says so twice; reports no other problem."""
    absent: set[str] = set()
    await cluster.track(topics)
    for _ in range(2):
        await cluster.refresh()
        absent = {topic for topic in topics if cluster.lacks(topic)}
        if not absent:
            break
    return absent
