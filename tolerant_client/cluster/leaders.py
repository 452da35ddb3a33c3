"""The topics of one Kafka cluster and who leads their partitions.

Laws:
- With `names`, topics have the names here that the target of a link gives them, and brokers are asked by their own
  names: every request is built with `wire_topic`, every response is read with `topic_of`.
- A broker with ZooKeeper serves before it knows any topic: for 0.2 to 0.9 s after each start, measured with 0.11, 2.8 and 3.9 and 60
  topics.  So one that knows none at all is believed only once it has said so for _STARTS_S.  Those of KRaft know theirs (3.3, 4.2).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from copy import copy
from operator import attrgetter
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.connections import Connections
from tolerant_client.cluster.fetch import TopicNames
from tolerant_client.cluster.patience import Patience
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC

_Cluster = TypeVar("_Cluster", bound="Leaders")

METADATA_WITHOUT_CREATION = 4  # naming a topic in an older request creates it, unless the broker forbids that
HEARD_MS = 5_000  # a cluster is away when none of its brokers says anything for this long
_STARTS_S = 2.0
_UPDATE_METADATA = 6  # the request by which a controller tells a broker with ZooKeeper the topics; KRaft has none
_LAST_WITH_RIGHTS = 10  # the last version that also tells the rights on the cluster (KIP-430, KIP-700)


def metadata_request(
    wire_topics: Iterable[str] | None, *, has_rights: bool = False, may_create: bool = False
) -> MetadataRequest:
    """Asks for topics by the brokers' names, for all topics without names; creates none unless it may."""
    if wire_topics is not None:
        wire_topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in wire_topics]
    rights = {"max_version": _LAST_WITH_RIGHTS} if has_rights else {}
    return MetadataRequest(
        topics=wire_topics,
        allow_auto_topic_creation=may_create,
        include_cluster_authorized_operations=has_rights,
        include_topic_authorized_operations=has_rights,
        **rights,
    )


