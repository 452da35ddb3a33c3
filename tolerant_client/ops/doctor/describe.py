"""Reads facts from a cluster; writes nothing, and no request creates anything.

Each function raises kafka-python's error if the brokers refuse, ClusterUnreachableError if they do not respond
within the cluster's patience, and UnsupportedVersionError if they are too old for the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClusterRequest, DescribeQuorumRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks, raise_for, speaks
from tolerant_client.cluster.admin.configs import BROKER, describe_configs
from tolerant_client.cluster.admin.groups import describe_groups_request, groups_of
from tolerant_client.cluster.admin.log_dirs import LogDir, describe_log_dirs
from tolerant_client.cluster.admin.transactions import describe_transactions
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.leaders import METADATA_WITHOUT_CREATION, metadata_request
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import fit_topics
from tolerant_client.ops.doctor.facts import (
    INTERNAL_TOPICS,
    OPERATIONS,
    Broker,
    ClusterFacts,
    Operations,
    Partition,
    Quorum,
    Topic,
)

_METADATA_WITH_CONTROLLER = 1
_QUORUM_TOPIC = "__cluster_metadata"


class Quota(NamedTuple):
    """Quotas of one entity, such as {"user": "mirror", "client-id": None}; None is the default of its kind (KIP-546)."""

    entity: tuple[tuple[str, str | None], ...]
    values: tuple[tuple[str, float], ...]


async def ask(cluster: Cluster, make: Callable[[], Any], node_id: int | None = None) -> Any:
    """One response of a node, or of any node; `make` creates a new request for each attempt."""

    async def once() -> Any:
        return await cluster.send(make(), node_id)

    return await cluster.insist(f"asking {make().name}", once)


async def describe_cluster(cluster: Cluster, silent: Collection[int] = ()) -> ClusterFacts:
    """Brokers, topics and rights, from one Metadata response and one DescribeCluster response."""
    response = await ask(cluster, lambda: metadata_request(None, has_rights=True))
    topics = {topic.name: read_topic(topic) for topic in response.topics}
    topics.update(await hidden_topics(cluster, [name for name in INTERNAL_TOPICS if name not in topics]))
    brokers = {broker.node_id: Broker(broker.node_id, broker.host, broker.port) for broker in response.brokers}
    for fenced in await _fenced(cluster):
        brokers[fenced.node_id] = fenced
    return ClusterFacts(
        cluster.name,
        ",".join(map(str, cluster.bootstrap_servers)),
        response.cluster_id,
        response.controller_id if cluster.highest_version(MetadataRequest) >= _METADATA_WITH_CONTROLLER else None,
        brokers,
        topics,
        operations(response.authorized_operations),
        silent=frozenset(silent),
        version=tuple(cluster.manager.broker_version_data.broker_version),
        is_secured=cluster.manager.config["security_protocol"] != "PLAINTEXT",
    )


async def hidden_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Topic]:
    """Which of these topics we may not describe: a list of all topics leaves them out, a request by name is refused.

    The brokers do not tell whether such a topic exists.  Brokers before 0.11 could create a requested topic, so they are
    not asked.
    """
    await cluster.connect()
    if not names or cluster.highest_version(MetadataRequest) < METADATA_WITHOUT_CREATION:
        return {}
    found = (await ask(cluster, lambda: metadata_request(names, has_rights=True))).topics
    refused = Errors.TopicAuthorizationFailedError.errno
    return {topic.name: read_topic(topic) for topic in found if topic.error_code == refused}


async def read_partitions(cluster: Cluster) -> tuple[dict[int, str], list[Partition]]:
    """The registered brokers, and every partition's current state; from one Metadata response."""
    response = await ask(cluster, lambda: metadata_request(None))
    brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers}
    return brokers, [partition for topic in response.topics for partition in read_topic(topic).partitions]


def read_topic(topic: Any) -> Topic:
    """A topic of a MetadataResponse."""
    partitions = tuple(
        Partition(
            topic.name,
            p.partition_index,
            p.leader_id,
            -1 if p.leader_epoch is None else p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas or ()),
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    )
    is_internal = bool(topic.is_internal) or topic.name in INTERNAL_TOPICS
    return Topic(topic.name, partitions, is_internal, operations(topic.authorized_operations), topic.error_code)


def operations(codes: Iterable[int] | None) -> Operations | None:
    """The names of the operations that a bit field allows; None from brokers that do not tell (before 2.3)."""
    return None if codes is None else frozenset(OPERATIONS[code] for code in codes if code in OPERATIONS)


