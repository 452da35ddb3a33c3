"""Topics of a cluster: what they are like, and making them so.

Brokers before 0.11 tell no configuration, before 2.8 no topic id; what they
cannot tell is left out here, never guessed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.plan import (
    CLEANUP_POLICY,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES,
    TIMESTAMP_TYPE,
    TopicSpec,
    fit_config,
    in_operations,
)
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.raw import RawCluster

_TOPIC_RESOURCE = 2
_SET_FOR_THIS_TOPIC = 1  # DescribeConfigsResponse config_source DYNAMIC_TOPIC_CONFIG
_SOURCE_UNKNOWN = -1  # in version 0 (Kafka 0.11), which has is_default instead
_CREATE_TIMEOUT_MS = 30_000
_NO_TOPIC_ID = uuid.UUID(int=0)
_REFUSALS = frozenset(
    {
        Errors.InvalidTopicError.errno,
        Errors.InvalidPartitionsError.errno,
        Errors.InvalidReplicationFactorError.errno,
        Errors.InvalidConfigurationError.errno,
        Errors.PolicyViolationError.errno,
    }
)


class TopicFacts(NamedTuple):
    """What a copier must know of a target topic; the values in force, wherever they come from."""

    is_compacted: bool
    max_message_bytes: int
    topic_id: uuid.UUID | None  # None from brokers before 2.8 (KIP-516)
    can_delete_records: bool = True  # a broker refuses DeleteRecords where cleanup.policy is compact alone


def require_names(source: RawCluster, topics: LinkTopics) -> None:
    """Raises IllegalStateError where the source would call the link's topics otherwise than the link does."""
    if source.names != topics.names:
        raise Errors.IllegalStateError(f"The source cluster has the names {source.names}, the link {topics.names}; give it the link's")


async def describe_topics(cluster: RawCluster, topics: Iterable[str]) -> dict[str, TopicSpec]:
    """Partition count, replication factor and configuration of the topics that exist."""
    present = await cluster.partitions(list(topics))
    if not present:
        return {}
    replicas: dict[str, int] = {}
    own: dict[str, dict[str, str]] = {}
    effective: dict[str, dict[str, str]] = {}

    async def metadata() -> None:
        for name, topic in (await _metadata(cluster, present)).items():
            replicas[name] = max((len(p.replica_nodes) for p in topic.partitions), default=1)

    async def configs() -> None:
        for name, told in (await _configs(cluster, present, None)).items():
            values = [c for c in told if c.value is not None]
            own[name] = {c.name: c.value for c in values if _is_own(c)}
            effective[name] = {c.name: c.value for c in values}

    await cluster.insist("describing topics", metadata)
    if _speaks(cluster, DescribeConfigsRequest):
        await cluster.insist("describing topic configurations", configs)
    return {
        name: TopicSpec(name, len(indexes), replicas[name], own.get(name, {}), effective.get(name, {}))
        for name, indexes in present.items()
    }


async def topic_facts(target: RawCluster, topics: Iterable[str]) -> dict[str, TopicFacts]:
    """What copying into these topics depends on; topics that are not there are absent."""
    present = await target.partitions(list(topics))
    if not present:
        return {}
    ids = await topic_ids(target, present)
    found: dict[str, TopicFacts] = {}

    async def ask() -> None:
        for name, told in (await _configs(target, present, [CLEANUP_POLICY, MAX_MESSAGE_BYTES])).items():
            config = {c.name: c.value for c in told if c.value is not None}
            spec = TopicSpec(name, 0, 0, config)
            found[name] = TopicFacts(
                spec.is_compacted, spec.max_message_bytes, ids.get(name), "delete" in config.get(CLEANUP_POLICY, "delete")
            )

    await target.insist("describing topic configurations", ask)
    return found


async def topic_ids(cluster: RawCluster, topics: Iterable[str]) -> dict[str, uuid.UUID]:
    """The ids of the topics that exist (KIP-516): another id is another topic of the same name.

    Empty from brokers before 2.8.
    """
    present = await cluster.partitions(list(topics))
    found: dict[str, uuid.UUID] = {}

    async def ask() -> None:
        for name, topic in (await _metadata(cluster, present)).items():
            if topic.topic_id not in (None, _NO_TOPIC_ID):
                found[name] = topic.topic_id

    if present:
        await cluster.insist("reading the topics' ids", ask)
    return found


async def fit_topics(target: RawCluster, topics: Iterable[TopicSpec]) -> tuple[tuple[TopicSpec, ...], tuple[str, ...]]:
    """The topics as the target's brokers would create them, and warnings about what had to go; creates nothing.

    Raises OptionError with the brokers' words for what they refuse altogether.
    """
    wanted = {topic.name: topic for topic in topics}
    warnings: list[str] = []

    async def ask() -> None:
        unsettled = dict(wanted)
        while unsettled:
            refused = {}
            answers = [await _create(target, some, validate_only=True) for some in in_operations(unsettled.values())]
            for name, code, words in chain.from_iterable(answers):
                if code in _REFUSALS:
                    wanted[name], warning = fit_config(wanted[name], words)
                    warnings.append(warning)
                    refused[name] = wanted[name]
                elif code not in (0, Errors.TopicAlreadyExistsError.errno):
                    _raise(code, f"creating topic {name}: {words}")
            unsettled = refused  # the brokers name one fault at a time

    if wanted:
        await target.insist("asking whether topics can be created", ask)
    return tuple(wanted.values()), tuple(warnings)


