"""Source topics that are not plain: transactions, compaction, batches of one record.

Transactions are written as batches and WriteTxnMarkers straight to the leader, both pipelined, on a broker that does
not ask the coordinator (transaction.partition.verification.enable=false): the log is that of a transactional
producer, and 20,000 transactions take seconds instead of minutes.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import crc32c
from cluster_topics import Topics
from confluent_kafka import Producer
from kafka.protocol.producer import WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.records.record_batch import ATTRIBUTES_OFFSET, CRC_OFFSET, Record, encode_batch

SOURCE_CONFIG = {
    "transaction.partition.verification.enable": "false",
    "log.cleaner.dedupe.buffer.size": str(64 << 20),
    "log.cleaner.backoff.ms": "300",
}
_PRODUCER_ID = 1 << 40  # the coordinator will not come to it
_SEQUENCE_OFFSET = 53
_ABORTED_EVERY = 20
_IN_FLIGHT = 64


def load(servers: str, topic: str, kind: str, records: int, size: int, partitions: int) -> int:
    """Makes and fills the topic; the number of committed records that a consumer finds in it."""
    name, _, number = kind.partition("-")
    if name == "transactions":
        return _transactions(servers, topic, records, size, partitions, int(number))
    if name == "compacted":
        return _compacted(servers, topic, records, size, partitions, int(number))
    Topics(servers).create(topic, partitions)
    keys = ((None, n % partitions) for n in range(records))
    _produce(servers, topic, keys, size, **{"batch.num.messages": 1, "linger.ms": 0})
    return records


def _transactions(servers: str, topic: str, records: int, size: int, partitions: int, per_transaction: int) -> int:
    """`per_transaction` records each, every 20th aborted; all partitions are in the same transactions."""
    Topics(servers).create(topic, partitions)
    now = int(time.time() * 1000)
    noise = random.Random(6)
    template = [Record(0, now, None, noise.randbytes(size)) for _ in range(per_transaction)]
    producer = {"producer_id": _PRODUCER_ID, "producer_epoch": 0, "base_sequence": 0}
    batch = bytearray(encode_batch(template, **producer, is_transactional=True))
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    where = [marker.WritableTxnMarkerTopic(name=topic, partition_indexes=list(range(partitions)))]
    rounds = -(-records // (per_transaction * partitions))
    committed = 0

    def stamped(sequence: int) -> memoryview:
        batch[_SEQUENCE_OFFSET : _SEQUENCE_OFFSET + 4] = sequence.to_bytes(4, "big")
        batch[CRC_OFFSET : CRC_OFFSET + 4] = crc32c.crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]).to_bytes(4, "big")
        return memoryview(bytes(batch))

    async def write() -> None:
        nonlocal committed
        await cluster.connect()
        places = [TopicPartition(topic, n) for n in range(partitions)]
        await cluster.list_offsets(dict.fromkeys(places, LATEST))
        node_id = await cluster.leader(places[0])
        pending: deque[Any] = deque()
        for number in range(rounds):
            data = stamped(number * per_transaction)
            pending.append(cluster.produce(node_id, dict.fromkeys(places, data), transactional_id="bench"))
            is_committed = number % _ABORTED_EVERY != _ABORTED_EVERY - 1
            committed += is_committed * per_transaction * partitions
            end = marker(
                producer_id=_PRODUCER_ID,
                producer_epoch=0,
                transaction_result=is_committed,
                topics=where,
                coordinator_epoch=0,
            )
            pending.append(cluster.manager.send(WriteTxnMarkersRequest(markers=[end]), node_id))
            while len(pending) > _IN_FLIGHT:
                _check(await pending.popleft())
        for future in pending:
            _check(await future)

    with Cluster({"bootstrap_servers": servers}, name="source") as cluster:
        cluster.run(write)
    return committed


def _check(answer: Any) -> None:
    if hasattr(answer, "markers"):
        codes = [p.error_code for m in answer.markers for t in m.topics for p in t.partitions]
    else:
        codes = [part.error_code for part in answer]
    assert not any(codes), answer


def _compacted(servers: str, topic: str, records: int, size: int, partitions: int, keep_every: int) -> int:
    """Every `keep_every`-th record has a key of its own, the others have one that is written again and again."""
    topics = Topics(servers)
    topics.create(topic, partitions, cleanup_policy="compact", segment_ms="1000", min_cleanable_dirty_ratio="0.01")

    def keys() -> Iterator[tuple[bytes | None, int]]:
        for n in range(records):
            yield (b"%010d" % n if n // partitions % keep_every == 0 else b"again", n % partitions)

    _produce(servers, topic, keys(), size)
    # What is left: the own keys, and one "again" a partition.
    expected = sum(1 for n in range(records) if n // partitions % keep_every == 0) + partitions
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1.2)  # segment.ms: only the next record closes the segment, and only a closed one is cleaned
        _produce(servers, topic, ((b"again", n) for n in range(partitions)), size)
        found = len(topics.read(topic))
        # The newest record of a partition and the last one before it are in segments that are not cleaned yet.
        if found <= expected + 3 * partitions:
            # From now on nothing changes any more.
            topics.configure(topic, "min.compaction.lag.ms", str(86_400_000))
            topics.configure(topic, "segment.ms", str(86_400_000))
            time.sleep(1)
            return len(topics.read(topic))
    raise AssertionError(f"the cleaner left {found:,} records instead of {expected:,} in {topic}")


def _produce(servers: str, topic: str, keys: Iterator[tuple[bytes | None, int]], size: int, **config: Any) -> None:
    settings = {"linger.ms": 50, "batch.size": 262144, "queue.buffering.max.messages": 1_000_000, "acks": "all"}
    writer = Producer({"bootstrap.servers": servers, **settings, **config})
    value = random.Random(6).randbytes(size)
    for key, partition in keys:
        while True:
            try:
                writer.produce(topic, value, key, partition)
                break
            except BufferError:
                writer.poll(0.05)
    assert writer.flush(120) == 0