async def topic_configs(cluster: Cluster, topics: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """Settings in force by topic; topics whose settings we may not read are absent."""
    found: dict[str, dict[str, str]] = {}
    for chunk in chunks(sorted(topics)):
        told = await cluster.insist("describing topics", partial(describe_configs, cluster, chunk, names))
        for name, settings in told.items():
            if not isinstance(settings, Exception):
                found[name] = {key: setting.value for key, setting in settings.items()}
    return found


async def broker_configs(cluster: Cluster, nodes: Iterable[int], names: Collection[str]) -> dict[int, dict[str, str]]:
    """Settings in force by broker; needs DescribeConfigs on the cluster."""
    found: dict[int, dict[str, str]] = {}
    for node in nodes:
        asked = partial(describe_configs, cluster, [str(node)], names, kind=BROKER, node_id=node)
        settings = (await cluster.insist("describing brokers", asked)).get(str(node), {})
        if isinstance(settings, Exception):
            raise settings
        found[node] = {key: setting.value for key, setting in settings.items()}
    return found


def has_quorum(cluster: Cluster) -> bool:
    """Whether the controllers are a quorum (KRaft); valid only once connected."""
    return speaks(cluster, DescribeQuorumRequest)


async def quorum(cluster: Cluster) -> Quorum:
    """The controllers' quorum; needs Describe on the cluster, and KRaft."""
    topic = DescribeQuorumRequest.TopicData

    def request() -> Any:
        partition = topic.PartitionData(partition_index=0)
        return DescribeQuorumRequest(topics=[topic(topic_name=_QUORUM_TOPIC, partitions=[partition])])

    before = _now_ms()
    response = await ask(cluster, request)
    after = _now_ms()
    raise_for(response.error_code, "DescribeQuorum")
    (partition,) = (p for t in response.topics for p in t.partitions)
    raise_for(partition.error_code, f"DescribeQuorum of {_QUORUM_TOPIC}")
    voters = {v.replica_id: (v.log_end_offset, _told(v.last_caught_up_timestamp)) for v in partition.current_voters}
    leader = [v for v in partition.current_voters if v.replica_id == partition.leader_id]
    # For the leader itself it is the time of the response (RaftUtil.java, toReplicaState).
    leader_time = _told(leader[0].last_fetch_timestamp) if leader else -1
    log_end = leader[0].log_end_offset if leader else -1
    return Quorum(partition.leader_id, log_end, voters, leader_time, before, after)


async def log_dirs(
    cluster: Cluster, nodes: Iterable[int], topics: Collection[str]
) -> tuple[list[LogDir], dict[tuple[int, TopicPartition], int]]:
    """Log directories of brokers, and the bytes that each broker holds of these topics; needs Describe on the cluster."""
    found: list[LogDir] = []
    sizes: dict[tuple[int, TopicPartition], int] = {}
    for node in nodes:
        dirs = await cluster.insist("asking for log directories", partial(describe_log_dirs, cluster, node))
        found += dirs
        sizes.update({(node, p): size for one in dirs for p, size in one.sizes.items() if p.topic in topics})
    return found, sizes


async def list_groups(cluster: Cluster, nodes: Iterable[int]) -> dict[str, int]:
    """Group ids and their coordinators; groups that we may not describe, or whose coordinator is unavailable, are absent."""
    found: dict[str, int] = {}
    for node in nodes:
        groups = await cluster.insist("listing groups", partial(groups_of, cluster, node))
        found.update({group.name: node for group in groups})
    return found


async def group_rights(cluster: Cluster, groups: Collection[str], nodes: Iterable[int]) -> dict[str, Operations]:
    """Our rights to groups; absent if the brokers do not tell (before 2.3) or a coordinator is unavailable.

    Every broker is asked: FindCoordinator would create __consumer_offsets, and the topic's metadata may be hidden.
    """
    found: dict[str, Operations] = {}
    for node in nodes:
        for chunk in chunks(sorted(groups)):
            asked = partial(describe_groups_request, chunk, has_rights=True)
            for group in (await ask(cluster, asked, node)).groups:
                if group.error_code == Errors.GroupAuthorizationFailedError.errno:
                    found[group.group_id] = frozenset()
                elif not group.error_code and (told := operations(group.authorized_operations)) is not None:
                    found[group.group_id] = told
    return found


async def may_describe_transactional_ids(cluster: Cluster, ids: Sequence[str]) -> dict[str, bool]:
    """Whether we may describe these transactional ids, which Write implies (KIP-664, Kafka 3.0).

    Any broker can tell: it checks the right before it says that it is not the coordinator.
    """
    found = await cluster.insist("describing transactions", partial(describe_transactions, cluster, ids))
    refused = Errors.TransactionalIdAuthorizationFailedError
    return {name: not isinstance(told, refused) for name, told in found.items()}


async def uncreatable(cluster: Cluster, topics: Iterable[str]) -> set[str]:
    """Which of these missing topics we may not create; asked with validateOnly, so nothing is created."""
    found: set[str] = set()
    for name in topics:
        try:
            await fit_topics(cluster, [TopicSpec(name, 1, 1)])
        except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError):
            found.add(name)
        except OptionError:
            continue  # a policy of the brokers refuses it; the creator of the topic will see that error
    return found


async def quotas(cluster: Cluster) -> list[Quota]:
    """All client quotas; needs DescribeConfigs on the cluster."""
    response = await ask(cluster, lambda: DescribeClientQuotasRequest(components=[], strict=False))
    raise_for(response.error_code, "DescribeClientQuotas")
    return [
        Quota(
            tuple((e.entity_type, e.entity_name) for e in entry.entity),
            tuple((v.key, v.value) for v in entry.values),
        )
        for entry in response.entries or ()
    ]


async def _fenced(cluster: Cluster) -> list[Broker]:
    """Brokers that are registered but fenced; brokers before 4.0 do not report them (KIP-1073)."""
    await cluster.connect()
    if cluster.highest_version(DescribeClusterRequest) < 2:
        return []

    def request() -> Any:
        return DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True
        )

    response = await ask(cluster, request)
    raise_for(response.error_code, "DescribeCluster")
    return [Broker(b.broker_id, b.host, b.port, True) for b in response.brokers if b.is_fenced]


def _told(value: Any) -> int:
    """The value, or -1 for a field that an older version of the response lacks."""
    return -1 if value is None else int(value)


def _now_ms() -> int:
    return int(time.time() * 1000)
