"""Incident 2, OffsetOutOfRange for a position that is in range (KAFKA-2477), replayed, and the true one beside it.

One Fetch answer in 15 says OFFSET_OUT_OF_RANGE for every partition that it is
about.  Our consumer must read every record once, in order; stock kafka-python
with auto_offset_reset=earliest starts again from the beginning of the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import TopicPartition

from support.mirror_link import append_batches
from tolerant_client import KafkaAdminClient, KafkaConsumer
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing import ErrorCode, FaultProxy, KafkaCluster
from tolerant_client.tracker.events import Event, OffsetOutOfRange

OFFSET_OUT_OF_RANGE = 1
PARTITIONS = 2
PER_BATCH = 50
RECORDS = 30_000
TOPIC = "incident-2-false-alarm"
DELETED = "incident-2-deleted"
PATIENCE = 60.0


def fill(servers: str, topic: str, partitions: int, records: int) -> None:
    """Numbered values, the number being the offset, in batches that many fetches are needed for."""

    def batch(first: int) -> bytes:
        numbers = range(first, first + PER_BATCH)
        return encode_batch([Record(0, 1_700_000_000_000, None, b"%010d" % n + b"." * 190) for n in numbers])

    starts = range(0, records, PER_BATCH)
    append_batches(servers, ((TopicPartition(topic, n), batch(first)) for first in starts for n in range(partitions)))


@pytest.fixture(scope="module")
def servers(kafka_cluster: KafkaCluster) -> Iterator[str]:
    servers = kafka_cluster.bootstrap_servers
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(DELETED, 1, 1)])
    fill(servers, TOPIC, PARTITIONS, RECORDS)
    fill(servers, DELETED, 1, 1_000)
    yield servers
    admin.delete_topics([TOPIC, DELETED])
    admin.close()


class Reading:
    """The numbers that a consumer read, by partition, until it had `wanted` of them, raised, or stood still.

    It stands still when `silence` polls of half a second in a row have brought nothing.
    """

    def __init__(self, consumer: Any, wanted: int, silence: int | None = None, arrow_every: int = 0) -> None:
        self.values: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        self.error: Exception | None = None
        partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        deadline = time.monotonic() + PATIENCE
        polls = silent = 0
        while self.count < wanted and silent != silence and time.monotonic() < deadline:
            polls += 1
            before = self.count
            try:
                if arrow_every and polls % arrow_every == 0:
                    for row in consumer.poll_arrow(timeout_ms=500, max_records=700).to_pylist():
                        self.values[row["partition"]].append(int(row["value"][:10]))
                else:
                    for tp, records in consumer.poll(timeout_ms=500).items():
                        self.values[tp.partition] += [int(record.value[:10]) for record in records]
            except OffsetOutOfRangeError as error:
                self.error = error
                return
            silent = silent + 1 if self.count == before else 0

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    @property
    def doubled(self) -> int:
        return self.count - sum(len(set(values)) for values in self.values.values())


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_a_false_alarm_moves_no_position(
    policy: str, servers: str, fault_proxy: Callable[..., FaultProxy], record_property: Callable[[str, object], None]
) -> None:
    fault = ErrorCode(OFFSET_OUT_OF_RANGE, api="Fetch", after=3, every=15)
    proxy = fault_proxy(faults=[fault])
    options: dict[str, Any] = {
        "bootstrap_servers": proxy.bootstrap_servers, "group_id": None, "auto_offset_reset": policy,
        "max_partition_fetch_bytes": 32_768, "fetch_max_bytes": 65_536,
    }  # fmt: skip
    events: list[Event] = []
    consumer = KafkaConsumer(recovery_listener=events.append, **options)
    try:
        ours = Reading(consumer, RECORDS * PARTITIONS, arrow_every=3 if policy == "earliest" else 0)
    finally:
        consumer.close()
    counted = consumer.recovery_counters.of("out_of_range")
    injected = proxy.injected["Fetch/ErrorCode"]

    proxy.faults = (fault,)
    stock_consumer = kafka.KafkaConsumer(**options)
    try:
        stock = Reading(stock_consumer, RECORDS * PARTITIONS, silence=4)
    finally:
        stock_consumer.close()
    said = f"ours {ours.count} records, {injected} false alarms; stock {stock.count}"
    said += f", {stock.doubled} doubled, {stock.error!r}"
    print(f"\nincident 2, auto_offset_reset={policy}: {said}")
    record_property("incident 2", said)

    alarms = [event for event in events if isinstance(event, OffsetOutOfRange)]
    assert ours.error is None
    assert ours.values == {n: list(range(RECORDS)) for n in range(PARTITIONS)}
    assert injected > 10
    assert alarms and counted == len(alarms)
    assert not any(alarm.is_believed for alarm in alarms)
    assert all(alarm.earliest == 0 and alarm.latest == RECORDS for alarm in alarms)
    # What stock does with the same answers; if this fails, kafka-python has learnt to doubt.
    assert stock.doubled or stock.error is not None or stock.count < RECORDS * PARTITIONS


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
@pytest.mark.parametrize("how", ["poll", "poll_arrow"])
def test_records_that_were_really_deleted_are_written_down_once_and_the_policy_decides(
    policy: str, how: str, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    partition = TopicPartition(DELETED, 0)
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({partition: 600})
    admin.close()
    events: list[Event] = []
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset=policy, recovery_listener=events.append
    )
    found: list[int] = []
    caught: Exception | None = None

    def poll() -> list[int]:
        if how == "poll":
            return [record.offset for records in consumer.poll(timeout_ms=200).values() for record in records]
        offsets: list[int] = consumer.poll_arrow(timeout_ms=200)["offset"].to_pylist()
        return offsets

    try:
        consumer.assign([partition])
        consumer.seek(partition, 250)
        deadline = time.monotonic() + PATIENCE
        with caplog.at_level(logging.WARNING, "tolerant_client"):
            while time.monotonic() < deadline and caught is None and consumer.position(partition) in (250, None):
                try:
                    found += poll()
                except OffsetOutOfRangeError as error:
                    caught = error
            for _ in range(3):
                if caught is None:
                    found += poll()
        if caught is not None:
            consumer.seek(partition, 700)
            while not found and time.monotonic() < deadline:
                found += poll()
    finally:
        consumer.close()

    alarms = [event for event in events if isinstance(event, OffsetOutOfRange)]
    assert [(a.topic, a.partition, a.offset, a.earliest, a.latest, a.is_believed) for a in alarms] == [
        (DELETED, 0, 250, 600, 1_000, True)
    ]
    told = [record.getMessage() for record in caplog.records if "out of range" in record.getMessage()]
    assert len(told) == 1
    assert (
        f"{DELETED}-0: position 250 is out of range [600, 1000]: 350 offsets were deleted before they were read"
        in told[0]
    )
    if policy == "none":
        assert isinstance(caught, OffsetOutOfRangeError) and caught.args == ({partition: 250},)
        assert found[0] == 700
    else:
        assert caught is None
        assert found[:1] == ([600] if policy == "earliest" else [])


def test_a_position_above_the_end_is_reset_by_policy_and_told(servers: str) -> None:
    partition = TopicPartition(TOPIC, 0)
    events: list[Event] = []
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset="latest", recovery_listener=events.append
    )
    try:
        consumer.assign([partition])
        consumer.seek(partition, RECORDS + 10)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and consumer.position(partition) != RECORDS:
            assert consumer.poll(timeout_ms=200) == {}
        assert consumer.position(partition) == RECORDS
    finally:
        consumer.close()
    alarms = [event for event in events if isinstance(event, OffsetOutOfRange)]
    assert [(alarm.offset, alarm.is_believed) for alarm in alarms] == [(RECORDS + 10, True)]


def test_a_seek_while_the_refusal_is_looked_into_is_obeyed(servers: str) -> None:
    partition = TopicPartition(TOPIC, 1)
    events: list[Event] = []
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset="none", recovery_listener=events.append,
        retry_backoff_ms=2_000,
    )  # fmt: skip
    try:
        consumer.assign([partition])
        consumer.seek(partition, RECORDS + 10)
        deadline = time.monotonic() + PATIENCE
        while partition not in consumer._fetcher._doubts and time.monotonic() < deadline:
            consumer.poll(timeout_ms=50)
        consumer.seek(partition, 123)
        found: list[int] = []
        while not found and time.monotonic() < deadline:
            found = [record.offset for record in consumer.poll(timeout_ms=200).get(partition, [])]
        assert found[0] == 123
    finally:
        consumer.close()
    assert not [event for event in events if isinstance(event, OffsetOutOfRange)]
