"""The sink's decisions where topics, transactional ids, attempts and groups are not what they were."""

from __future__ import annotations

from collections.abc import Iterator

import kafka
import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from support import sink_batch as sink_batches
from support.mirror_link import create_topic

from spark_integration.connections import close_pool
from spark_integration.writing.columns import WriteColumns
from spark_integration.writing.exactly_once import SinkBatch
from spark_integration.writing.options import parse_write_options
from spark_integration.writing.settlement import WrittenTask, commit_tasks
from spark_integration.writing.writer import write_task
from tolerant_client.testing import KafkaCluster


@pytest.fixture(autouse=True)
def no_connections_are_left() -> Iterator[None]:
    yield
    close_pool()


def committed_rows(servers: str, topic: str) -> list[bytes]:
    """What a consumer with read_committed sees of partition 0, which is all that these tests write to."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None, isolation_level="read_committed"
    )
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            found += [r.value for records in consumer.poll(timeout_ms=500).values() for r in records]
        return found
    finally:
        consumer.close()


def write_to_topics(servers: str, place: SinkBatch, topics: list[str]) -> list[WrittenTask]:
    """One task, one row to each topic: the topic's name."""
    options = parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"})
    rows = pa.record_batch([pa.array(topics), pa.array([t.encode() for t in topics])], names=["topic", "value"])
    return [write_task(options, WriteColumns(0, None, 1, None, None), place, iter([rows]))]


@pytest.mark.parametrize("deleted", ["first", "last"])
def test_a_repeat_obeys_a_decision_although_a_topic_was_deleted(kafka_cluster: KafkaCluster, deleted: str) -> None:
    """Brokers forget the offsets that stand beside a deleted topic: the decision stands beside the others, too."""
    servers, name = kafka_cluster.bootstrap_servers, f"decided-beside-{deleted}"
    topics = [f"{name}-{letter}" for letter in "abc"]
    for topic in topics:
        create_topic(servers, topic, 1)
    options = parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"})
    commit_tasks(options, write_to_topics(servers, SinkBatch(name, name, "1a" * 16, 0), topics))
    gone = topics[0] if deleted == "first" else topics[-1]
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_topics([gone])
    admin.close()
    create_topic(servers, gone, 1)
    close_pool()
    commit_tasks(options, write_to_topics(servers, SinkBatch(name, name, "1b" * 16, 0), topics))
    assert {topic: committed_rows(servers, topic) for topic in topics if topic != gone} == {
        topic: [topic.encode()] for topic in topics if topic != gone
    }
