"""The topics that every scenario reads, filled once: all that a Kafka log can hold in a few thousand records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.records.record_batch import Record, encode_batch

T0 = 1_700_000_000_000
SECOND = 1_000
STEPS = 60
UNEVEN = (400, 30, 1, 50, 3, 120)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 90.0
NOT_THERE_YET = (3, 5, 6)  # what a broker says of a partition that was created a moment ago

_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "100",
    "delete.retention.ms": "100000000",
}


def step(offset: int, time: int | None = None) -> Record:
    """A plain record, one second after the one before it."""
    return Record(offset, T0 + offset * SECOND if time is None else time, b"k%d" % (offset % 7), b"v%d" % offset, ())


def mixed(count: int) -> list[Record]:
    """Null and empty keys, values and headers, tombstones, header keys twice and header keys that are no UTF-8."""
    headers = (
        (),
        (("trace", b"1"), ("trace", b"2")),
        (("none", None), ("empty", b""), ("", b"no name")),
        (("gr\u00f6\u00dfe", b"\x00\xff"), (b"\xff\xfe".decode("utf-8", "surrogateescape"), b"no UTF-8")),
    )
    keys = (None, b"", b"key", b"\x00\x80\xff", "\u4e2d\U0001f600".encode())
    return [
        Record(
            i,
            T0 + i,
            keys[i % 5] if i % 3 else b"key%d" % i,
            None if i % 7 == 0 else b"" if i % 11 == 0 else b"value %d " % i * (i % 40),
            headers[i % 4],
        )
        for i in range(count)
    ]


class Filler:
    """Makes topics and appends whole batches to their partitions."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = KafkaAdminClient(bootstrap_servers=servers)
        self.raw = Cluster({"bootstrap_servers": servers})
        self.raw.run(self.raw.connect)

    def close(self) -> None:
        self.raw.close()
        self.admin.close()

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        configs = {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])

    def append(self, topic: str, partition: int, records: Sequence[Record], codec: int = 0) -> None:
        place = TopicPartition(topic, partition)
        batch = memoryview(encode_batch(records, codec=codec))

        def is_appended() -> bool:
            node = self.raw.run(self.raw.leader, place)
            (answer,) = self.raw.run(self.raw.produce, node, {place: batch})
            assert answer.error_code in (0, *NOT_THERE_YET), answer
            return answer.error_code == 0

        _wait(is_appended, f"{topic}-{partition} to have a leader")

    def steps(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        self.append(topic, partition, [step(offset) for offset in offsets])

    def cut(self, topic: str, partition: int, offset: int) -> None:
        """Moves the start of the log."""
        self.admin.delete_records({TopicPartition(topic, partition): offset})

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])
        _wait(lambda: topic not in self.raw.run(self.raw.partitions, None), f"{topic} to be gone")

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions({topic: partitions})
        _wait(lambda: len(self.raw.run(self.raw.partitions, [topic]).get(topic, ())) == partitions, f"{topic} to grow")


def fill(filler: Filler) -> KafkaProducer:
    """Fills all topics; the producer that is returned holds a transaction open until it is closed."""
    filler.create("steps", 2)
    filler.steps("steps", 0, range(STEPS))
    filler.steps("steps", 1, range(STEPS))
    filler.create("others", 1)
    filler.steps("others", 0, range(0, 30, 3))
    filler.create("mixed", 3)
    filler.append("mixed", 0, mixed(300))
    for first in range(0, 200, 20):
        filler.append("mixed", 1, mixed(200)[first : first + 20])
    for number, name in enumerate(CODECS):
        filler.create(f"codec-{name}", 1)
        filler.append(f"codec-{name}", 0, mixed(150), codec=number)
    filler.create("append-time", 2, message_timestamp_type="LogAppendTime")
    for partition in range(2):
        filler.append("append-time", partition, mixed(40))
        filler.append("append-time", partition, mixed(40), codec=3)
    filler.create("empty", 2)
    filler.create("shortened", 3)
    for partition, start in ((0, 20), (1, 50)):
        filler.append("shortened", partition, [step(i) for i in range(50)])
        filler.cut("shortened", partition, start)
    filler.steps("shortened", 2, range(10))
    filler.create("restless-times", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    times = [T0 + (i * 7919) % 100 * SECOND for i in range(100)] + [-1, 0, T0, T0, 253_402_300_799_000]
    filler.append("restless-times", 0, [step(i, time) for i, time in enumerate(times)])
    for name in ("pattern.one", "pattern-two", "patternXthree", "Pattern.four", "a_b.c-D_0"):
        filler.create(name, 1)
        filler.steps(name, 0, range(5))
    filler.create("big", 1, max_message_bytes="9000000")
    for size in (3_000_000, 10, 5_000_000, 1_000):
        filler.append("big", 0, [Record(0, T0, b"%d" % size, b"b" * size, ())])
    filler.append("big", 0, [Record(0, T0, b"zeros", bytes(4_000_000), ())], codec=4)
    filler.create("uneven", 6)
    for partition, count in enumerate(UNEVEN):
        filler.steps("uneven", partition, range(count))
    producer = _transactional(filler)
    _compacted(filler)
    return producer


def _compacted(filler: Filler) -> None:
    filler.create("compacted", 1, **_COMPACTED)
    for start in range(0, 200, 50):
        keys = {i: i % 30 if i % 4 else i for i in range(start, start + 50)}
        filler.append("compacted", 0, [step(i)._replace(key=b"key%d" % key) for i, key in keys.items()])
        time.sleep(0.15)  # the next batch opens a new segment
    filler.steps("compacted", 0, range(200, 203))
    # The cleaner sleeps 15 s by default; a changed interval wakes it.
    filler.admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "100"})])

    def is_cleaned() -> bool:
        consumer = KafkaConsumer(bootstrap_servers=filler.servers, enable_auto_commit=False)
        try:
            consumer.assign([TopicPartition("compacted", 0)])
            consumer.seek(TopicPartition("compacted", 0), 0)
            left = 0
            while batch := consumer.poll(timeout_ms=2_000):
                left += sum(map(len, batch.values()))
                if consumer.position(TopicPartition("compacted", 0)) >= 203:
                    break
            return left < 203
        finally:
            consumer.close()

    _wait(is_cleaned, "the cleaner to have compacted")


def _transactional(filler: Filler) -> KafkaProducer:
    """Partition 0: committed, aborted, plain, committed, open.  1: all aborted.  2: one committed, its marker last."""
    filler.create("transactional", 3)
    producer = KafkaProducer(
        bootstrap_servers=filler.servers, transactional_id="parity", linger_ms=5, transaction_timeout_ms=900_000
    )
    producer.init_transactions()

    def send(partition: int, name: str, count: int = 10) -> None:
        for i in range(count):
            producer.send("transactional", key=name.encode(), value=b"%d" % i, partition=partition, timestamp_ms=T0 + i)

    def transaction(name: str, commits: bool, *partitions: int) -> None:
        producer.begin_transaction()
        for partition in partitions:
            send(partition, name)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()

    transaction("committed", True, 0, 2)
    transaction("aborted", False, 0, 1)
    filler.steps("transactional", 0, range(5))
    transaction("again", True, 0)
    producer.begin_transaction()
    send(0, "open")
    producer.flush()
    return producer


def _wait(is_done: object, what: str) -> None:
    assert callable(is_done)
    end = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.1)
