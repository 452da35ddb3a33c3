"""Topics of a cluster: what they are like, and making them so.

Brokers before 0.11 tell no configuration, before 2.8 no topic id; what they
cannot tell is left out here, never guessed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.mirror.state.plan import (
    CLEANUP_POLICY,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES,
    TIMESTAMP_TYPE,
    TopicSpec,
    fit_config,
    in_operations,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_EXPIRATIONS = ("producer.id.expiration.ms", "transactional.id.expiration.ms")
_METADATA_WITH_IDS = 10
_SET_FOR_THIS_TOPIC = 1  # DescribeConfigsResponse config_source DYNAMIC_TOPIC_CONFIG
_SOURCE_UNKNOWN = -1  # in version 0 (Kafka 0.11), which has is_default instead
_CREATE_TIMEOUT_MS = 30_000
_ELECTION_MS = 10_000
_NO_TOPIC_ID = uuid.UUID(int=0)
_BELIEVED_AFTER = 3  # answers
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
    rewrites_times: bool = False  # LogAppendTime: the brokers would give every record a time of their own


def require_names(source: Cluster, topics: LinkTopics) -> None:
    """Raises IllegalStateError where the source would call the link's topics otherwise than the link does."""
    if source.names != topics.names:
        raise Errors.IllegalStateError(
            f"The source cluster has the names {source.names}, the link {topics.names}; give it the link's"
        )


class DescribedTopics(NamedTuple):
    """Topics that exist, by name, and why the brokers do not tell us of others."""

    topics: dict[str, TopicSpec]
    refused: dict[str, Exception]


class FittedTopics(NamedTuple):
    """Topics as the brokers would create them, warnings about what had to go, and why they refuse others."""

    topics: tuple[TopicSpec, ...]
    warnings: tuple[str, ...]
    refused: dict[str, Exception]


async def describe_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, TopicSpec]:
    """Partition count, replication factor and configuration of the topics that exist.

    Raises TopicAuthorizationFailedError for one that may not be described.
    """
    found = await describe_each_topic(cluster, topics)
    _raise_first(found.refused)
    return found.topics


async def describe_each_topic(cluster: Cluster, topics: Iterable[str]) -> DescribedTopics:
    """As describe_topics, but a topic that may not be described hides no other."""
    present, refused = await visible_topics(cluster, list(topics))
    replicas: dict[str, int] = {}
    own: dict[str, dict[str, str]] = {}
    effective: dict[str, dict[str, str]] = {}
    doubts = _Doubts(refused)

    async def metadata() -> None:
        for name, topic in (await _metadata(cluster, present)).items():
            replicas[name] = max((len(p.replica_nodes) for p in topic.partitions), default=1)

    async def configs() -> None:
        for result in await _configs(cluster, present.keys() - refused.keys(), None):
            name = cluster.topic_of(result.resource_name)
            if result.error_code == Errors.TopicAuthorizationFailedError.errno:
                what = f"topic {name} of the {cluster.name} may not be described; grant DescribeConfigs on it"
                doubts.refuse(name, Errors.TopicAuthorizationFailedError(what))
                continue
            _raise(result.error_code, f"DescribeConfigs of {result.resource_name}")
            values = [c for c in result.configs if c.value is not None]
            own[name] = {c.name: c.value for c in values if _is_own(c)}
            effective[name] = {c.name: c.value for c in values}
        doubts.settle()

    await _ask_of(cluster, present, "describing topics", metadata)
    if present and _speaks(cluster, DescribeConfigsRequest):
        await _ask_of(cluster, present, "describing topic configurations", configs)
    told = {name: indexes for name, indexes in present.items() if name not in refused}
    return DescribedTopics(
        {
            name: TopicSpec(name, len(indexes), replicas[name], own.get(name, {}), effective.get(name, {}))
            for name, indexes in told.items()
        },
        refused,
    )


