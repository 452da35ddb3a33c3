"""Two independent readers of whole logs: stock kafka-python and librdkafka, hundreds of partitions with one consumer.

Both read from the log's start to the end that the isolation level shows, check
CRCs, and say the same thing about a record or one of them has a bug.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

import confluent_kafka
import kafka
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.records.record_batch import control_type, iter_batches

_READ_COMMITTED = 1


class LogRecord(NamedTuple):
    """A record as a consumer shows it; `timestamp_type` is 0 CreateTime, 1 LogAppendTime, -1 none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def __str__(self) -> str:
        return (
            f"offset {self.offset}, timestamp {self.timestamp} ({self.timestamp_type}), key {_short(self.key)},"
            f" value {_short(self.value)}, headers {self.headers}"
        )


def _short(data: bytes | None) -> str:
    return repr(data) if data is None or len(data) <= 40 else f"{data[:30]!r}... of {len(data)} bytes"


Logs = dict[TopicPartition, dict[int, LogRecord]]


class Bounds(NamedTuple):
    """Of one log; `stable` is the last stable offset, which brokers may tell to be below the start: nothing is there."""

    start: int
    stable: int
    end: int


def read_bounds(servers: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:

        async def run() -> dict[TopicPartition, Bounds]:
            starts = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
            stable = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=_READ_COMMITTED)
            ends = await cluster.list_offsets(dict.fromkeys(partitions, LATEST))
            return {p: Bounds(starts[p], max(stable[p], starts[p]), ends[p]) for p in partitions}

        return cluster.run(run)


def show_log(servers: str, partition: TopicPartition, from_offset: int = 0) -> str:
    """The batches of a log from an offset on, a line each: what a failed test prints."""
    lines = []
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:

        async def run() -> None:
            bounds = await cluster.list_offsets({partition: EARLIEST}), await cluster.list_offsets({partition: LATEST})
            at, end = max(bounds[0][partition], from_offset), bounds[1][partition]
            node_id = await cluster.leader(partition)
            while at < end:
                (part,) = await cluster.fetch(node_id, {partition: at}, max_wait_ms=0)
                for header, batch in iter_batches(part.records):
                    what = (
                        f"{header.record_count} records" if not header.is_control else f"marker {control_type(batch)}"
                    )
                    kind = " in a transaction" if header.is_transactional and not header.is_control else ""
                    who = f"{header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}"
                    lines.append(f"{header.base_offset} to {header.last_offset}: {what} of {who}{kind}")
                    at = header.next_offset

        cluster.run(run)
    return "\n".join(lines)


def read_with_kafka_python(
    servers: str, partitions: Collection[TopicPartition], *, committed: bool, patience_s: float = 60
) -> Logs:
    """Everything that stock kafka-python shows; raises TimeoutError where it stands still."""
    bounds = read_bounds(servers, partitions)
    left = {p: (b.stable if committed else b.end) for p, b in bounds.items()}
    left = {p: end for p, end in left.items() if end > bounds[p].start}
    found: Logs = {p: {} for p in partitions}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed" if committed else "read_uncommitted",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        check_crcs=True,
        max_poll_records=20_000,
        max_partition_fetch_bytes=4 << 20,
        fetch_max_wait_ms=50,
    )
    try:
        consumer.assign(list(left))
        moved_at = time.monotonic()
        while left:
            answer = consumer.poll(timeout_ms=100, max_records=20_000)
            for partition, records in answer.items():
                log = found[partition]
                for r in records:
                    record = LogRecord(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers))
                    assert r.offset not in log, f"{partition} offset {r.offset} was read twice"
                    log[r.offset] = record
            # A consumer's position passes markers and aborted records, so it gets to the end of every log.
            done = [p for p, end in left.items() if consumer.position(p) >= end]
            if done:
                for partition in done:
                    del left[partition]
                consumer.pause(*done)
            if answer or done:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > patience_s:
                places = {p: (consumer.position(p), end) for p, end in left.items()}
                raise TimeoutError(f"kafka-python stands still at (position, end) {places}")
    finally:
        consumer.close()
    return found


def read_with_confluent(
    servers: str, partitions: Collection[TopicPartition], *, committed: bool, patience_s: float = 60
) -> Logs:
    """Everything that librdkafka shows; raises TimeoutError where it stands still."""
    found: Logs = {p: {} for p in partitions}
    # librdkafka tells of an end only where it is its position (rdkafka_fetcher.c).  Where the first records of an open
    # transaction were deleted, up to within a batch, brokers put the last stable offset at that batch, before the start.
    bounds = read_bounds(servers, partitions)
    left = {p for p, b in bounds.items() if (b.stable if committed else b.end) > b.start}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "log-readers",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
            "log_level": 2,
        }
    )
    try:
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(p.topic, p.partition, beginning) for p in left])
        moved_at = time.monotonic()
        while left:
            messages = consumer.consume(10_000, timeout=0.2)
            for message in messages:
                partition = TopicPartition(message.topic(), message.partition())
                error = message.error()
                if error is None:
                    record = _of_confluent(message)
                    assert record.offset not in found[partition], f"{partition} offset {record.offset} was read twice"
                    found[partition][record.offset] = record
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    raise confluent_kafka.KafkaException(error)
            if messages:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > patience_s:
                raise TimeoutError(f"librdkafka stands still before the end of {sorted(left)}")
    finally:
        consumer.close()
    return found


def _of_confluent(message: Any) -> LogRecord:
    kind, timestamp = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    # TIMESTAMP_NOT_AVAILABLE 0, CREATE_TIME 1, LOG_APPEND_TIME 2
    return LogRecord(message.offset(), timestamp, kind - 1, message.key(), message.value(), headers)