class Leaders(Connections):
    """Topics, partitions and their leaders, as brokers last told; `names` belong to the link whose source this is."""

    def __init__(
        self,
        config: Mapping[str, Any],
        net: Any = None,
        *,
        name: str = "cluster",
        patience_ms: int = 60_000,
        names: TopicNames | None = None,
        file_options: str = "",
    ) -> None:
        super().__init__(config, net, name=name, patience_ms=patience_ms, file_options=file_options)
        self.names = names
        # Of topics that `partitions` has found:
        self.topic_ids: dict[str, str] = {}  # as Kafka's tools write them
        self.leader_epochs: dict[str, list[int]] = {}  # in the order of the partitions; -1 before Kafka 2.1
        self.nodes_without_ids: set[int] = set()  # not reached by a running upgrade yet

    def by_own_names(self: _Cluster) -> _Cluster:
        """This cluster as the target of other links, on the same connections: a topic has its brokers' name."""
        same = copy(self)
        same.names, same.topic_ids, same.leader_epochs = None, {}, {}
        return same

    def wire_topic(self, topic: str) -> str:
        """The brokers' name of a topic; raises OptionError for one whose source `names` do not know."""
        return topic if self.names is None else self.names.to_source(topic)

    def topic_of(self, wire_topic: str) -> str:
        """Our name of a brokers' topic."""
        return wire_topic if self.names is None else self.names.to_target(wire_topic)

    async def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """Partition numbers by topic: of all topics but internal ones, or of those named that exist."""
        wanted = None if topics is None else set(map(self.wire_topic, topics))
        if wanted == set():
            return {}

        def is_meant(topic: Any) -> bool:
            if wanted is not None:
                return topic.name in wanted
            # Brokers before 0.10 do not say that it is internal.
            return not topic.is_internal and topic.name != OFFSETS_TOPIC

        async def ask() -> dict[str, list[int]]:
            await self.connect()
            can_name = self.highest_version(MetadataRequest) >= METADATA_WITHOUT_CREATION
            found: dict[str, list[int]] = {}
            node_id = await self._any_node()
            for is_repeat in (False, True):  # an unknown topic is believed when it is reported twice
                if is_repeat and not found:
                    await self._until_started(node_id)
                response = await self.send(metadata_request(wanted if can_name else None), node_id)
                for topic in filter(is_meant, response.topics):
                    if not topic.error_code:
                        name = self.topic_of(topic.name)
                        there = sorted(topic.partitions, key=attrgetter("partition_index"))
                        found[name] = [p.partition_index for p in there]
                        self.leader_epochs[name] = [p.leader_epoch for p in there]
                        if topic.topic_id is not None and topic.topic_id.int:  # none before Kafka 2.8
                            self.topic_ids[name] = base64.urlsafe_b64encode(topic.topic_id.bytes).rstrip(b"=").decode()
                    elif not is_repeat and topic.error_code != Errors.UnknownTopicOrPartitionError.errno:
                        raise Errors.for_code(topic.error_code)(f"topic {topic.name}")
                if found if wanted is None else len(found) >= len(wanted):
                    break
            return found

        return await self.insist("reading the topics", ask)

    async def _until_started(self, node_id: Any) -> None:
        """Waits until a broker with ZooKeeper tells of any topic, or _STARTS_S are over: then there is none."""
        if _UPDATE_METADATA not in self.manager.broker_version_data.api_versions:
            return
        patience = Patience(_STARTS_S)
        while not (await self.send(metadata_request(None), node_id)).topics and not patience.is_over:
            await self.net.sleep(patience.pause_s())

    async def track(self, topics: Iterable[str]) -> None:
        """Keeps the leaders of these topics, and of those tracked before, up to date."""
        cluster = self.manager.cluster
        missing = set(map(self.wire_topic, topics)) - set(cluster.topics(exclude_internal_topics=False))
        if missing:
            cluster._topics |= missing
            await self.refresh()

    def tracked(self, start: str) -> list[str]:
        """The topics whose leaders are kept up to date and whose names start so."""
        return [name for name in map(self.topic_of, self.manager.cluster._topics) if name.startswith(start)]

    async def refresh(self) -> None:
        """Asks for the leaders again; many callers share one request."""
        await self.connect()
        await self.insist("refreshing metadata", self.manager.cluster.refresh_metadata)

    async def require_broker(self) -> None:
        """Asks any broker for the leaders, for HEARD_MS at most; raises ClusterUnreachableError where none responds."""

        async def ask() -> None:
            await self.insist("asking its brokers", self.manager.cluster.refresh_metadata, HEARD_MS // 2)

        await self.connect(HEARD_MS)
        try:
            await self.heard(self.net.call_soon_with_future(ask), HEARD_MS)
        except Errors.KafkaTimeoutError as error:
            raise self.unreachable(HEARD_MS, error, "asking its brokers") from error

    def known_leader(self, partition: TopicPartition) -> int | None:
        """The node that leads `partition`, as far as is known without asking; None where there is none."""
        if self.names is not None:
            partition = TopicPartition(self.names.to_source(partition.topic), partition.partition)
        node: int | None = self.manager.cluster.leader_for_partition(partition)
        return None if node == -1 else node

    def lacks(self, topic: str, number: int = 0) -> bool:
        """Whether the last Metadata says that there is no such topic, or that it has fewer partitions."""
        metadata, wire_topic = self.manager.cluster, self.wire_topic(topic)
        there = metadata.partitions_for_topic(wire_topic)
        if there is None:
            return wire_topic not in metadata.unauthorized_topics
        return number > max(there, default=number)

    def why_leaderless(self, partition: TopicPartition) -> str:
        """Why `known_leader` has none, according to the last Metadata."""
        if self.wire_topic(partition.topic) in self.manager.cluster.unauthorized_topics:
            return f"it may not be described on the {self.name}; grant Describe on its topic"
        if self.lacks(partition.topic):
            return f"the {self.name} has no such topic (any more)"
        if self.lacks(*partition):
            return f"the {self.name} has no such partition (any more)"
        return f"it has no leader on the {self.name}"

    async def leader(self, partition: TopicPartition) -> int:
        """The node that leads `partition`, waiting for an election if there is none."""
        await self.track([partition.topic])

        async def ask() -> int:
            node = self.known_leader(partition)
            if node is None:
                await self.manager.cluster.refresh_metadata()
                raise Errors.LeaderNotAvailableError(f"{partition.topic}-{partition.partition}")
            return node

        known = self.known_leader(partition)
        if known is not None:
            return known
        return await self.insist(f"finding the leader of {partition.topic}-{partition.partition}", ask)

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Groups partitions by the node that leads them."""
        wanted = list(partitions)
        await self.track({p.topic for p in wanted})
        groups: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            groups.setdefault(await self.leader(partition), []).append(partition)
        return groups

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """The id of a topic whose leaders are known; None where the brokers have given it none."""
        known: uuid.UUID | None = self.manager.cluster.topic_id(self.wire_topic(topic))
        return known if known is not None and known.int else None
