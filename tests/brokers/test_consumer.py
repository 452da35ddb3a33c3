"""The drop-in consumer on a real broker: beside stock kafka-python, with poll_arrow, in a group, fetching ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.structs import TopicPartition

from support.held_answers import HookedProxy
from support.mirror_link import append_batches, append_records, make_anew
from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tolerant_client.records.arrow import SCHEMA, SCHEMA_WITH_HEADERS
from tolerant_client.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock.fetcher import TolerantFetcher
from tolerant_client.testing import KafkaCluster

PATIENCE = 60.0
T0 = 1_700_000_000_000


@pytest.fixture
def topic(kafka_cluster: KafkaCluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a topic named after the test."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = "consumer-" + request.node.name.replace("[", "-").rstrip("]").replace("_", "-")[:150]
        admin = KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        admin.close()
        request.addfinalizer(lambda: delete(kafka_cluster.bootstrap_servers, name))
        return name

    return make


def delete(servers: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_topics([topic])
    admin.close()


def read(consumer: Any, partitions: list[TopicPartition], **poll: Any) -> Iterator[Any]:
    """Every record up to the ends of now, from the beginning."""
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    deadline = time.monotonic() + PATIENCE
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        assert time.monotonic() < deadline, "the end of the log was not reached"
        for records in consumer.poll(timeout_ms=500, **poll).values():
            yield from records


def write_every_kind(servers: str, topic: str, can_decompress: list[int]) -> None:
    """Codecs, keys, nulls, headers, log append time beside committed and aborted transactions, markers included."""
    headers = (("source", b"shop"), ("empty", b""), ("null", None), ("uml\u00e4ut", b"\xff"))
    records = [
        Record(
            offset=0,
            timestamp=T0 + n,
            key=None if n % 3 == 0 else b"key %d" % n,
            value=None if n % 7 == 0 else b"v%d" % n * (n % 40),
            headers=headers[: n % 5],
        )
        for n in range(300)
    ]
    for codec in can_decompress:
        append_batches(servers, ((TopicPartition(topic, n % 2), encode_batch(records, codec=codec)) for n in range(4)))
    for number, is_kept in enumerate([True, False, True, False]):
        producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-{number % 2}")
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(40):
            producer.send(topic, b"transaction %d, %d" % (number, n), partition=n % 2, timestamp_ms=T0)
        producer.flush()
        producer.commit_transaction() if is_kept else producer.abort_transaction()
        producer.close()
    append_batches(servers, [(TopicPartition(topic, n), encode_batch(records[:5])) for n in range(2)])


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_every_record_is_the_one_of_stock_kafka_python(
    isolation_level: str, timestamps: str, kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    servers = kafka_cluster.bootstrap_servers
    name = topic(2, **{"message.timestamp.type": timestamps})
    write_every_kind(servers, name, [NONE, GZIP])  # what stock reads without further libraries
    partitions = [TopicPartition(name, n) for n in range(2)]
    options = {
        "bootstrap_servers": servers, "isolation_level": isolation_level, "max_poll_records": 137,
        "max_partition_fetch_bytes": 5_000, "value_deserializer": lambda data: data and data.decode("latin-1"),
    }  # fmt: skip
    found = []
    for make in (kafka.KafkaConsumer, KafkaConsumer):
        with pytest.warns(DeprecationWarning, match="Deserializer"):
            consumer = make(**options)
        try:
            found.append(sorted(read(consumer, partitions), key=lambda record: (record.partition, record.offset)))
        finally:
            consumer.close()
    stock, ours = found
    assert len(stock) > 2_400
    assert ours == stock
    assert all(list(map(type, mine)) == list(map(type, theirs)) for mine, theirs in zip(ours, stock))


def test_every_codec_is_read_in_records_and_in_arrow(kafka_cluster: KafkaCluster, topic: Callable[..., str]) -> None:
    servers = kafka_cluster.bootstrap_servers
    name = topic(2)
    write_every_kind(servers, name, [NONE, GZIP, SNAPPY, LZ4, ZSTD])
    partitions = [TopicPartition(name, n) for n in range(2)]
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    try:
        records = sorted(read(consumer, partitions), key=lambda record: (record.partition, record.offset))
        consumer.seek_to_beginning(*partitions)
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE
        while len(rows) < len(records) and time.monotonic() < deadline:
            table = consumer.poll_arrow(timeout_ms=500, include_headers=True)
            assert table.schema == SCHEMA_WITH_HEADERS
            rows += table.to_pylist()
    finally:
        consumer.close()
    assert len(records) == 5 * 4 * 300 + 2 * 40 + 10
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    assert [(r["topic"], r["partition"], r["offset"], r["key"], r["value"], r["timestampType"]) for r in rows] == [
        (r.topic, r.partition, r.offset, r.key, r.value, r.timestamp_type) for r in records
    ]
    assert [[(pair["key"], pair["value"]) for pair in row["headers"] or []] for row in rows] == [
        r.headers for r in records
    ]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [r.timestamp for r in records]


def test_poll_and_poll_arrow_and_iteration_in_turn_lose_and_double_nothing(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(3)
    append_records(kafka_cluster.bootstrap_servers, name, 4_000, partitions=3)
    partitions = [TopicPartition(name, n) for n in range(3)]
    consumer = KafkaConsumer(
        bootstrap_servers=kafka_cluster.bootstrap_servers, max_partition_fetch_bytes=30_000, consumer_timeout_ms=200
    )
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    sizes = []
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        assert consumer.poll_arrow().schema == SCHEMA
        deadline, turn = time.monotonic() + PATIENCE, 0
        while sum(map(len, found.values())) < 12_000 and time.monotonic() < deadline:
            turn += 1
            if turn % 3 == 0:
                for records in consumer.poll(timeout_ms=200, max_records=170).values():
                    for record in records:
                        found[record.partition].append(record.offset)
            elif turn % 7 == 0:
                for record in consumer:  # left in the middle of a batch
                    found[record.partition].append(record.offset)
                    if record.offset % 40 == 33:
                        break
            else:
                table = consumer.poll_arrow(timeout_ms=200, max_records=230)
                sizes.append(table.num_rows)
                for n, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist()):
                    found[n].append(offset)
            if turn % 5 == 0:
                consumer.pause(partitions[turn % 3])
            elif turn % 5 == 2:
                consumer.resume(*partitions)
    finally:
        consumer.close()
    assert found == {n: list(range(4_000)) for n in range(3)}
    assert max(sizes) <= 230


def test_a_seek_while_records_are_buffered_and_fetched_ahead_is_obeyed(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    append_records(kafka_cluster.bootstrap_servers, name, 20_000)
    partition = TopicPartition(name, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka_cluster.bootstrap_servers, max_partition_fetch_bytes=50_000)

    def next_offset() -> Any:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200, max_records=10).values():
                assert [r.offset for r in records] == list(range(records[0].offset, records[0].offset + len(records)))
                return records[0].offset
        return None

    try:
        consumer.assign([partition])
        for target in (0, 5_003, 5_000, 19_990, 100, 105, 12_345):
            consumer.seek(partition, target)
            assert next_offset() == target
            assert target == 19_990 or next_offset() == target + 10
    finally:
        consumer.close()


def test_the_next_fetch_is_under_way_while_records_are_handled(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    append_records(kafka_cluster.bootstrap_servers, name, 5_000)
    partition = TopicPartition(name, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka_cluster.bootstrap_servers, max_partition_fetch_bytes=50_000)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + PATIENCE
        while not consumer.poll(timeout_ms=200, max_records=1) and time.monotonic() < deadline:
            pass
        # Nobody polls now, and yet what follows the buffered answer arrives; and no more than that.
        buffered = consumer._fetcher._completed_fetches
        while not buffered and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [fetch.fetched_offset for fetch in buffered] == [consumer._fetcher._next_partition_records.end[0]]
        before = consumer.recovery_counters.of("completed", "Fetch")
        consumer.poll(max_records=5)
        time.sleep(0.3)
        assert len(buffered) == 1
        assert consumer.recovery_counters.of("completed", "Fetch") == before
        offsets = []
        while len(offsets) < 1_000:
            offsets += [record.offset for record in consumer.poll(timeout_ms=500).get(partition, [])]
        assert offsets[:1_000] == list(range(6, 1_006))
    finally:
        consumer.close()


@pytest.mark.parametrize("is_polling", [True, False])
def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_first_record(
    kafka_cluster: KafkaCluster, topic: Callable[..., str], is_polling: bool
) -> None:
    """The new log is longer than the position, which is valid there too: nothing but the topic's id tells them apart."""
    name, servers = topic(), kafka_cluster.bootstrap_servers
    append_records(servers, name, 100)
    events: list[Any] = []
    consumer = KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", allow_auto_create_topics=False, recovery_listener=events.append
    )  # fmt: skip
    found: list[int] = []

    def poll_until(count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            found.extend(record.offset for records in consumer.poll(timeout_ms=200).values() for record in records)

    def recreate() -> None:
        make_anew(servers, name)
        append_records(servers, name, 300)

    other = threading.Thread(target=recreate)
    try:
        consumer.assign([TopicPartition(name, 0)])
        poll_until(100)
        other.start()
        if not is_polling:
            other.join(PATIENCE)
        poll_until(400)
    finally:
        other.join(PATIENCE)
        consumer.close()
    assert found == [*range(100), *range(300)]
    assert [event.offset for event in events if event.kind == "recreated"] == [100]


class Recording(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.assigned: list[Any] = []
        self.revoked: list[Any] = []

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += assigned

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked += revoked


def test_poll_arrow_is_a_member_of_its_group_and_commits(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(2)
    servers = kafka_cluster.bootstrap_servers
    append_records(servers, name, 1_000, partitions=2)
    options = {"bootstrap_servers": servers, "group_id": name, "auto_offset_reset": "earliest"}
    listener = Recording()
    found: set[tuple[int, int]] = set()
    count = 0
    first = KafkaConsumer(**options, auto_commit_interval_ms=100)
    try:
        first.subscribe([name], listener=listener)
        deadline = time.monotonic() + PATIENCE
        while count < 1_500 and time.monotonic() < deadline:
            table = first.poll_arrow(timeout_ms=300, max_records=300)
            count += table.num_rows
            found |= set(zip(table["partition"].to_pylist(), table["offset"].to_pylist()))
    finally:
        first.close()
    assert len(listener.assigned) == 2 and len(listener.revoked) == 2
    second = KafkaConsumer(name, **options)
    try:
        while count < 2_000 and time.monotonic() < deadline:
            table = second.poll_arrow(timeout_ms=300)
            count += table.num_rows
            found |= set(zip(table["partition"].to_pylist(), table["offset"].to_pylist()))
        assert second.committed(TopicPartition(name, 0)) is not None
    finally:
        second.close()
    assert count == len(found) == 2_000


def test_a_group_does_not_wait_for_a_member_that_was_closed_while_it_joined(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    options: Any = {"bootstrap_servers": kafka_cluster.bootstrap_servers, "group_id": name}
    # Stock members that are polled in turn make their group rebalance again and again (docs/clients.md).
    with KafkaConsumer(name, heartbeat_interval_ms=500, **options) as first, KafkaConsumer(name, **options) as second:
        deadline = time.monotonic() + 30  # the session of the closed member, whose id was not used, is 45 s
        while len(first.assignment()) < 2:
            assert not first.poll(100) and time.monotonic() < deadline
        closed = KafkaConsumer(name, **options)
        while closed._coordinator._join_task is None:
            closed.poll(0)
        while not closed._coordinator._generation.has_member_id():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        closed.close()
        while not len(first.assignment()) == len(second.assignment()) == 1:
            assert not first.poll(100) and not second.poll(100) and time.monotonic() < deadline


def test_a_close_shares_its_timeout_with_a_silent_broker_and_leaves_all_the_same(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    append_records(kafka_cluster.bootstrap_servers, name, 1)
    with (
        HookedProxy(kafka_cluster.proxied) as proxy,
        KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin,
    ):
        consumer = KafkaConsumer(
            name, bootstrap_servers=proxy.bootstrap_servers, group_id=name, auto_offset_reset="earliest"
        )
        while not consumer.poll(100):
            pass
        proxy.answer = lambda link, api_key, frame: []
        began = time.monotonic()
        consumer.close(timeout_ms=2_000)
        assert time.monotonic() < began + 3.0  # kafka-python: 2 s for the commit, and 2 s for the LeaveGroup
        while admin.describe_groups([name])[name]["members"]:
            assert time.monotonic() < began + 20, "its session is 45 s"


def test_a_poll_arrow_without_records_is_an_empty_table_and_its_arguments_are_checked(
    kafka_cluster: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    consumer = KafkaConsumer(name, bootstrap_servers=kafka_cluster.bootstrap_servers, group_id=None)
    try:
        for include_headers, schema in ((False, SCHEMA), (True, SCHEMA_WITH_HEADERS)):
            table = consumer.poll_arrow(timeout_ms=100, include_headers=include_headers)
            assert (table.num_rows, table.schema) == (0, schema)
        with pytest.raises(ValueError, match="Timeout"):
            consumer.poll_arrow(timeout_ms=-1)
        with pytest.raises(ValueError, match="max_records"):
            consumer.poll_arrow(max_records=0)
    finally:
        consumer.close()


def test_stock_consumers_in_the_same_process_stay_stock(kafka_cluster: KafkaCluster) -> None:
    servers = kafka_cluster.bootstrap_servers
    ours, stock = KafkaConsumer(bootstrap_servers=servers, group_id="a"), kafka.KafkaConsumer(bootstrap_servers=servers)
    try:
        assert type(stock._fetcher) is Fetcher and type(stock._coordinator) is ConsumerCoordinator
        assert type(ours._fetcher) is TolerantFetcher and isinstance(ours._coordinator, ConsumerCoordinator)
        assert isinstance(ours, kafka.KafkaConsumer)
        assert set(ours.metrics()) >= set(stock.metrics())
    finally:
        ours.close()
        stock.close()
