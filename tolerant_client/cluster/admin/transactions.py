"""Producer ids and transactions of one cluster: getting ids, what leaders and coordinators know of their producers, and
sending markers straight to a leader, as a transaction coordinator does.

Wire facts: KIP-98 (InitProducerId), KIP-664 (DescribeProducers, ListTransactions, DescribeTransactions),
WriteTxnMarkersRequest.json (version 1: Kafka 2.8 to 4.x; version 2 adds the transaction's version, which a broker uses for
markers of open transactions only).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest, WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import insist_on_leaders
from tolerant_client.cluster.admin.asking import by_topic, is_retriable, raise_for, speaks
from tolerant_client.cluster.admin.coordinators import TRANSACTION, Coordinators
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import MARKERS
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.errors import OutcomeUnknownError

_NO_COORDINATOR = -1  # of a producer that was never in a transaction
_MARKERS_VERSION = 1
_CLUSTER_ACTION = 9  # AclOperation.java
_LOWEST_COORDINATOR_EPOCH = 0  # a marker is refused if its producer's last one had a higher epoch


class ProducerEntry(NamedTuple):
    """A producer that a partition's leader remembers (KIP-664); `last_sequence` is -1 where it wrote only markers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int = -1  # offset where its open transaction begins


@dataclass(frozen=True)
class CoordinatorView:
    """What the coordinator says of a producer id; times in ms, `partitions` are those that will get a marker."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    partitions: frozenset[TopicPartition]
    producer_id: int = -1


def init_producer_id_request(
    transactional_id: str | None,
    timeout_ms: int = 60_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    *,
    min_version: int = 0,
) -> InitProducerIdRequest:
    """Asks for a producer id and a new epoch, which ends an open transaction of `transactional_id`.

    With an id and an epoch the coordinator compares them (version 3: KIP-360, Kafka 2.5).  Only versions before transactions
    v2 (KIP-890) are used: with them an epoch lasts for any number of transactions.
    """
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        min_version=min_version,
        max_version=4,
    )


def _producer_id(response: Any) -> int:
    raise_for(response.error_code, "InitProducerId")
    return int(response.producer_id)


async def init_producer_id(target: Cluster, link: str) -> int:
    """The producer id of a link, which is the same at every start (KIP-98, transactional.id).

    Data batches are plain idempotent ones of epoch 0: they use only the id (M2).
    """
    transactional_id, what = _transactional_id(link), f"getting the producer id of link {link}"
    return await Coordinators(target).ask(
        TRANSACTION, transactional_id, what, lambda: init_producer_id_request(transactional_id), _producer_id
    )


def _transactional_id(link: str) -> str:
    return f"tolerant-mirror-{link}"


async def known_producer_id(cluster: Cluster, link: str) -> int | None:
    """The producer id of a link, if its coordinator remembers one and tells it; asks once, and gives it none."""
    transactional_id = _transactional_id(link)
    if not can_list_transactions(cluster):
        return None

    def read(response: Any) -> int:
        (state,) = response.transaction_states
        raise_for(state.error_code, "DescribeTransactions")
        return int(state.producer_id)

    try:
        asked = partial(DescribeTransactionsRequest, transactional_ids=[transactional_id])
        return await Coordinators(cluster).ask_once(TRANSACTION, transactional_id, asked, read)
    except Errors.KafkaError:
        return None


async def fresh_producer_id(target: Cluster) -> int:
    """An id that no broker knows yet, so that any sequence may be its first."""

    async def ask() -> int:
        return _producer_id(await target.send(init_producer_id_request(None)))

    return await target.insist("getting a producer id", ask)


def can_describe_producers(cluster: Cluster) -> bool:
    """True for Kafka 2.8 and newer; only once connected."""
    return speaks(cluster, DescribeProducersRequest)


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerEntry]]:
    """The producers that each partition's leader remembers; one request per broker, partitions that failed are absent.

    Needs READ on the topics.
    """
    topic_type = DescribeProducersRequest.TopicRequest
    failed: set[TopicPartition] = set()

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, list[ProducerEntry]]:
        topics = [
            topic_type(name=name, partition_indexes=indexes) for name, indexes in by_topic(cluster, members).items()
        ]
        found: dict[TopicPartition, list[ProducerEntry]] = {}
        for topic in (await cluster.send(DescribeProducersRequest(topics=topics), node_id)).topics:
            name = cluster.topic_of(topic.name)
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition_index)
                if part.error_code:
                    error = Errors.for_code(part.error_code)(f"DescribeProducers of {name}-{part.partition_index}")
                    if not is_retriable(error):
                        raise error
                    failed.add(partition)
                else:
                    found[partition] = [
                        ProducerEntry(
                            e.producer_id,
                            e.producer_epoch,
                            e.last_sequence,
                            e.last_timestamp,
                            e.coordinator_epoch,
                            e.current_txn_start_offset,
                        )
                        for e in part.active_producers
                    ]
        return found

    found = await insist_on_leaders(cluster, "reading the producers of partitions", partitions, ask)
    if failed:
        await cluster.refresh()
    return found


def link_entry(entries: Iterable[ProducerEntry], producer_id: int, own: Collection[int]) -> ProducerEntry | None:
    """The entry whose sequence the link continues, if there is one.

    It is the entry of its producer id; without one, the entry that wrote last among the link's former ids (`own`, from
    before its transactional.id expired).  What others wrote says nothing about the link.  An entry without a sequence
    comes from markers alone, as the fence of a promotion leaves them.
    """
    known = [
        e
        for e in entries
        if (e.producer_id == producer_id or e.producer_id in own)
        and e.last_sequence >= 0
        and e.coordinator_epoch == _NO_COORDINATOR
        and e.transaction_start < 0
    ]
    return max(known, key=lambda e: (e.producer_id == producer_id, e.last_timestamp, e.producer_id), default=None)


async def list_transactions(
    cluster: Cluster, node_id: int, states: Sequence[str] = (), producer_ids: Iterable[int] = ()
) -> dict[str, int]:
    """A coordinator's transactional ids in one of these states, or of these producers, and their producer ids; asked once.

    Ids that we may not describe are absent.
    """
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=sorted(producer_ids), max_version=0
    )
    response = await cluster.send(request, node_id)
    raise_for(response.error_code, f"listing the transactions of broker {node_id}")
    return {state.transactional_id: state.producer_id for state in response.transaction_states}


def can_list_transactions(cluster: Cluster) -> bool:
    """True for Kafka 3.0 and newer; only once connected."""
    return speaks(cluster, ListTransactionsRequest)


async def transactional_ids(cluster: Cluster, prefix: str, states: Sequence[str] = ()) -> set[str] | None:
    """Transactional ids with this prefix, in one of the states or in any; None where the brokers cannot list them."""
    found = await transactional_producers(cluster, prefix, states)
    return None if found is None else set(found)


async def transactional_producers(cluster: Cluster, prefix: str, states: Sequence[str] = ()) -> dict[str, int] | None:
    """As transactional_ids, with the producer id of each."""
    await cluster.connect()
    if not can_list_transactions(cluster):
        return None

    async def ask() -> dict[str, int]:
        await cluster.refresh()
        found: dict[str, int] = {}
        for broker in cluster.manager.cluster.brokers():
            found.update(await list_transactions(cluster, broker.node_id, states))
        return {name: producer_id for name, producer_id in found.items() if name.startswith(prefix)}

    return await cluster.insist("listing transactions", ask)


async def describe_transactions(
    cluster: Cluster, ids: Collection[str], node_id: int | None = None
) -> dict[str, CoordinatorView | Exception]:
    """What a coordinator says of transactional ids; asked once.

    Any broker checks whether we may describe an id, which Write implies, before it says that it is not the coordinator.
    """
    if not ids:
        return {}
    found: dict[str, CoordinatorView | Exception] = {}
    for state in (
        await cluster.send(DescribeTransactionsRequest(transactional_ids=list(ids)), node_id)
    ).transaction_states:
        name = state.transactional_id
        if state.error_code:
            found[name] = Errors.for_code(state.error_code)(f"the transaction of {name!r}")
        else:
            partitions = frozenset(TopicPartition(t.topic, index) for t in state.topics for index in t.partitions)
            found[name] = CoordinatorView(
                name,
                state.transaction_state,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms,
                partitions,
                state.producer_id,
            )
    return found


def can_write_markers(cluster: Cluster) -> bool:
    """True for Kafka 2.8 and newer; only once connected."""
    return cluster.highest_version(WriteTxnMarkersRequest) >= _MARKERS_VERSION


async def may_write_markers(cluster: Cluster) -> bool:
    """Whether the brokers say that they take markers of ours (KIP-430).

    They tell whoever may not Describe the cluster of no right, and without an authorizer of all.
    """
    await cluster.connect()
    if not can_write_markers(cluster):
        return False

    async def ask() -> Collection[int] | None:
        allowed: Collection[int] | None = (
            await cluster.send(metadata_request((), has_rights=True))
        ).authorized_operations
        return allowed

    return _CLUSTER_ACTION in (await cluster.insist("reading our rights to the cluster", ask) or ())


async def write_abort_markers(
    cluster: Cluster, node_id: int, partition: TopicPartition, producers: Sequence[tuple[int, int]], lane: str = MARKERS
) -> set[int]:
    """Has a leader append abort markers in order, each given as (producer id, epoch); the error codes other than 0.

    A broker appends each marker by itself, and responds when the last one is replicated, with one code per producer id.
    Sent once: a repeat would append the markers again, and so would a request that lies unread behind a throttle, when its client is
    dead and another one has written them: it has a connection of its own, which is never throttled.  Needs ClusterAction on the cluster (or Alter, Kafka 4.0).
    Raises OutcomeUnknownError where the response does not name exactly these producers.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topics = [marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])]
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=_LOWEST_COORDINATOR_EPOCH,
            )
            for producer_id, producer_epoch in producers
        ],
        max_version=_MARKERS_VERSION,
    )
    codes: set[int] = set()
    named: set[tuple[int, str, int]] = set()
    for result in (await cluster.send(request, cluster.lane(lane, node_id))).markers:
        for topic in result.topics:
            for part in topic.partitions:
                codes.add(part.error_code)
                named.add((result.producer_id, topic.name, part.partition_index))
    if named != {(producer_id, *partition) for producer_id, _ in producers}:
        raise OutcomeUnknownError(
            f"The response to WriteTxnMarkers for {partition.topic}-{partition.partition} names others than its request;"
            " the markers may have been appended"
        )
    return codes - {0}
