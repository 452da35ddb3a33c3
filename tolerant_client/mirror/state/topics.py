"""Describes the topics of a cluster, and creates them.

Brokers before 0.11 return no configuration, before 2.8 no topic ids; what they
cannot tell is absent here, never guessed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

import kafka.errors as Errors

from tolerant_client.cluster.admin import topics as admin
from tolerant_client.cluster.admin.asking import is_retriable
from tolerant_client.cluster.admin.configs import OF_TOPIC, describe_configs, tells_configs
from tolerant_client.cluster.admin.topics import (
    Outcome,
    present_ids,
    replication_factors,
    visible_topics,
    wait_for_leaders,
)
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.link_control import TopicIds
from tolerant_client.mirror.state.plan import (
    CLEANUP_POLICY,
    COMPRESSION_TYPE,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES,
    TIMESTAMP_TYPE,
    TopicSpec,
    fit_config,
    in_operations,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records.codecs import CODEC_NAMES

_CODECS = {name: codec for codec, name in enumerate(("uncompressed", *CODEC_NAMES[1:]))}
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
    """The facts that a copier needs of a target topic; the values in force, wherever they come from."""

    is_compacted: bool
    max_message_bytes: int
    topic_id: uuid.UUID | None  # None from brokers before 2.8 (KIP-516)
    can_delete_records: bool = True  # a broker refuses DeleteRecords if cleanup.policy is only compact
    rewrites_times: bool = False  # LogAppendTime: the brokers would replace every record's timestamp
    codec: int | None = None  # in which the brokers store batches; None if they keep the producer's


def require_names(source: Cluster, topics: LinkTopics) -> None:
    """Raises IllegalStateError if the source would name the link's topics differently from the link."""
    if source.names != topics.names:
        raise Errors.IllegalStateError(
            f"The source cluster has the names {source.names}, the link {topics.names}; give it the link's"
        )


class DescribedTopics(NamedTuple):
    """Topics that exist, by name, and why the brokers do not describe others."""

    topics: dict[str, TopicSpec]
    refused: dict[str, Exception]


class FittedTopics(NamedTuple):
    """Topics as the brokers would create them, warnings about removed settings, and why they refuse other topics."""

    topics: tuple[TopicSpec, ...]
    warnings: tuple[str, ...]
    refused: dict[str, Exception]


async def read_ids(source: Cluster | None, target: Cluster, topics: Collection[str]) -> dict[str, TopicIds]:
    """The ids that topics have on both clusters now; "" for a cluster that has none, or is not asked.

    Without topics that one of them does not know: whether those are the same is unknown.
    """
    there = dict.fromkeys(topics) if source is None else await present_ids(source, topics)
    here = await present_ids(target, topics)
    both = [name for name in topics if name in there and name in here]
    return {name: TopicIds(*(str(of[name] or "") for of in (there, here))) for name in both}


async def describe_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, TopicSpec]:
    """Partition count, replication factor and configuration of the topics that exist.

    Raises TopicAuthorizationFailedError for a topic that we may not describe.
    """
    found = await describe_each_topic(cluster, topics)
    _raise_first(found.refused)
    return found.topics


async def describe_each_topic(cluster: Cluster, topics: Iterable[str]) -> DescribedTopics:
    """As describe_topics, but a topic that we may not describe does not hide the others."""
    present, refused = await visible_topics(cluster, list(topics))
    replicas: dict[str, int] = {}
    own: dict[str, dict[str, str]] = {}
    effective: dict[str, dict[str, str]] = {}
    doubts = _Doubts(refused)

    async def metadata() -> None:
        replicas.update(await replication_factors(cluster, present))

    async def configs() -> None:
        for name, told in (await describe_configs(cluster, present.keys() - refused.keys())).items():
            if isinstance(told, Errors.TopicAuthorizationFailedError):
                what = f"topic {name} of the {cluster.name} may not be described; grant DescribeConfigs on it"
                doubts.refuse(name, Errors.TopicAuthorizationFailedError(what))
                continue
            if isinstance(told, Exception):
                raise told
            effective[name] = {key: setting.value for key, setting in told.items()}
            # LogAppendTime counts even as a default.
            own[name] = {
                key: setting.value
                for key, setting in told.items()
                if setting.origin == OF_TOPIC or (key, setting.value) == (TIMESTAMP_TYPE, LOG_APPEND_TIME)
            }
        doubts.settle()

    await _ask_of(cluster, present, "describing topics", metadata)
    if present and tells_configs(cluster):
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
    """The facts of these topics that a copier needs; topics that do not exist are absent."""
    present = await target.partitions(list(topics))
    if not present:
        return {}
    ids = await present_ids(target, present)
    present = {name: indexes for name, indexes in present.items() if name in ids}
    found: dict[str, TopicFacts] = {}

    async def ask() -> None:
        told = await describe_configs(
            target, present, [CLEANUP_POLICY, COMPRESSION_TYPE, MAX_MESSAGE_BYTES, TIMESTAMP_TYPE]
        )
        for name, settings in told.items():
            if isinstance(settings, Exception):
                raise settings
            config = {key: setting.value for key, setting in settings.items()}
            spec = TopicSpec(name, 0, 0, config)
            found[name] = TopicFacts(
                spec.is_compacted,
                spec.max_message_bytes,
                ids.get(name),
                "delete" in config.get(CLEANUP_POLICY, "delete"),
                config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME,
                _CODECS.get(config.get(COMPRESSION_TYPE, "")),
            )

    await _ask_of(target, present, "describing topic configurations", ask)
    return {name: facts for name, facts in found.items() if name in present}


