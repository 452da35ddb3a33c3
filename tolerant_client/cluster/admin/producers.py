"""Who writes the target's logs: the link's producer id, and what a broker remembers of the producers of a partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.transaction import TRANSACTION, Coordinators

_NO_COORDINATOR = -1  # of a producer that has never been in a transaction


class ProducerEntry(NamedTuple):
    """A producer that a partition's leader remembers (KIP-664); `last_sequence` is -1 where it wrote only markers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int = -1  # offset where its open transaction begins


async def init_producer_id(target: Cluster, link: str) -> int:
    """The producer id of a link: the same one at every start (KIP-98, transactional.id).

    Data batches are plain idempotent ones of epoch 0: only the id is used (M2).
    """
    transactional_id = f"tolerant-mirror-{link}"

    def request() -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )

    def read(answer: Any) -> int:
        raise_for(answer.error_code, "InitProducerId")
        producer_id: int = answer.producer_id
        return producer_id

    what = f"getting the producer id of link {link}"
    return await Coordinators(target).ask(TRANSACTION, transactional_id, what, request, read)


async def fresh_producer_id(target: Cluster) -> int:
    """An id that no broker knows yet, so that any sequence may be its first."""

    async def ask() -> int:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        answer = await target.send(request)
        raise_for(answer.error_code, "InitProducerId")
        producer_id: int = answer.producer_id
        return producer_id

    return await target.insist("getting a producer id", ask)


def can_describe_producers(cluster: Cluster) -> bool:
    """True for Kafka 2.8 and newer; only once connected."""
    return DescribeProducersRequest.API_KEY in cluster.manager.broker_version_data.api_versions


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerEntry]]:
    """The producers that each partition's leader remembers; one request a broker, partitions that failed are absent.

    Needs READ on the topics.
    """
    found: dict[TopicPartition, list[ProducerEntry]] = {}
    topic_type = DescribeProducersRequest.TopicRequest

    async def ask() -> None:
        failed = False
        for node, members in (await cluster.by_leader(p for p in wanted if p not in found)).items():
            by_topic: dict[str, list[int]] = {}
            for partition in members:
                by_topic.setdefault(partition.topic, []).append(partition.partition)
            topics = [
                topic_type(name=cluster.wire_topic(name), partition_indexes=indexes)
                for name, indexes in by_topic.items()
            ]
            for topic in (await cluster.send(DescribeProducersRequest(topics=topics), node)).topics:
                name = cluster.topic_of(topic.name)
                for part in topic.partitions:
                    error = Errors.for_code(part.error_code)
                    if part.error_code and not getattr(error, "retriable", False):
                        raise error(f"DescribeProducers of {name}-{part.partition_index}")
                    failed |= bool(part.error_code)
                    if not part.error_code:
                        found[TopicPartition(name, part.partition_index)] = [
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
        if failed:
            await cluster.refresh()

    wanted = list(partitions)
    if wanted:
        await cluster.insist("reading the producers of partitions", ask)
    return found


def link_entry(entries: Iterable[ProducerEntry], producer_id: int, own: Collection[int]) -> ProducerEntry | None:
    """The entry whose sequence the link goes on with, if there is one.

    That of its producer id; or, where there is none, that of the former id of the link (`own`, from before its
    transactional.id expired) that wrote last.  What anybody else wrote says nothing of the link.  An entry without
    sequence is that of markers alone, as the fence of a promotion leaves them.
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


def raise_for(error_code: int, what: str) -> None:
    """Raises kafka-python's error for a code other than 0."""
    if error_code:
        raise Errors.for_code(error_code)(what)
