"""Consumer groups of one cluster, many at a time: listing them, reading what they have committed, committing for them.

Laws:
- What fails for a group fails for that group alone (coordinators.py).
- One request covers many groups where the brokers can (OffsetFetch 8: KIP-709).
- A commit is repeated for a few seconds at most: a decision about a group soon gets too old to be written.
- A running mirror checks right before each commit whether its link was promoted: what it decided a moment before
  would set back a group that promotion has moved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import AT_ONCE, raise_for
from tolerant_client.cluster.admin.coordinators import Failures, ManyGroups
from tolerant_client.cluster.admin.topics import READ
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.errors import ClusterUnreachableError, UnsupportedSourceError
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, partition_of

EMPTY_STATES = ("Empty", "Dead")
# Error codes of a commit for a group that has members.
IN_USE = (Errors.UnknownMemberIdError.errno, Errors.IllegalGenerationError.errno, Errors.RebalanceInProgressError.errno)
CONSUMER_TYPES = ("classic", "consumer")  # KIP-848; "share" (KIP-932) and "streams" (KIP-1071) are others

_LIST_STATES = 4  # KIP-518, Kafka 2.6
_LIST_TYPES = 5  # KIP-848
_LAST_DESCRIBE = 5  # version 6 has an error for groups that are not classic
_FETCH_ALL_TOPICS = 2  # KIP-88, Kafka 0.10.2
_FETCH_STABLE = 7  # KIP-447, Kafka 2.5
_FETCH_MANY = 8
_LAST_FETCH = 9  # version 10 names topics by id
_LAST_COMMIT = 9
_READ_PATIENCE_MS = 15_000  # a cluster without groups creates __consumer_offsets first
_COMMIT_PATIENCE_MS = 5_000

# Error codes that a coordinator gives to a whole commit, in each of its partitions.
_OF_THE_COORDINATOR = frozenset(
    {
        Errors.RequestTimedOutError.errno,
        Errors.CoordinatorLoadInProgressError.errno,
        Errors.CoordinatorNotAvailableError.errno,
        Errors.NotCoordinatorError.errno,
    }
)


class CommittedOffset(NamedTuple):
    """An offset and the metadata that was committed with it."""

    offset: int
    metadata: str


class ListedGroup(NamedTuple):
    """A group as brokers list it; `state` is "" where they do not say, `protocol_type` "" if it never had a member."""

    name: str
    protocol_type: str
    state: str
    group_type: str

    @property
    def is_of_consumers(self) -> bool:
        """Whether it is what MirrorMaker 2 calls a consumer group (KafkaAdminClient.listConsumerGroups)."""
        return self.group_type in CONSUMER_TYPES and self.protocol_type in ("", "consumer")


class OffsetsPartition(NamedTuple):
    """A partition of __consumer_offsets; `leader` is -1 where it has none."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def __str__(self) -> str:
        return f"{OFFSETS_TOPIC}-{self.number}"


class GroupsHome(NamedTuple):
    """Where a cluster keeps its groups: the partitions of __consumer_offsets, none where there is no such topic."""

    partitions: tuple[OffsetsPartition, ...]

    @property
    def dead(self) -> tuple[OffsetsPartition, ...]:
        return tuple(p for p in self.partitions if p.leader < 0)

    def dead_home_of(self, group: str) -> OffsetsPartition | None:
        """The partition of a group, if that has no leader."""
        if not self.partitions:
            return None
        number = partition_of(group, len(self.partitions))
        return next((p for p in self.dead if p.number == number), None)


async def groups_home(cluster: Cluster) -> GroupsHome:
    """The partitions of __consumer_offsets in the brokers' current metadata."""

    async def ask() -> GroupsHome:
        (topic,) = (await cluster.send(metadata_request([OFFSETS_TOPIC]))).topics
        if topic.error_code in (Errors.UnknownTopicOrPartitionError.errno, Errors.TopicAuthorizationFailedError.errno):
            return GroupsHome(())
        parts = topic.partitions
        found = [
            OffsetsPartition(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes)) for p in parts
        ]
        return GroupsHome(tuple(sorted(found)))

    return await cluster.insist("reading the partitions of __consumer_offsets", ask)


