"""The streaming reader as Spark's driver calls it, without Spark: what a query finds after it was down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import TopicPartition
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_integration.reading.options import parse_read_options
from spark_integration.reading.reader import KafkaReader
from spark_integration.reading.schema import chosen_columns, full_schema
from spark_integration.reading.stream_reader import KafkaStreamReader
from support.settled import settle
from tolerant_client.errors import ClusterUnreachableError, DataLossError, OptionError

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> str:
    return str(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


class Query:
    """A run of a query on one topic, which starts where `offset` says or at the beginning; used as a context."""

    def __init__(self, servers: str, topic: str, offset: Any = None, **more: str) -> None:
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **more}
        options = parse_read_options(given, is_stream=True)
        self.reader = KafkaStreamReader(options, chosen_columns(full_schema(options), options))
        self.offset = offset or self.reader.initialOffset()

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self, limit: Any = ALL) -> Any:
        """Where the next micro-batch ends, as a checkpoint has it."""
        return json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))

    def run(self, end: Any) -> list[str]:
        """The values of a micro-batch; the next one begins where it ends."""
        ranges = self.reader.partitions(self.offset, end)
        self.offset = end
        return sorted(v.as_py().decode() for part in ranges for piece in self.reader.read(part) for v in piece["value"])

    def next(self) -> list[str]:
        return self.run(self.plan())


def fill(servers: str, admin: KafkaAdminClient, topic: str, prefix: str, count: int) -> None:
    """The topic anew, with values of its own."""
    if topic in admin.list_topics():
        admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, 1, 1)])
    settle(servers)  # until then a producer may write to the former topic
    producer = KafkaProducer(bootstrap_servers=servers)
    for number in range(count):
        producer.send(topic, b"%s%d" % (prefix.encode(), number))
    producer.flush()
    producer.close()


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(100)])
def test_a_topic_that_was_created_again_with_a_longer_log_is_data_loss(
    servers: str, admin: KafkaAdminClient, limit: Any
) -> None:
    topic = f"recreated-{type(limit).__name__}"
    fill(servers, admin, topic, "old", 10)
    with Query(servers, topic) as query:
        assert query.run(query.plan(limit)) == [f"old{n}" for n in range(10)]
        checkpoint = query.offset
    fill(servers, admin, topic, "new", 15)
    with Query(servers, topic, checkpoint) as query:
        with pytest.raises(DataLossError, match="topic recreated-.* was deleted and created again"):
            query.run(query.plan(limit))
    with Query(servers, topic, checkpoint, failOnDataLoss="false") as query:
        assert query.run(query.plan(limit)) == sorted(f"new{n}" for n in range(15))
        assert query.run(query.plan(limit)) == []


def test_a_batch_that_was_planned_before_its_topic_was_created_again_is_not_read_of_the_new_one(
    servers: str, admin: KafkaAdminClient
) -> None:
    topic = "recreated-while-planned"
    fill(servers, admin, topic, "old", 10)
    with Query(servers, topic) as query:
        start, planned = query.offset, query.plan()
    fill(servers, admin, topic, "new", 15)
    with Query(servers, topic, start) as query, pytest.raises(DataLossError, match="created again"):
        query.run(planned)
    with Query(servers, topic, start, failOnDataLoss="false") as query:
        assert query.run(planned) == []
        assert query.next() == sorted(f"new{n}" for n in range(15))


def test_a_batch_that_sparks_own_source_has_planned_of_a_topic_that_was_created_again_is_data_loss(
    servers: str, admin: KafkaAdminClient
) -> None:
    """It keeps no ids, and plans by the name alone; the checkpoint's batch before it is ours."""
    topic = "recreated-between-sources"
    fill(servers, admin, topic, "old", 10)
    with Query(servers, topic) as query:
        assert len(query.next()) == 10
        checkpoint = query.offset
    planned: Any = {topic: {"0": 15}}
    with Query(servers, topic, checkpoint) as query:
        producer = KafkaProducer(bootstrap_servers=servers)
        for number in range(10, 15):
            producer.send(topic, b"old%d" % number)
        producer.close()
        assert query.run(planned) == [f"old{n}" for n in range(10, 15)]
    fill(servers, admin, topic, "new", 15)
    with Query(servers, topic, checkpoint) as query, pytest.raises(DataLossError, match="created again"):
        query.run(planned)
    with Query(servers, topic, checkpoint, failOnDataLoss="false") as query:
        assert query.run(planned) == sorted(f"new{n}" for n in range(15))
        assert query.next() == []


