"""Finds open transactions that hold back a partition's last stable offset, since when, and what ends them (KIP-664).

A mirror copies up to the last stable offset, as consumers with read_committed do: an open transaction delays all records after
its first one, committed or not.  A coordinator aborts it after its timeout; only an operator ends one that *hangs* because its
coordinator does not know that it has this partition.

What brokers do not tell (before 2.8, or because we lack a right) is reported as unknown and raises no error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import (
    CoordinatorView,
    can_describe_producers,
    can_list_transactions,
    describe_producers,
    describe_transactions,
    list_transactions,
)
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.state.health import WAITS_AFTER_S, utc

_PATIENCE_MS = 5_000  # with each broker that we ask for open transactions: the response only adds their names


@dataclass(frozen=True)
class OpenTransaction:
    """A producer with an open transaction in a partition, as the partition's leader knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int
    held_back: int  # offsets from the last stable offset to the high watermark


class Held(NamedTuple):
    """Offsets of a partition, from its last stable offset to its high watermark, that wait for an open transaction.

    `transaction` and `view` are None if they are unknown, and `unknown` says why.  `command` aborts the transaction.
    """

    partition: TopicPartition
    from_offset: int
    offsets: int
    transaction: OpenTransaction | None = None
    view: CoordinatorView | None = None
    command: str = ""
    unknown: str = ""

    @property
    def since_ms(self) -> int | None:
        """When it was begun; if its coordinator does not tell, the time of its last record."""
        if self.view is not None and self.view.started_ms >= 0:
            return self.view.started_ms
        if self.transaction is not None and self.transaction.last_timestamp >= 0:
            return self.transaction.last_timestamp
        return None

    def __str__(self) -> str:
        topic, index = self.partition
        waiting = f"{topic}-{index}: {self.offsets:,} offsets from {self.from_offset:,} on wait for"
        if self.transaction is None:
            return f"{waiting} an open transaction of an unknown producer: {self.unknown}; end its producer"
        who = f"producer id {self.transaction.producer_id}"
        who += (
            f", transactional.id {self.view.transactional_id}"
            if self.view is not None
            else ", transactional.id unknown"
        )
        since = self.since_ms
        if since is None:
            age = f"since offset {self.transaction.start_offset:,}"
        else:
            what = "since" if self.view is not None else "with its last record of"
            age = f"{what} {utc(since)}, from offset {self.transaction.start_offset:,} on"
        return f"{waiting} an open transaction ({who}; {age}); let its producer end it, or abort it: {self.command}"

    def to_json(self) -> dict[str, Any]:
        """Names and numbers; null is unknown."""
        one, view = self.transaction, self.view
        return {
            **self.partition._asdict(),
            "from_offset": self.from_offset,
            "offsets": self.offsets,
            "producer_id": None if one is None else one.producer_id,
            "transactional_id": None if view is None else view.transactional_id,
            "since_ms": self.since_ms,
            "command": self.command,
            "unknown": self.unknown,
        }


def is_held_long(one: Held, now_ms: int) -> bool:
    """Whether a transaction has been open for long; also True if its age is unknown."""
    return one.since_ms is None or now_ms - one.since_ms >= 1000 * WAITS_AFTER_S


async def find_held(cluster: Cluster, spans: Mapping[TopicPartition, tuple[int, int]]) -> list[Held]:
    """The transactions that hold back these partitions, given their last stable offsets and high watermarks.

    A partition that several producers hold back is listed once for each, the earliest first; spans without offsets are left out.
    Read the high watermark *before* the last stable offset, else records appended in between seem to be held back.
    """
    held = {p: (stable, end) for p, (stable, end) in spans.items() if end > stable}
    if not held:
        return []
    try:
        found, unknown = await _described(cluster, held)
    except (Errors.KafkaError, ValueError) as error:
        found, unknown = {}, text_of(error)
    views = await views_of(cluster, {one.producer_id for known in found.values() for one in known})
    told: list[Held] = []
    for partition, (stable, end) in sorted(held.items()):
        span = (partition, stable, end - stable)
        for one in sorted(found.get(partition, ()), key=lambda one: one.start_offset):
            told.append(Held(*span, one, views.get(one.producer_id), abort_command(cluster, one)))
        if not found.get(partition):
            told.append(Held(*span, unknown=unknown or "its leader knows of none any more; it may have just ended"))
    return told


def abort_command(cluster: Cluster, one: OpenTransaction) -> str:
    """The command that ends the transaction in its partition, whatever its coordinator knows."""
    servers = cluster.bootstrap_servers
    at = servers if isinstance(servers, str) else ",".join(servers)
    properties = "" if cluster.manager.config["security_protocol"] == "PLAINTEXT" else " --command-config FILE"
    topic, index = one.partition
    return (
        f"kafka-transactions.sh --bootstrap-server {at}{properties} abort --topic {cluster.wire_topic(topic)}"
        f" --partition {index} --start-offset {one.start_offset}"
    )


async def open_transactions(cluster: Cluster, partitions: Collection[TopicPartition]) -> list[OpenTransaction]:
    """The open transactions of partitions; none if the brokers do not tell.  Needs Read on the topics."""
    await cluster.connect()
    if not partitions or not can_describe_producers(cluster):
        return []
    ends = await cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    stable = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
    described, _ = await _described(cluster, {p: (stable[p], ends[p]) for p in partitions if stable[p] < ends[p]})
    return [one for found in described.values() for one in found]


async def _described(
    cluster: Cluster, held: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[dict[TopicPartition, list[OpenTransaction]], str]:
    """The open transactions of each partition, and why they are unknown."""
    await cluster.connect()
    if not can_describe_producers(cluster):
        return {}, f"the brokers of the {cluster.name} are older than 2.8 and do not tell"
    entries = await describe_producers(cluster, held)
    return {
        partition: [
            OpenTransaction(
                partition,
                entry.producer_id,
                entry.producer_epoch,
                entry.transaction_start,
                entry.last_timestamp,
                held[partition][1] - held[partition][0],
            )
            for entry in found
            if entry.transaction_start >= 0
        ]
        for partition, found in entries.items()
    }, ""


async def views_of(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, CoordinatorView]:
    """The coordinators' views of these producer ids (Kafka 3.0); absent if no coordinator responds with one."""
    found: dict[int, CoordinatorView] = {}
    if not producer_ids or not can_list_transactions(cluster):
        return found
    for broker in cluster.manager.cluster.brokers():
        try:
            found.update(await coordinator_views(cluster, [broker.node_id], producer_ids, _PATIENCE_MS))
        except (Errors.KafkaError, ValueError):
            continue
    return found


async def coordinator_views(
    cluster: Cluster, nodes: Iterable[int], producer_ids: Collection[int], patience_ms: int | None = None
) -> dict[int, CoordinatorView]:
    """The views of these coordinators of producer ids; transactional ids that we may not describe are absent."""
    found: dict[int, CoordinatorView] = {}
    for node in nodes:

        async def ask(node: int = node) -> dict[str, CoordinatorView | Exception]:
            return await describe_transactions(
                cluster, await list_transactions(cluster, node, producer_ids=producer_ids), node
            )

        views = (await cluster.insist("asking who has a transaction open", ask, patience_ms)).values()
        found.update({view.producer_id: view for view in views if isinstance(view, CoordinatorView)})
    return found