async def groups_of(cluster: Cluster, node_id: int) -> list[ListedGroup]:
    """The groups that a broker coordinates and that we may describe; asked once."""
    await cluster.connect()
    version = cluster.highest_version(ListGroupsRequest)
    response = await cluster.send(ListGroupsRequest(max_version=_LIST_TYPES), node_id)
    raise_for(response.error_code, f"listing the groups of broker {node_id} of the {cluster.name}")
    return [
        ListedGroup(
            group.group_id,
            group.protocol_type or "",
            group.group_state if version >= _LIST_STATES else "",
            ((group.group_type if version >= _LIST_TYPES else "") or "classic").lower(),
        )
        for group in response.groups
    ]


async def list_groups(cluster: Cluster, patience_ms: int | None = None) -> tuple[dict[str, ListedGroup], Failures]:
    """The groups that this client may see, and what failed for which broker ("broker 3").

    Groups whose partition of __consumer_offsets has no leader are missing: nobody lists them.  A group whose type
    the brokers do not tell is classic.
    """
    found: dict[str, ListedGroup] = {}
    failures: Failures = {}
    await cluster.refresh()

    async def ask(node_id: int) -> None:
        found.update({group.name: group for group in await groups_of(cluster, node_id)})

    for node_id in sorted(broker.node_id for broker in cluster.manager.cluster.brokers()):
        try:
            await cluster.insist("listing groups", partial(ask, node_id), patience_ms or _READ_PATIENCE_MS)
        except (ClusterUnreachableError, Errors.KafkaError) as error:
            failures[f"broker {node_id}"] = error
    return found, failures


async def groups_named(cluster: Cluster, prefix: str) -> list[str]:
    """The groups whose names begin with `prefix`, if this client may see them; each attempt asks the current brokers."""

    async def ask() -> list[str]:
        await cluster.refresh()
        listed = [await groups_of(cluster, broker.node_id) for broker in cluster.manager.cluster.brokers()]
        return [group.name for groups in listed for group in groups if group.name.startswith(prefix)]

    return await cluster.insist("listing groups", ask)


async def group_states(cluster: Cluster, groups: Iterable[str]) -> tuple[dict[str, str], Failures]:
    """The states of groups, "Dead" for those that do not exist or that we may not see, and what failed for which."""
    wanted = list(groups)
    await cluster.connect()
    if cluster.highest_version(ListGroupsRequest) >= _LIST_STATES:
        listed, unlisted = await list_groups(cluster)
        states = {name: listed[name].state if name in listed else "Dead" for name in wanted}
        if not unlisted:
            return states, {}
        error = next(iter(unlisted.values()))  # a group that a broker did not list may be in use there
        return {n: s for n, s in states.items() if n in listed}, {n: error for n in wanted if n not in listed}
    return await described_states(cluster, wanted)


async def described_states(cluster: Cluster, groups: Iterable[str]) -> tuple[dict[str, str], Failures]:
    """Like group_states, from each group's coordinator: a group that we may not describe is a failure, not "Dead"."""

    def read(response: Any) -> Iterator[tuple[str, int, str]]:
        for group in response.groups:
            yield group.group_id, group.error_code, group.group_state or "Dead"

    asked = ManyGroups[str](cluster, _READ_PATIENCE_MS)
    return await asked.ask(list(groups), describe_groups_request, read, AT_ONCE)


def describe_groups_request(names: Iterable[str], *, has_rights: bool = False) -> DescribeGroupsRequest:
    """Asks a coordinator for groups, and with `has_rights` for what we may do with them."""
    return DescribeGroupsRequest(
        groups=list(names), include_authorized_operations=has_rights, max_version=_LAST_DESCRIBE
    )


async def may_not_read(cluster: Cluster, group: str) -> bool:
    """Whether we lack Read on a group, as far as one broker tells (KIP-430, Kafka 2.3).

    Whichever is asked: looking for the coordinator would create __consumer_offsets.  So Describe without Read is seen only by chance.
    """
    (told,) = (await cluster.send(describe_groups_request([group], has_rights=True))).groups
    if told.error_code:
        return bool(told.error_code == Errors.GroupAuthorizationFailedError.errno)
    return told.authorized_operations is not None and READ not in told.authorized_operations


