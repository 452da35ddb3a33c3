"""Brings the target's topics in line with the source's, and says where a link stands.

Everything that can be wrong is found here, before the first write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, TolerantClientError, UnsupportedSourceError
from tolerant_client.mirror.plan import LOG_APPEND_TIME, TIMESTAMP_TYPE, TopicSpec, TopicsPlan, plan_topics, select_topics
from tolerant_client.mirror.state import init_producer_id, raise_for, read_append_states, read_headers
from tolerant_client.raw import EARLIEST, LATEST, RawCluster

_TOPIC_RESOURCE = 2
_SET_FOR_THIS_TOPIC = 1  # DescribeConfigsResponse config_source DYNAMIC_TOPIC_CONFIG
_CREATE_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class PlannedLink:
    """Topics of a link, and the log ends of the source's partitions."""

    topics: TopicsPlan
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class PreparedLink:
    """A link that can start: its producer id and the partitions with their source log ends."""

    producer_id: int
    created: tuple[str, ...]
    ends: Mapping[TopicPartition, int]


async def plan_link(source: RawCluster, target: RawCluster, topics: str) -> PlannedLink:
    """What a link over the topics that match a regular expression would do; writes nothing.

    Raises OptionError, UnsupportedSourceError or ClusterUnreachableError.
    """
    await source.require_record_batches()
    await target.require_record_batches()
    if await source.cluster_id() == await target.cluster_id() is not None:
        raise OptionError(
            f"Source {source.bootstrap_servers} and target {target.bootstrap_servers} are the same cluster"
            f" ({await source.cluster_id()}); give two clusters"
        )
    chosen = select_topics(topics, await source.partitions())
    wanted = await describe_topics(source, chosen)
    plan = plan_topics(wanted, await describe_topics(target, chosen), len(target.manager.cluster.brokers()))
    ends = await source.list_offsets(dict.fromkeys(_partitions(wanted.values()), LATEST))
    await _refuse_unsupported_logs(source, plan.create, ends)
    return PlannedLink(plan, ends)


async def prepare_link(source: RawCluster, target: RawCluster, topics: str, link: str) -> PreparedLink:
    """Checks both clusters and every topic, then creates the missing topics.

    Raises what plan_link does, TargetDivergedError and DataLossError; unless a
    cluster went away on the way, nothing was written then.
    """
    planned = await plan_link(source, target, topics)
    producer_id = await init_producer_id(target, link)
    await _refuse_foreign_records(source, target, planned.topics.existing, producer_id)
    await create_topics(target, planned.topics.create)
    return PreparedLink(producer_id, tuple(t.name for t in planned.topics.create), planned.ends)


async def describe_topics(cluster: RawCluster, topics: Iterable[str]) -> dict[str, TopicSpec]:
    """Partition count, replication factor and own configuration of the topics that exist."""
    names = list(topics)
    present = await cluster.partitions(names)
    if not present:
        return {}

    async def metadata() -> dict[str, int]:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in present]
        answer = await cluster.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        raise_for(next((t.error_code for t in answer.topics if t.error_code), 0), "Metadata")
        return {t.name: max((len(p.replica_nodes) for p in t.partitions), default=1) for t in answer.topics}

    async def configs() -> dict[str, dict[str, str]]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        answer = await cluster.send(
            DescribeConfigsRequest(
                resources=[
                    resource(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None) for name in present
                ],
                include_synonyms=False,
                include_documentation=False,
            )
        )
        found = {}
        for result in answer.results:
            raise_for(result.error_code, f"DescribeConfigs of {result.resource_name}")
            found[result.resource_name] = {
                c.name: c.value
                for c in result.configs
                if c.value is not None and (c.config_source == _SET_FOR_THIS_TOPIC or _rewrites_timestamps(c))
            }
        return found

    replicas = await cluster.insist("describing topics", metadata)
    own = await cluster.insist("describing topic configurations", configs)
    return {name: TopicSpec(name, len(present[name]), replicas[name], own[name]) for name in present}


async def create_topics(target: RawCluster, topics: Iterable[TopicSpec]) -> None:
    """Creates topics and waits until every partition has a leader; existing ones are left alone."""
    missing = {topic.name: topic for topic in topics}
    if not missing:
        return

    async def create() -> None:
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
                for t in missing.values()
            ],
            timeout_ms=_CREATE_TIMEOUT_MS,
            validate_only=False,
        )
        for result in (await target.send(request, _controller(target))).topics:
            if result.error_code == Errors.NotControllerError.errno:
                await target.refresh()
            if result.error_code != Errors.TopicAlreadyExistsError.errno:
                raise_for(result.error_code, f"creating topic {result.name}: {getattr(result, 'error_message', '')}")

    async def ready() -> None:
        await target.refresh()
        for name, topic in missing.items():
            leading = target.manager.cluster.available_partitions_for_topic(name) or ()
            if len(leading) < topic.partitions:
                raise Errors.LeaderNotAvailableError(f"topic {name}")

    await target.insist("creating topics", create)
    target.manager.cluster._topics |= missing.keys()
    await target.insist("waiting for the new topics' leaders", ready)


def _rewrites_timestamps(config: Any) -> bool:
    """True for LogAppendTime, which matters even where it is only the brokers' default."""
    return bool(config.name == TIMESTAMP_TYPE and config.value == LOG_APPEND_TIME)


def _controller(cluster: RawCluster) -> Any:
    controller = cluster.manager.cluster.controller
    return None if controller is None else controller.node_id


async def _refuse_unsupported_logs(
    source: RawCluster, topics: Iterable[TopicSpec], ends: Mapping[TopicPartition, int]
) -> None:
    """Looks at the first batch of each log; what comes later is refused when it is met."""
    starts = await source.list_offsets(dict.fromkeys(_partitions(topics), EARLIEST))
    for partition, start in starts.items():
        if start > 0:
            raise UnsupportedSourceError(
                f"The source log of {partition.topic}-{partition.partition} starts at offset {start}; logs that do not"
                " start at 0 are not mirrored yet, exclude the topic"
            )

    async def check() -> None:
        for partition, header in (await read_headers(source, {p: s for p, s in starts.items() if s < ends[p]})).items():
            if header.is_transactional:
                raise UnsupportedSourceError(
                    f"{partition.topic}-{partition.partition} at offset {header.base_offset} is transactional;"
                    " transactions are not mirrored yet, exclude the topic"
                )

    await source.insist("looking at the first batches", check)


async def _refuse_foreign_records(
    source: RawCluster, target: RawCluster, topics: Iterable[TopicSpec], producer_id: int
) -> None:
    partitions = list(_partitions(topics))
    if not partitions:
        return

    async def check() -> None:
        states = await read_append_states(source, target, partitions, producer_id)
        for partition in partitions:
            state = states.get(partition)
            if isinstance(state, TolerantClientError):
                raise state

    await target.insist("comparing the ends of both logs", check)


def _partitions(topics: Iterable[TopicSpec]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in topics for index in range(topic.partitions))