def values(reader: KafkaReader | KafkaStreamReader, partitions: Sequence[InputPartition]) -> list[str]:
    return sorted(v.as_py().decode() for part in partitions for piece in reader.read(part) for v in piece["value"])


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "batch"])
def test_what_was_planned_of_a_topic_is_not_read_of_one_that_was_created_meanwhile(
    servers: str, admin: KafkaAdminClient, is_stream: bool
) -> None:
    """Tasks that waited for a core, or a DataFrame that is used again: Spark keeps what a Python source planned."""
    topic = f"recreated-before-read-{is_stream}"
    fill(servers, admin, topic, "old", 10)
    readers: list[tuple[KafkaReader | KafkaStreamReader, Sequence[InputPartition]]] = []
    for loss in ("true", "false"):
        if is_stream:
            query = Query(servers, topic, failOnDataLoss=loss)
            readers.append((query.reader, query.reader.partitions(query.offset, query.plan())))
            query.reader.stop()
        else:
            options = parse_read_options(
                {"kafka.bootstrap.servers": servers, "subscribe": topic, "failOnDataLoss": loss},
                is_stream=False,
            )
            reader = KafkaReader(options, chosen_columns(full_schema(options), options))
            readers.append((reader, reader.partitions()))
        assert values(*readers[-1]) == [f"old{n}" for n in range(10)]
    fill(servers, admin, topic, "new", 25)
    with pytest.raises(DataLossError, match="from offset 0 to 10, but its topic was deleted and created again"):
        values(*readers[0])
    assert values(*readers[1]) == []


def test_available_now_notices_a_topic_that_is_created_again_between_two_micro_batches(
    servers: str, admin: KafkaAdminClient
) -> None:
    topic = "recreated-available-now"
    fill(servers, admin, topic, "old", 20)
    with Query(servers, topic, maxOffsetsPerTrigger="5") as query:
        query.reader.prepareForTriggerAvailableNow()
        assert query.run(query.plan(ReadMaxRows(5))) == [f"old{n}" for n in range(5)]
        fill(servers, admin, topic, "new", 40)
        with pytest.raises(DataLossError, match="topic recreated-available-now was deleted and created again"):
            query.run(query.plan(ReadMaxRows(5)))


def test_an_offset_of_sparks_own_source_is_taken_as_it_is(servers: str, admin: KafkaAdminClient) -> None:
    """It has no topic ids; ours reads the same to it but for names without partitions."""
    topic = "recreated-moved"
    fill(servers, admin, topic, "v", 10)
    with Query(servers, topic, {topic: {"0": 7}}) as query:
        assert query.next() == ["v7", "v8", "v9"]
        assert {name: numbers for name, numbers in query.offset.items() if numbers} == {topic: {"0": 10}}