async def topic_facts(target: Cluster, topics: Iterable[str]) -> dict[str, TopicFacts]:
    """What copying into these topics depends on; topics that are not there are absent."""
    present = await target.partitions(list(topics))
    if not present:
        return {}
    ids = await present_ids(target, present)
    present = {name: indexes for name, indexes in present.items() if name in ids}
    found: dict[str, TopicFacts] = {}

    async def ask() -> None:
        for result in await _configs(target, present, [CLEANUP_POLICY, MAX_MESSAGE_BYTES, TIMESTAMP_TYPE]):
            _raise(result.error_code, f"DescribeConfigs of {result.resource_name}")
            name = target.topic_of(result.resource_name)
            config = {c.name: c.value for c in result.configs if c.value is not None}
            spec = TopicSpec(name, 0, 0, config)
            found[name] = TopicFacts(
                spec.is_compacted,
                spec.max_message_bytes,
                ids.get(name),
                "delete" in config.get(CLEANUP_POLICY, "delete"),
                config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME,
            )

    await _ask_of(target, present, "describing topic configurations", ask)
    return {name: facts for name, facts in found.items() if name in present}


async def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, uuid.UUID]:
    """The ids of the topics that exist (KIP-516): another id is another topic of the same name.

    Empty from brokers before 2.8.
    """
    return {name: topic_id for name, topic_id in (await present_ids(cluster, topics)).items() if topic_id is not None}


async def present_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, uuid.UUID | None]:
    """The topics that exist, with their ids; None of all of them, there or not, from brokers before 2.8, which tell none.

    A topic that is left out is said to be unknown, once: that says nothing of its id.
    """
    await cluster.connect()
    wanted = list(topics)
    if not wanted or cluster.manager.broker_version_data.api_versions[MetadataRequest.API_KEY][1] < _METADATA_WITH_IDS:
        return dict.fromkeys(wanted)

    async def ask() -> dict[str, uuid.UUID | None]:
        told = await _answers(cluster, wanted)
        unknown = {
            name for name, topic in told.items() if topic.error_code == Errors.UnknownTopicOrPartitionError.errno
        }
        for name in told.keys() - unknown:
            _raise(told[name].error_code, f"Metadata of {name}")
        return {
            name: told[name].topic_id if told[name].topic_id != _NO_TOPIC_ID else None for name in told.keys() - unknown
        }

    return await cluster.insist("reading the topics' ids", ask)


async def producer_expiration_ms(target: Cluster, node_id: int) -> int | None:
    """How long after its last record's timestamp a broker may forget a producer; None where it does not tell us.

    Telling it takes DescribeConfigs on the cluster.  Before Kafka 3.4 it is as long as transactional ids are kept (KIP-854).
    """
    await target.connect()
    if not _speaks(target, DescribeConfigsRequest):
        return None
    resource = DescribeConfigsRequest.DescribeConfigsResource
    asked = resource(resource_type=_BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=list(_EXPIRATIONS))
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=False)
    (result,) = (await target.send(request, node_id)).results
    told = {config.name: int(config.value) for config in result.configs if config.value is not None}
    return next((told[name] for name in _EXPIRATIONS if name in told), None) if not result.error_code else None


async def fit_topics(target: Cluster, topics: Iterable[TopicSpec]) -> tuple[tuple[TopicSpec, ...], tuple[str, ...]]:
    """The topics as the target's brokers would create them, and warnings about what had to go; creates nothing.

    Raises OptionError with the brokers' words for what they refuse altogether, TopicAuthorizationFailedError.
    """
    fitted = await fit_each_topic(target, topics)
    _raise_first(fitted.refused)
    return fitted.topics, fitted.warnings


async def fit_each_topic(target: Cluster, topics: Iterable[TopicSpec]) -> FittedTopics:
    """As fit_topics, but a topic that is refused is in the way of no other."""
    wanted = {topic.name: topic for topic in topics}
    warnings: list[str] = []
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)

    async def ask() -> None:
        unsettled = {name: topic for name, topic in wanted.items() if name not in refused}
        while unsettled:
            changed = {}
            answers = [await _create(target, some, validate_only=True) for some in in_operations(unsettled.values())]
            for name, code, words in chain.from_iterable(answers):
                if code in _REFUSALS:
                    try:
                        wanted[name], warning = fit_config(wanted[name], words)
                    except OptionError as error:
                        refused[name] = error
                        continue
                    warnings.append(warning)
                    changed[name] = wanted[name]
                else:
                    doubts.take(name, code, f"creating topic {name}: {words}")
            unsettled = changed  # the brokers name one fault at a time
        doubts.settle()

    if wanted:
        await target.insist("asking whether topics can be created", ask)
    return FittedTopics(tuple(t for t in wanted.values() if t.name not in refused), tuple(warnings), refused)


