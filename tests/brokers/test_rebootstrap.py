"""A cluster whose brokers come back at other addresses: clients that the bootstrap servers can lead there are led there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic

import tolerant_client
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.node import HOST, free_ports

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The bootstrap servers of a broker, and a function that kills it and starts it again at another port."""
    ports = free_ports(2)
    running = [KafkaCluster(work_dir=tmp_path / "kafka", ports=ports[:1], heap="256m").start()]

    def move() -> None:
        running.pop().close()
        running.append(KafkaCluster(work_dir=tmp_path / "kafka", ports=ports[1:], heap="256m").start())

    yield ",".join(f"{HOST}:{port}" for port in ports), move
    running.pop().close()


def patiently(ask: Callable[[], Any], seconds: float = 5.0) -> Any:
    """What an admin call returns: while no broker can be connected to, it fails at once, as in kafka-python."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except Errors.NodeNotReadyError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


class Flow:
    """A producer that sends a number each 50 ms, and a group that reads them, both in threads."""

    def __init__(self, servers: str, topic: str, **producer: Any) -> None:
        self.sent: list[Any] = []
        self.read: list[int] = []
        self.errors: list[Exception] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, servers, topic, options))
            for work, options in ((self._send, producer), (self._read, {}))
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any, servers: str, topic: str, options: dict[str, Any]) -> None:
        try:
            work(servers, topic, options)
        except Exception as error:
            self.errors.append(error)

    def _send(self, servers: str, topic: str, options: dict[str, Any]) -> None:
        with tolerant_client.KafkaProducer(bootstrap_servers=servers, **options) as producer:
            while not self._is_over.wait(0.05):
                self.sent.append(producer.send(topic, b"%d" % len(self.sent)))
            producer.flush(30)

    def _read(self, servers: str, topic: str, _: dict[str, Any]) -> None:
        with tolerant_client.KafkaConsumer(
            topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            while not self._is_over.is_set() or len(self.read) < len(self.sent):
                for records in consumer.poll(200).values():
                    self.read += [int(record.value) for record in records]
                if self._is_over.is_set() and self.deadline < time.monotonic():
                    return

    deadline = float("inf")

    def grows(self, seconds: float) -> bool:
        """Whether the group reads numbers that are sent from now on."""
        beyond, until = len(self.sent) + 1, time.monotonic() + seconds
        while time.monotonic() < until:
            if self.errors:
                raise self.errors[0]
            if self.read and self.read[-1] >= beyond:
                return True
            time.sleep(0.05)
        return False

    def end(self) -> None:
        self.deadline = time.monotonic() + 30
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)


def test_clients_and_the_mirrors_view_find_a_broker_at_its_new_address(moving: tuple[str, Callable[[], None]]) -> None:
    servers, move = moving
    admin = tolerant_client.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic("moved", 1, 1)])
    flow = Flow(servers, "moved")
    with Cluster({"bootstrap_servers": servers}) as cluster:
        place = kafka.TopicPartition("moved", 0)
        try:
            assert flow.grows(30)
            before = cluster.run(cluster.list_offsets, {place: LATEST})[place]
            move()
            assert flow.grows(10), "the group reads what is sent after the move"
            assert cluster.run(cluster.list_offsets, {place: LATEST})[place] > before
            assert "moved" in patiently(admin.list_topics)
        finally:
            flow.end()
            admin.close()
    assert not flow.errors and [future.value.offset for future in flow.sent] == list(range(len(flow.sent)))
    assert flow.read == list(range(len(flow.sent))), "nothing is lost, doubled or out of order"


def test_a_log_that_was_written_before_and_after_a_restart_is_read_without_a_pause(
    moving: tuple[str, Callable[[], None]],
) -> None:
    """Its leader epoch changes in the middle, where kafka-python up to 3.0.5 validated a position for ever."""
    servers, move = moving
    with tolerant_client.KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("epochs", 2, 1)])
    with tolerant_client.KafkaProducer(bootstrap_servers=servers) as producer:
        for first in (0, 400):
            for number in range(first, first + 400):
                for partition in range(2):
                    producer.send("epochs", b"%d" % number, partition=partition)
            producer.flush(30)
            if not first:
                move()
    read: dict[int, list[int]] = {0: [], 1: []}
    with tolerant_client.KafkaConsumer("epochs", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        until = time.monotonic() + 60
        while sum(map(len, read.values())) < 1600 and time.monotonic() < until:
            for place, records in consumer.poll(1000).items():
                read[place.partition] += [int(record.value) for record in records]
    assert read == {0: list(range(800)), 1: list(range(800))}


def test_without_it_a_client_stays_with_the_addresses_that_it_knows(moving: tuple[str, Callable[[], None]]) -> None:
    """As kafka-python's own clients do: it shows that the test above tests something."""
    servers, move = moving
    with (
        tolerant_client.KafkaProducer(bootstrap_servers=servers) as producer,
        tolerant_client.KafkaAdminClient(bootstrap_servers=servers) as admin,
        tolerant_client.KafkaConsumer(
            bootstrap_servers=servers, metadata_recovery_strategy="none", reconnect_backoff_max_ms=1_000
        ) as consumer,
    ):
        admin.create_topics([NewTopic("stays", 1, 1)])
        producer.send("stays", b"0").get(20)
        consumer.assign([kafka.TopicPartition("stays", 0)])
        consumer.seek_to_beginning()
        assert len(consumer.poll(10_000)) == 1
        move()
        producer.send("stays", b"1").get(20)
        assert consumer.poll(5_000) == {}