async def create_topics(target: RawCluster, topics: Iterable[TopicSpec]) -> None:
    """Creates topics and waits until every partition has a leader; existing ones are left alone.

    Raises OptionError with the brokers' words for what they refuse.
    """
    for some in in_operations(topics):
        await _create_some(target, {topic.name: topic for topic in some})


async def _create_some(target: RawCluster, missing: dict[str, TopicSpec]) -> None:
    async def create() -> None:
        for name, code, words in await _create(target, missing.values(), validate_only=False):
            if code in _REFUSALS:
                raise OptionError(f"The target refuses to create topic {name}: {words}; create it yourself, or exclude it")
            if code not in (0, Errors.TopicAlreadyExistsError.errno):
                _raise(code, f"creating topic {name}: {words}")

    await target.insist("creating topics", create)
    await _wait_for_leaders(target, missing)


async def add_partitions(target: RawCluster, topics: Iterable[TopicSpec]) -> None:
    """Gives topics as many partitions as they have here, and waits for their leaders."""
    for some in in_operations(topics):
        await _add_some(target, {topic.name: topic for topic in some})


async def _add_some(target: RawCluster, narrow: dict[str, TopicSpec]) -> None:
    wanted = CreatePartitionsRequest.CreatePartitionsTopic

    async def add() -> None:
        request = CreatePartitionsRequest(
            topics=[wanted(name=t.name, count=t.partitions, assignments=None) for t in narrow.values()],
            timeout_ms=_CREATE_TIMEOUT_MS,
            validate_only=False,
        )
        refusals = []
        for result in (await target.send(request, await _controller(target))).results:
            if result.error_code == Errors.InvalidPartitionsError.errno:
                refusals.append(result)  # another driver of the link may have added them
            elif result.error_code:
                _raise(result.error_code, f"adding partitions to topic {result.name}: {result.error_message}")
        there = await target.partitions([result.name for result in refusals])
        for result in refusals:
            if len(there.get(result.name, ())) < narrow[result.name].partitions:
                raise OptionError(f"The target refuses to add partitions to topic {result.name}: {result.error_message}")

    await target.insist("adding partitions", add)
    await _wait_for_leaders(target, narrow)


async def _wait_for_leaders(target: RawCluster, topics: dict[str, TopicSpec]) -> None:
    async def ready() -> None:
        await target.refresh()
        for name, topic in topics.items():
            leading = target.manager.cluster.available_partitions_for_topic(name) or ()
            if len(leading) < topic.partitions:
                raise Errors.LeaderNotAvailableError(f"topic {name}")

    target.manager.cluster._topics |= topics.keys()
    await target.insist("waiting for the new partitions' leaders", ready)


async def _create(target: RawCluster, topics: Iterable[TopicSpec], *, validate_only: bool) -> list[tuple[str, int, str]]:
    """(name, error code, the broker's words) of each topic."""
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
        timeout_ms=_CREATE_TIMEOUT_MS,
        validate_only=validate_only,
    )
    answer = await target.send(request, await _controller(target))
    results = [(r.name, r.error_code, getattr(r, "error_message", None) or "") for r in answer.topics]
    if any(code == Errors.NotControllerError.errno for _, code, _ in results):
        await target.refresh()
    return results


async def _controller(cluster: RawCluster) -> Any:
    await cluster.connect()
    controller = cluster.manager.cluster.controller
    return None if controller is None else controller.node_id


async def _metadata(cluster: RawCluster, topics: Iterable[str]) -> dict[str, Any]:
    wanted = [MetadataRequest.MetadataRequestTopic(name=cluster.wire_topic(name)) for name in topics]
    answer = await cluster.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
    for topic in answer.topics:
        _raise(topic.error_code, f"Metadata of {topic.name}")
    return {cluster.topic_of(topic.name): topic for topic in answer.topics}


async def _configs(cluster: RawCluster, topics: Iterable[str], names: list[str] | None) -> dict[str, Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    answer = await cluster.send(
        DescribeConfigsRequest(
            resources=[
                resource(resource_type=_TOPIC_RESOURCE, resource_name=cluster.wire_topic(name), configuration_keys=names)
                for name in topics
            ],
            include_synonyms=False,
            include_documentation=False,
        )
    )
    for result in answer.results:
        _raise(result.error_code, f"DescribeConfigs of {result.resource_name}")
    return {cluster.topic_of(result.resource_name): result.configs for result in answer.results}


def _is_own(config: Any) -> bool:
    """True for what was set for this topic, and for LogAppendTime, which matters even as a default."""
    if config.config_source == _SOURCE_UNKNOWN:
        return not config.is_default
    is_rewriting = config.name == TIMESTAMP_TYPE and config.value == LOG_APPEND_TIME
    return bool(config.config_source == _SET_FOR_THIS_TOPIC or is_rewriting)


def _speaks(cluster: RawCluster, request: Any) -> bool:
    return request.API_KEY in cluster.manager.broker_version_data.api_versions


def _raise(error_code: int, what: str) -> None:
    if error_code:
        raise Errors.for_code(error_code)(what)