async def create_topics(target: Cluster, topics: Iterable[TopicSpec]) -> None:
    """Creates topics and waits until every partition has a leader; existing ones are left alone.

    Raises OptionError with the brokers' words for what they refuse, TopicAuthorizationFailedError.
    """
    _raise_first(await create_each_topic(target, topics))


async def create_each_topic(target: Cluster, topics: Iterable[TopicSpec]) -> dict[str, Exception]:
    """As create_topics, but a topic that is refused is in the way of no other: why, by topic."""
    refused: dict[str, Exception] = {}
    for some in in_operations(topics):
        refused |= await _create_some(target, {topic.name: topic for topic in some})
    return refused


async def _create_some(target: Cluster, missing: dict[str, TopicSpec]) -> dict[str, Exception]:
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)

    async def create() -> None:
        left = [topic for name, topic in missing.items() if name not in refused]
        for name, code, words in await _create(target, left, validate_only=False):
            if code in _REFUSALS:
                refused[name] = OptionError(
                    f"The target refuses to create topic {name}: {words}; create it yourself, or exclude it"
                )
            else:
                doubts.take(name, code, f"creating topic {name}: {words}")
        doubts.settle()

    await target.insist("creating topics", create)
    await _wait_for_leaders(target, {name: topic for name, topic in missing.items() if name not in refused})
    return refused


async def add_partitions(target: Cluster, topics: Iterable[TopicSpec]) -> dict[str, Exception]:
    """Gives topics as many partitions as they have here, and waits for their leaders; why others are refused, by topic."""
    refused: dict[str, Exception] = {}
    for some in in_operations(topics):
        refused |= await _add_some(target, {topic.name: topic for topic in some})
    return refused


async def _add_some(target: Cluster, narrow: dict[str, TopicSpec]) -> dict[str, Exception]:
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)
    wanted = CreatePartitionsRequest.CreatePartitionsTopic

    async def add() -> None:
        left = [topic for name, topic in narrow.items() if name not in refused]
        request = CreatePartitionsRequest(
            topics=[wanted(name=t.name, count=t.partitions, assignments=None) for t in left],
            timeout_ms=_CREATE_TIMEOUT_MS,
            validate_only=False,
        )
        contested = {}
        for result in (await target.send(request, await _controller(target))).results:
            if result.error_code in _REFUSALS:
                contested[result.name] = result.error_message  # another driver of the link may have added them
            else:
                what = f"adding partitions to topic {result.name}: {result.error_message}"
                doubts.take(result.name, result.error_code, what)
        there = await target.partitions(contested)
        for name, words in contested.items():
            if len(there.get(name, ())) < narrow[name].partitions:
                refused[name] = OptionError(
                    f"The target refuses to add partitions to topic {name}: {words}; add them yourself, or exclude the topic"
                )
        doubts.settle()

    await target.insist("adding partitions", add)
    await _wait_for_leaders(target, {name: topic for name, topic in narrow.items() if name not in refused})
    return refused


class _Doubts:
    """Errors of single topics: what no repeat cures is believed when it was answered often enough, and `refused` then."""

    def __init__(self, refused: dict[str, Exception]) -> None:
        self._refused = refused
        self._answers: Counter[str] = Counter()
        self._unsure: Exception | None = None

    def take(self, name: str, error_code: int, what: str) -> None:
        """Raises what may heal."""
        if error_code in (0, Errors.TopicAlreadyExistsError.errno):
            return
        error = Errors.for_code(error_code)(what)
        if getattr(error, "retriable", False):
            raise error
        self.refuse(name, error)

    def refuse(self, name: str, error: Exception) -> None:
        self._answers[name] += 1
        if self._answers[name] < _BELIEVED_AFTER:
            self._unsure = error
        else:
            self._refused[name] = error

    def settle(self) -> None:
        """Raises, at the end of an attempt, what has to be asked again."""
        error, self._unsure = self._unsure, None
        if error is not None:
            raise error


