"""What the mirror's broker tests share: writing logs quickly, running one link, reading it back independently."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import kafka
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import TopicPartition

from support.raising_copier import LinkCopier
from support.settled import PATIENCE_S, changing, until_led
from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.prepare import PreparedLink, prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow.group_positions import read_positions
from tolerant_client.mirror.follow.groups import GroupsReport, sync_groups
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC, COPIER, decode_claims
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, restamp

T0 = 1_700_000_000_000
_PIPELINE = 8

prepare_translated_link = partial(prepare_link, is_translated=True)


@contextmanager
def both(
    source: str, target: str, patience_ms: int = 60_000, names: TopicNames | None = None, **config: Any
) -> Iterator[tuple[Cluster, Cluster]]:
    """Source and target on one event loop, as the mirror has them."""
    with Cluster(
        {"bootstrap_servers": source, **config}, name="source", patience_ms=patience_ms, names=names
    ) as origin:
        copy = Cluster({"bootstrap_servers": target, **config}, origin.net, name="target", patience_ms=patience_ms)
        try:
            yield origin, copy
        finally:
            copy.close()


def create_topic(servers: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """A topic with one replica, once every partition has a leader."""
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(config or {}))])
    until_led(servers, name)


def delete_topic(servers: str, name: str) -> None:
    with changing(servers) as admin:
        admin.delete_topics([name])


def configure(servers: str, topic: str, **settings: str) -> None:
    with changing(servers) as admin:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])


def create_again(servers: str, name: str) -> None:
    """A topic that was deleted, as soon as its name is free."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return create_topic(servers, name)
        except TopicAlreadyExistsError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def make_anew(servers: str, name: str) -> None:
    """Soon enough that hardly anybody sees it missing."""
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.delete_topics([name])
    create_again(servers, name)


def topics_of(servers: str) -> set[str]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    try:
        return {name for name in admin.list_topics() if not name.startswith("__")}
    finally:
        admin.close()


def append_batches(servers: str, batches: Iterable[tuple[TopicPartition, bytes]]) -> None:
    """Appends whole batches in their order, several requests in flight on one connection."""

    async def run() -> None:
        await cluster.connect()
        pending: list[Any] = []
        known: set[TopicPartition] = set()
        for partition, batch in batches:
            if partition not in known:
                # A broker knows a new topic a little later than the controller.
                await cluster.list_offsets({partition: LATEST})
                known.add(partition)
            pending.append(cluster.produce(await cluster.leader(partition), {partition: memoryview(batch)}))
            if len(pending) >= _PIPELINE:
                check(await pending.pop(0))
        for future in pending:
            check(await future)

    def check(answer: Any) -> None:
        assert [part.error_code for part in answer] == [0], answer

    with Cluster({"bootstrap_servers": servers}, name="writer") as cluster:
        cluster.run(run)


def create_replicated(servers: str, topic: str, assignment: list[int], config: dict[str, str] | None = None) -> None:
    """A topic of one partition with these replicas."""
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: assignment}, topic_configs=config or {})])
    until_led(servers, topic)


def append_records(
    servers: str,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    first: int = 0,
    per_batch: int = 100,
    size: int = 100,
    codec: int = 0,
    timestamp: int | None = None,
) -> int:
    """Numbered records, `count` in each partition; `timestamp` gives all of them the same one.  Returns bytes."""
    written = 0

    def batches() -> Iterator[tuple[TopicPartition, bytes]]:
        nonlocal written
        filler = b"." * max(0, size - 24)
        for start in range(first, first + count, per_batch):
            for partition in range(partitions):
                records = [
                    Record(
                        0,
                        T0 + n if timestamp is None else timestamp,
                        b"%d" % n,
                        b"%010d/%04d/" % (n, partition) + filler,
                    )
                    for n in range(start, min(start + per_batch, first + count))
                ]
                batch = encode_batch(records, codec=codec)
                written += len(batch)
                yield TopicPartition(topic, partition), batch

    append_batches(servers, batches())
    return written


def append_as_link(servers: str, link: str, topic: str, records: Iterable[Record], sequence: int) -> None:
    """Appends one batch to partition 0 with the link's producer id, as a writer of it would whose place was wrong."""
    with Cluster({"bootstrap_servers": servers}, name="zombie") as cluster:

        async def run() -> None:
            batch = bytearray(encode_batch(list(records)))
            restamp(batch, await init_producer_id(cluster, link), 0, sequence)
            partition = TopicPartition(topic, 0)
            (part,) = await cluster.produce(await cluster.leader(partition), {partition: memoryview(batch)})
            assert part.error_code == 0, part

        cluster.run(run)


