"""Topics and records of one real cluster through confluent-kafka, which shares no code with the mirror."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

FILLER = "tolerant.filler"
QUIET = {"log_level": 0}  # a broker that is away is part of the plan


class Place(NamedTuple):
    partition: int
    offset: int
    timestamp: int


class Found(NamedTuple):
    """A record as a consumer sees it."""

    key: bytes | None
    place: Place
    is_filler: bool


class Topics:
    """Topics and records of one cluster, through confluent-kafka."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers, **QUIET})

    def create(self, topic: str, partitions: int = 1, replicas: Any = 1, **config: str) -> None:
        """A topic that can be written; `replicas` is a number or node ids by partition."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        where = {"replica_assignment": replicas} if isinstance(replicas, list) else {"replication_factor": replicas}
        self._finish(self.admin.create_topics([NewTopic(topic, partitions, config=named, **where)]))
        self.wait(topic, partitions)

    def wait(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
            if len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values()):
                return
            time.sleep(0.1)
        raise AssertionError(f"{topic} has no {partitions} partitions with leaders after 30 s")

    def delete(self, topic: str) -> None:
        self._finish(self.admin.delete_topics([topic]))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.partitions(topic):
            time.sleep(0.1)

    def grow(self, topic: str, partitions: int) -> None:
        self._finish(self.admin.create_partitions([NewPartitions(topic, partitions)]))
        self.wait(topic, partitions)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        self._finish(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def configure(self, name: str, key: str, value: str, *, is_broker: bool = False) -> None:
        """Sets a topic's configuration, or a broker's (its id in digits)."""
        kind = ResourceType.BROKER if is_broker else ResourceType.TOPIC
        change = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        self._finish(self.admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[change])]))

    def partitions(self, topic: str) -> int:
        found = self.admin.list_topics(timeout=10).topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def ends(self, topic: str) -> list[tuple[int, int]]:
        """(log start, log end) of each partition; none if the topic is not there."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "ends", **QUIET})
        try:
            return [
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)
                for n in range(self.partitions(topic))
            ]
        except KafkaException:
            return []
        finally:
            consumer.close()

    def read(self, topic: str, isolation: str = "read_committed") -> list[Found]:
        """Every record of a topic as a consumer of this isolation level sees it; none if it is not there."""
        count = self.partitions(topic)
        if not count:
            return []
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                **QUIET,
            }
        )
        found: list[Found] = []
        open_partitions = set(range(count))
        try:
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in open_partitions])
            deadline = time.monotonic() + 120
            while open_partitions and time.monotonic() < deadline:
                for message in consumer.consume(5000, 1.0):
                    if message.error():
                        if message.error().code() == KafkaError._PARTITION_EOF:
                            open_partitions.discard(message.partition())
                        continue
                    place = Place(message.partition(), message.offset(), message.timestamp()[1])
                    is_filler = any(name == FILLER for name, _ in message.headers() or ())
                    found.append(Found(message.key(), place, is_filler))
        finally:
            consumer.close()
        assert not open_partitions, f"{topic} could not be read to its end"
        return found

    def write(
        self,
        topic: str,
        first: int,
        count: int,
        *,
        partitions: int = 1,
        size: int = 100,
        prefix: str = "k",
        transaction: int = 0,
        abort_every: int = 0,
        producer: str = "",
        **config: Any,
    ) -> None:
        """Records `first` .. `first + count` of keys prefix + number, number modulo `partitions` being the partition.

        `transaction` is the number of records in each transaction (0: none); every `abort_every`-th is aborted.
        """
        settings = {"bootstrap.servers": self.servers, "linger.ms": 20, "acks": "all", **QUIET, **config}
        if transaction:
            settings["transactional.id"] = producer or f"writer-{topic}"
        writer = Producer(settings)
        value = b"." * size
        if transaction:
            writer.init_transactions(60)
        for number in range(first, first + count):
            place = number - first
            if transaction and place % transaction == 0:
                writer.begin_transaction()
            while True:
                try:
                    writer.produce(topic, value, b"%s%07d" % (prefix.encode(), number), number % partitions)
                    break
                except BufferError:
                    writer.poll(0.1)
            if transaction and (place % transaction == transaction - 1 or number == first + count - 1):
                if abort_every and place // transaction % abort_every == abort_every - 1:
                    writer.flush(60)  # else librdkafka drops what it has not sent yet
                    writer.abort_transaction(60)
                else:
                    writer.commit_transaction(60)
        left = writer.flush(120)
        assert left == 0, f"{left} records of {topic} could not be written"

    @staticmethod
    def _finish(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(60)