def stable_offsets_request(group: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """Asks for a group's committed offsets, for these partitions or any; waits for pending transactions (KIP-447)."""
    topic_type, topics = OffsetFetchRequest.OffsetFetchRequestTopic, None
    if partitions is not None:
        numbers: dict[str, list[int]] = {}
        for partition in partitions:
            numbers.setdefault(partition.topic, []).append(partition.partition)
        topics = [topic_type(name=name, partition_indexes=indexes) for name, indexes in numbers.items()]
    version = {"min_version": _FETCH_STABLE, "max_version": _FETCH_STABLE}
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=True, **version)


def read_offsets(group: Any) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, int]]:
    """A group's committed offsets, and error codes of partitions, from an OffsetFetch response."""
    offsets: dict[TopicPartition, CommittedOffset] = {}
    codes: dict[TopicPartition, int] = {}
    for topic in group.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                codes[partition] = part.error_code
            elif part.committed_offset >= 0:
                offsets[partition] = CommittedOffset(part.committed_offset, part.metadata or "")
    return offsets, codes


async def fetch_offsets(
    cluster: Cluster, groups: Iterable[str], patience_ms: int | None = None
) -> tuple[dict[str, dict[TopicPartition, CommittedOffset]], Failures]:
    """All that each group has committed, and what failed for which group.

    Raises UnsupportedSourceError for brokers before Kafka 0.10.2, which do not tell all offsets of a group (KIP-88).
    """
    await cluster.connect()
    version = cluster.highest_version(OffsetFetchRequest)
    if version < _FETCH_ALL_TOPICS:
        raise UnsupportedSourceError(
            f"The brokers of the {cluster.name} do not tell all offsets of a group; Kafka 0.10.2 or newer is needed,"
            " or switch sync.group.offsets.enabled and emit.checkpoints.enabled off"
        )
    has_many = version >= _FETCH_MANY

    def request(names: Sequence[str]) -> Any:
        if has_many:
            wanted = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
            return OffsetFetchRequest(groups=wanted, require_stable=False, max_version=_LAST_FETCH)
        return OffsetFetchRequest(
            group_id=names[0], topics=None, min_version=_FETCH_ALL_TOPICS, max_version=_FETCH_MANY - 1
        )

    def read(response: Any) -> Iterator[tuple[str, int, dict[TopicPartition, CommittedOffset]]]:
        for group in response.groups if has_many else [response]:
            offsets, codes = read_offsets(group)
            code = group.error_code or next(iter(codes.values()), 0)
            yield group.group_id if has_many else "", code, offsets

    many = AT_ONCE if has_many else 1
    return await ManyGroups[dict[TopicPartition, CommittedOffset]](cluster, patience_ms or _READ_PATIENCE_MS).ask(
        list(groups), request, read, many
    )


async def commit_offsets(
    cluster: Cluster,
    wanted: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
    may_write: Callable[[], Awaitable[None]] | None = None,
) -> tuple[dict[str, dict[TopicPartition, int]], Failures]:
    """Commits for groups without members; the error code per partition (0: written), and what failed for which group.

    `may_write` is called right before requests are sent, each time; what it raises ends the call.
    A broker refuses a group that has members (UNKNOWN_MEMBER_ID).  The offsets carry no leader epoch: epochs of
    another cluster mean nothing here (KIP-320).  A commit that failed but may have been written is in the failures.
    """
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic

    def request(names: Sequence[str]) -> Any:
        topics: dict[str, list[Any]] = {}
        for partition, committed in wanted[names[0]].items():
            topics.setdefault(partition.topic, []).append(
                topic_type.OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=-1,
                    committed_metadata=committed.metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=names[0],
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
            max_version=_LAST_COMMIT,
        )

    def read(response: Any) -> Iterator[tuple[str, int, dict[TopicPartition, int]]]:
        codes = {TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
        yield "", next((code for code in codes.values() if code in _OF_THE_COORDINATOR), 0), codes

    return await ManyGroups[dict[TopicPartition, int]](cluster, _COMMIT_PATIENCE_MS, may_write).ask(
        wanted, request, read, 1
    )