def _raise_first(refused: dict[str, Exception]) -> None:
    for error in refused.values():
        raise error


async def visible_topics(
    cluster: Cluster, topics: Collection[str]
) -> tuple[dict[str, list[int]], dict[str, Exception]]:
    """Partition numbers of the topics that exist, and those that may not be described, whether they exist or not.

    They are asked for by name: a Metadata of all topics leaves the latter out.  Brokers before 0.11 list all topics instead
    (naming one could create it), so what they hide does not exist here.
    """
    try:
        return await cluster.partitions(topics), {}
    except Errors.TopicAuthorizationFailedError:
        refusal = Errors.TopicAuthorizationFailedError
        hidden = {
            name for name, topic in (await _answers(cluster, topics)).items() if topic.error_code == refusal.errno
        }
        if not hidden:
            raise
        why = f"of the {cluster.name} may not be described; grant Describe on it"
        there = await cluster.partitions([name for name in topics if name not in hidden])
        return there, {name: refusal(f"topic {name} {why}") for name in hidden}


async def _ask_of(cluster: Cluster, present: dict[str, Any], what: str, ask: Callable[[], Awaitable[None]]) -> None:
    """Has `ask` look at the topics of `present` until it succeeds; what is deleted meanwhile is taken out of them."""

    async def attempt() -> None:
        try:
            await ask()
        except Errors.UnknownTopicOrPartitionError:
            there = await cluster.partitions(list(present))
            for name in present.keys() - there.keys():
                del present[name]
            raise

    if present:
        await cluster.insist(what, attempt)


async def _wait_for_leaders(target: Cluster, topics: dict[str, TopicSpec]) -> None:
    async def ready() -> None:
        await target.refresh()
        for name, topic in topics.items():
            leading = target.manager.cluster.available_partitions_for_topic(name) or ()
            if len(leading) < topic.partitions:
                raise Errors.LeaderNotAvailableError(f"topic {name}")

    if topics:
        target.manager.cluster._topics |= topics.keys()
        try:
            await target.insist("waiting for the new partitions' leaders", ready, _ELECTION_MS)
        except ClusterUnreachableError:
            pass  # the engine waits for those that have none, and for them alone


async def _create(target: Cluster, topics: Iterable[TopicSpec], *, validate_only: bool) -> list[tuple[str, int, str]]:
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


async def _controller(cluster: Cluster) -> Any:
    await cluster.connect()
    controller = cluster.manager.cluster.controller
    return None if controller is None else controller.node_id


async def _metadata(cluster: Cluster, topics: Iterable[str]) -> dict[str, Any]:
    told = await _answers(cluster, topics)
    for name, topic in told.items():
        _raise(topic.error_code, f"Metadata of {name}")
    return told


async def _answers(cluster: Cluster, topics: Iterable[str]) -> dict[str, Any]:
    wanted = [MetadataRequest.MetadataRequestTopic(name=cluster.wire_topic(name)) for name in topics]
    answer = await cluster.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False)) if wanted else None
    return {} if answer is None else {cluster.topic_of(topic.name): topic for topic in answer.topics}


async def _configs(cluster: Cluster, topics: Iterable[str], names: list[str] | None) -> list[Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=_TOPIC_RESOURCE, resource_name=cluster.wire_topic(name), configuration_keys=names)
        for name in topics
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    return list((await cluster.send(request)).results) if resources else []


def _is_own(config: Any) -> bool:
    """True for what was set for this topic, and for LogAppendTime, which matters even as a default."""
    if config.config_source == _SOURCE_UNKNOWN:
        return not config.is_default
    is_rewriting = config.name == TIMESTAMP_TYPE and config.value == LOG_APPEND_TIME
    return bool(config.config_source == _SET_FOR_THIS_TOPIC or is_rewriting)


def _speaks(cluster: Cluster, request: Any) -> bool:
    return request.API_KEY in cluster.manager.broker_version_data.api_versions


def _raise(error_code: int, what: str) -> None:
    if error_code:
        raise Errors.for_code(error_code)(what)