async def fit_topics(target: Cluster, topics: Iterable[TopicSpec]) -> tuple[tuple[TopicSpec, ...], tuple[str, ...]]:
    """The topics as the target's brokers would create them, and warnings about removed settings; creates nothing.

    Raises OptionError with the brokers' message for a topic that they refuse altogether, TopicAuthorizationFailedError.
    """
    fitted = await fit_each_topic(target, topics)
    _raise_first(fitted.refused)
    return fitted.topics, fitted.warnings


async def fit_each_topic(target: Cluster, topics: Iterable[TopicSpec]) -> FittedTopics:
    """As fit_topics, but a topic that is refused does not stop the others."""
    wanted = {topic.name: topic for topic in topics}
    warnings: list[str] = []
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)

    async def ask() -> None:
        unsettled = {name: topic for name, topic in wanted.items() if name not in refused}
        while unsettled:
            changed = {}
            operations = in_operations(unsettled.values())
            outcomes = [await admin.create_topics(target, some, validate_only=True) for some in operations]
            for outcome in chain.from_iterable(outcomes):
                name = outcome.name
                if outcome.error_code in _REFUSALS:
                    try:
                        wanted[name], warning = fit_config(wanted[name], outcome.words)
                    except OptionError as error:
                        refused[name] = error
                        continue
                    warnings.append(warning)
                    changed[name] = wanted[name]
                else:
                    doubts.take(outcome, "creating")
            unsettled = changed  # the brokers name one error at a time
        doubts.settle()

    if wanted:
        await target.insist("asking whether topics can be created", ask)
    return FittedTopics(tuple(t for t in wanted.values() if t.name not in refused), tuple(warnings), refused)


async def create_topics(target: Cluster, topics: Iterable[TopicSpec]) -> None:
    """Creates topics and waits until every partition has a leader; does not change existing ones.

    Raises OptionError with the brokers' message for a topic that they refuse, TopicAuthorizationFailedError.
    """
    _raise_first(await create_each_topic(target, topics))


async def create_each_topic(target: Cluster, topics: Iterable[TopicSpec]) -> dict[str, Exception]:
    """As create_topics, but a topic that is refused does not stop the others; returns why, by topic."""
    refused: dict[str, Exception] = {}
    for some in in_operations(topics):
        refused |= await _create_some(target, {topic.name: topic for topic in some})
    return refused


async def _create_some(target: Cluster, missing: dict[str, TopicSpec]) -> dict[str, Exception]:
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)

    async def create() -> None:
        left = [topic for name, topic in missing.items() if name not in refused]
        for outcome in await admin.create_topics(target, left, validate_only=False):
            if outcome.error_code in _REFUSALS:
                refused[outcome.name] = OptionError(
                    f"The target refuses to create topic {outcome.name}: {outcome.words}; create it yourself, or exclude it"
                )
            else:
                doubts.take(outcome, "creating")
        doubts.settle()

    await target.insist("creating topics", create)
    await wait_for_leaders(target, [topic for name, topic in missing.items() if name not in refused])
    return refused


async def add_partitions(target: Cluster, topics: Iterable[TopicSpec]) -> dict[str, Exception]:
    """Gives each topic as many partitions as its spec has, and waits for their leaders; returns why others are refused."""
    refused: dict[str, Exception] = {}
    for some in in_operations(topics):
        refused |= await _add_some(target, {topic.name: topic for topic in some})
    return refused


async def _add_some(target: Cluster, narrow: dict[str, TopicSpec]) -> dict[str, Exception]:
    refused: dict[str, Exception] = {}
    doubts = _Doubts(refused)

    async def add() -> None:
        left = [topic for name, topic in narrow.items() if name not in refused]
        contested = {}
        for outcome in await admin.create_partitions(target, left):
            if outcome.error_code in _REFUSALS:
                contested[outcome.name] = outcome.words  # another driver of the link may have added them
            else:
                doubts.take(outcome, "adding partitions to")
        there = await target.partitions(contested)
        for name, words in contested.items():
            if len(there.get(name, ())) < narrow[name].partitions:
                refused[name] = OptionError(
                    f"The target refuses to add partitions to topic {name}: {words}; add them yourself, or exclude the topic"
                )
        doubts.settle()

    await target.insist("adding partitions", add)
    await wait_for_leaders(target, [topic for name, topic in narrow.items() if name not in refused])
    return refused


class _Doubts:
    """Errors of single topics: one that is not retriable counts as `refused` after BELIEVED_AFTER responses."""

    def __init__(self, refused: dict[str, Exception]) -> None:
        self._refused = refused
        self._responses: Counter[str] = Counter()
        self._unsure: Exception | None = None

    def take(self, outcome: Outcome, doing: str) -> None:
        """Raises the error if it is retriable."""
        name, code, words = outcome
        if code in (0, Errors.TopicAlreadyExistsError.errno):
            return
        error = Errors.for_code(code)(f"{doing} topic {name}: {words}")
        if is_retriable(error):
            raise error
        self.refuse(name, error)

    def refuse(self, name: str, error: Exception) -> None:
        self._responses[name] += 1
        if self._responses[name] < BELIEVED_AFTER:
            self._unsure = error
        else:
            self._refused[name] = error

    def settle(self) -> None:
        """Raises, at the end of an attempt, an error that is not believed yet, so that the request is repeated."""
        error, self._unsure = self._unsure, None
        if error is not None:
            raise error


def _raise_first(refused: dict[str, Exception]) -> None:
    for error in refused.values():
        raise error


async def _ask_of(cluster: Cluster, present: dict[str, Any], what: str, ask: Callable[[], Awaitable[None]]) -> None:
    """Repeats `ask` about the topics of `present` until it succeeds; removes topics that are deleted meanwhile."""

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