def delete_until(servers: str, topic: str, offset: int) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def mirror(
    source: str,
    target: str,
    topics: LinkTopics | str,
    link: str = "tests",
    *,
    limits: CopyLimits = CopyLimits(),
    policy: MirrorPolicy = MirrorPolicy(),
    is_translated: bool = False,
    from_ms: int | None = None,
    **config: Any,
) -> dict[TopicPartition, Progress]:
    """One run of a link up to the ends that the source has now."""
    with both(source, target, names=LinkTopics.of(topics).names, **config) as (origin, copy):

        async def run() -> dict[TopicPartition, Progress]:
            how = {"is_translated": is_translated, "from_ms": from_ms}
            prepared = await prepare_link(origin, copy, topics, link, policy, **how)
            offsets = translated_offsets() if is_translated else identical_offsets(prepared.producer_id)
            copier = LinkCopier(origin, copy, offsets, limits, link=link, policy=policy)
            return await copier.copy(prepared.ends)

        return origin.run(run)


def losses(servers: str, topic: str) -> list[tuple[int, int, int, str]]:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        rows = cluster.run(read_ledger, cluster)
    return [(row.partition, row.from_offset, row.until_offset, row.reason) for row in rows if row.topic == topic]


def values(servers: str, topic: str, count: int) -> dict[int, bytes | None]:
    """Records of partition 0 without filler, by offset."""
    found = consume(servers, topic, 1, count)[0]
    return {offset: value for offset, _, _, value, headers in found if not any(name == FILLER for name, _ in headers)}


def delete_records(servers: str, topic: str, before: int, partition: int = 0) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, partition): before})
    admin.close()


async def move_groups(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics,
    groups: TopicFilter,
    *,
    link: str | None = None,
    **how: Any,
) -> GroupsReport:
    """A round of group offsets, as the duty of a mirror does it."""
    return await sync_groups(target, await read_positions(source, target, topics, groups, link=link), **how)


def prepare(source: str, target: str, topics: str, link: str = "tests") -> PreparedLink:
    with both(source, target) as (origin, copy):
        return origin.run(prepare_link, origin, copy, topics, link)


def compare(source: str, target: str, topics: LinkTopics | str) -> VerifyReport:
    with both(source, target, names=LinkTopics.of(topics).names) as (origin, copy):
        return origin.run(verify, origin, copy, topics)


async def nobody_is_promoted(_: object = None) -> None:
    """What the gap fillers of a link ask that may write."""


def promoted(source: str, target: str, link: str, names: TopicNames | None = None) -> None:
    with both(source, target, names=names) as (origin, copy):

        async def call() -> Any:
            return await promote(origin, copy, link)

        assert origin.run(call).is_done


def failed_over(target: str, link: str) -> PromotionReport:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        report = cluster.run(failover, cluster, link)
        assert report.is_done
        return report


def ends(servers: str, topic: str, partitions: int = 1) -> list[int]:
    """Log end offsets; -1 for a topic that is not there."""
    with Cluster(
        {"bootstrap_servers": servers, "client_id": "reader"}, name="reader"
    ) as cluster:  # a quota is that of a client id
        if topic not in cluster.run(cluster.partitions, [topic]):
            return [-1] * partitions
        asked = {TopicPartition(topic, n): LATEST for n in range(partitions)}
        found = cluster.run(cluster.list_offsets, asked)
        return [found[partition] for partition in asked]


def header_at(servers: str, partition: TopicPartition, offset: int) -> BatchHeader:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        return cluster.run(read_headers, cluster, {partition: offset})[partition]


def consume(servers: str, topic: str, partitions: int, count: int, **config: Any) -> dict[int, list[tuple[Any, ...]]]:
    """Every record as stock kafka-python reads it; ends at `count` or after 2 s without one."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=2000,
        **config,
    )
    try:
        consumer.assign([TopicPartition(topic, n) for n in range(partitions)])
        found: dict[int, list[tuple[Any, ...]]] = {n: [] for n in range(partitions)}
        for record in consumer:
            found[record.partition].append(
                (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            )
            if sum(map(len, found.values())) >= count:
                break
        return found
    finally:
        consumer.close()


def copiers(servers: str, topic: str) -> list[int]:
    """The processes that have named a partition of the topic, in the order in which they did so first."""
    log = TopicPartition(CLAIMS_TOPIC, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    try:
        consumer.assign([log])
        end, found = consumer.end_offsets([log])[log], list[int]()
        while consumer.position(log) < end:
            for message in consumer.poll(1000).get(log, []):
                said = decode_claims(message.key, message.value)
                if said is not None and said.holder.role == COPIER and topic in {p.topic for p in said.names}:
                    found.append(said.holder.pid)
        return list(dict.fromkeys(found))
    finally:
        consumer.close()