def test_a_query_resumes_on_another_cluster_at_its_offsets(
    servers: str, admin: KafkaAdminClient, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The mirror's copy has the same records at the same offsets, and a topic id of its own."""
    topic = "followed-to-the-copy"
    copies = KafkaAdminClient(bootstrap_servers=target)
    fill(servers, admin, topic, "v", 10)
    fill(target, copies, topic, "v", 15)
    for loss in ("true", "false"):
        with Query(servers, topic) as query:
            assert len(query.next()) == 10
            checkpoint = query.offset
        with Query(target, topic, checkpoint, failOnDataLoss=loss) as query:
            assert query.next() == [f"v{n}" for n in range(10, 15)]
            assert query.plan() == query.offset
    assert "resumes at its offsets" in caplog.text
    with Query(target, topic, checkpoint) as query:  # what the other cluster's run had planned
        assert query.run({**checkpoint, topic: {"0": 12}}) == ["v10", "v11"]
        assert query.next() == ["v12", "v13", "v14"]
        moved = query.offset
    beyond = {**checkpoint, topic: {"0": 20}}
    with Query(target, topic, beyond) as query, pytest.raises(DataLossError, match="was 20 and is 15"):
        query.next()
    fill(target, copies, topic, "new", 20)
    copies.close()
    with Query(target, topic, moved) as query, pytest.raises(DataLossError, match="was deleted and created again"):
        query.next()


def test_an_idle_query_writes_down_the_ids_of_the_cluster_that_it_moved_to(
    servers: str, admin: KafkaAdminClient, target: str
) -> None:
    topic = "followed-while-idle"
    copies = KafkaAdminClient(bootstrap_servers=target)
    fill(servers, admin, topic, "v", 10)
    fill(target, copies, topic, "v", 10)
    copies.close()
    with Query(servers, topic) as query:
        query.next()
        checkpoint = query.offset
    with Query(target, topic, checkpoint) as query:
        assert query.next() == []
        assert query.offset != checkpoint and query.offset[topic] == {"0": 10}
        assert query.plan() == query.offset


def test_a_query_that_came_from_sparks_own_source_notices_a_recreation_while_it_is_idle(
    servers: str, admin: KafkaAdminClient
) -> None:
    topic = "recreated-idle-moved"
    fill(servers, admin, topic, "old", 10)
    with Query(servers, topic, {topic: {"0": 10}}) as query:
        assert query.next() == []
        known = query.offset
        assert known != {topic: {"0": 10}} and query.plan() == known
        fill(servers, admin, topic, "new", 25)
        with pytest.raises(DataLossError, match="topic recreated-idle-moved was deleted and created again"):
            query.next()
    with Query(servers, topic, known, failOnDataLoss="false") as query:
        assert query.next() == sorted(f"new{n}" for n in range(25))


def test_a_group_stands_where_the_last_micro_batch_ended(servers: str, admin: KafkaAdminClient) -> None:
    """Spark tells a source that a batch is done only when it runs the next one; it plans that one before."""
    topic, group = "group-progress", "group-progress-query"
    fill(servers, admin, topic, "v", 10)
    with Query(servers, topic, **{"commitOffsets": "true", "kafka.group.id": group}) as query:
        query.reader.prepareForTriggerAvailableNow()
        query.next()
        query.plan()
    committed = admin.list_group_offsets({group: None})[group][TopicPartition(topic, 0)].offset
    assert committed == 10


def test_a_query_that_turns_to_read_committed_waits_for_a_transaction_that_it_has_read(
    servers: str, admin: KafkaAdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "turned-to-committed"
    fill(servers, admin, topic, "r", 5)
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id="turned")
    producer.init_transactions()
    producer.begin_transaction()
    sent = [producer.send(topic, b"open%d" % n) for n in range(3)]
    producer.flush()
    assert [future.get(10).offset for future in sent] == [5, 6, 7]
    with Query(servers, topic) as query:
        assert len(query.next()) == 8
        at = json.loads(json.dumps(query.offset))
        for n in range(2):
            producer.send(topic, b"late%d" % n).get(10)
        planned = query.plan()  # which this run does not come to read
    committed = {"isolation.level": "read_committed", "fetchOffset.numRetries": "1"}
    with Query(servers, topic, at, **committed) as query:
        assert query.next() == []
        assert f"{topic}-0 is at offset 8, and the last stable offset, where a transaction that is open" in caplog.text
        assert "is 5: nothing is read there" in caplog.text
    with Query(servers, topic, at, **committed, **{"kafkaConsumer.pollTimeoutMs": "1500"}) as query:
        with pytest.raises(ClusterUnreachableError, match="no records at offset 8, and the last stable .* is 5"):
            query.run(planned)
    with pytest.raises(OptionError, match=f"{topic}-0: .* resolves to 8, after the end 5, or the last stable offset"):
        start = json.dumps({topic: {"0": 8}})
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": start}
        options = parse_read_options({**given, **committed}, is_stream=False)
        KafkaReader(options, chosen_columns(full_schema(options), options)).partitions()
    producer.commit_transaction()
    producer.close()
    with Query(servers, topic, at, **committed) as query:
        deadline = time.monotonic() + 30
        while (end := query.plan()) == at and time.monotonic() < deadline:
            time.sleep(0.05)  # the coordinator writes the marker once the commit is answered
        assert query.run(end) == ["late0", "late1"]
