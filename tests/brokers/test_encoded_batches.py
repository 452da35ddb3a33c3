"""Brokers take the batches that are encoded from Arrow columns, and a stock consumer reads the rows back."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import errors as Errors
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.records.batch_encoding import encode_groups
from tolerant_client.records.codecs import CODEC_NAMES
from tolerant_client.records.record_batch import read_header, restamp
from tolerant_client.testing import KafkaCluster

T0 = 1_700_000_000_000
ROWS = 3_000
PARTITIONS = 3
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns() -> tuple[list[bytes | None], list[bytes | None], list[list[dict[str, object]] | None]]:
    """Each partition begins with a value of which lz4 cannot compress one block and can the next."""
    keys = [None if row % 3 == 0 else b"key%d" % row for row in range(ROWS)]
    values = [None if row % 7 == 0 else b"value %d " % row * (row % 40) for row in range(ROWS)]
    for row in range(0, ROWS, ROWS // PARTITIONS):
        values[row] = random.Random(row).randbytes(600_000) + bytes(200_000)
    headers = [
        [{"key": "trace", "value": b"%d" % row}, {"key": "none", "value": None}] if row % 5 == 0 else None
        for row in range(ROWS)
    ]
    return keys, values, headers


async def produce(cluster: Cluster, partition: TopicPartition, batch: memoryview) -> None:
    """Repeats while the leader of the new topic does not yet know that it is."""

    async def attempt() -> None:
        node = await cluster.leader(partition)
        (answer,) = await cluster.produce(node, {partition: batch})
        if answer.error_code:
            raise Errors.for_code(answer.error_code)(str(answer))

    await cluster.insist("producing", attempt)


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_a_stock_consumer_reads_what_was_encoded(kafka_cluster: KafkaCluster, codec: int) -> None:
    """The broker itself unpacks and checks every record of a produced batch, with Java's codecs."""
    servers, topic = kafka_cluster.bootstrap_servers, f"encoded-{CODEC_NAMES[codec]}"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    admin.close()
    keys, values, headers = columns()
    batches = encode_groups(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, HEADERS),
        T0 + np.arange(ROWS),
        [ROWS // PARTITIONS] * PARTITIONS,
        codec=codec,
        max_batch_bytes=900_000,
    )
    with Cluster({"bootstrap_servers": servers}) as cluster:
        cluster.run(cluster.connect)
        sent = 0
        for number, batch in batches:
            assert read_header(batch.data).codec == codec
            partition = TopicPartition(topic, number)
            restamp(batch.data, -1, -1, -1)
            cluster.run(produce, cluster, partition, batch.data)
            sent += 1
        assert sent > PARTITIONS
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    records = [next(consumer) for _ in range(ROWS)]
    consumer.close()
    records.sort(key=lambda record: (record.partition, record.offset))
    assert [
        (record.timestamp, record.key, record.value, [tuple(header) for header in record.headers]) for record in records
    ] == [
        (
            T0 + row,
            keys[row],
            values[row],
            [(header["key"], header["value"]) for header in headers[row] or []],
        )
        for row in range(ROWS)
    ]
