"""Probes are requests that a broker knows: none without a fault, no error in its log, no harm to its other clients.

ApiVersions, asked of a broker before 0.10, throws in a thread that serves other connections as well: their answers
are lost. Real brokers of 0.8.2, 0.9 and today.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

import kafka
import pytest
from kafka.structs import TopicPartition

from support.long import LONG
from support.zookeeper_kafka import ZooKeeperKafka
from tolerant_client import KafkaConsumer, KafkaProducer
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.testing import Drop, FaultProxy, KafkaCluster, RewriteCorrelationId

pytestmark = pytest.mark.broker

IDLE = 30.0 if LONG else 8.0
SUSPICIOUS = 0.1  # seconds
OLD = {"0.8.2.2": (0, 8, 2), "0.9.0.1": (0, 9)}


@pytest.fixture(scope="module", params=["0.8.2.2", pytest.param("0.9.0.1", marks=pytest.mark.long)])
def old_broker(request: pytest.FixtureRequest, start_old_broker: Callable[..., ZooKeeperKafka]) -> ZooKeeperKafka:
    """One network thread, so that whoever upsets it upsets everybody."""
    broker = start_old_broker(request.param, **{"num.network.threads": "1"})
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, api_version=OLD[broker.version])
    for n in range(50):
        producer.send("asked", b"%d" % n, partition=0).get(30)
    producer.close()
    return broker


class Bystander(threading.Thread):
    """A client with a plain socket that asks ListOffsets of nothing, over and over.

    `hung` counts answers that do not come, `slow` those that took so long that silence is suspicious.
    """

    def __init__(self, port: int, version: int = 0) -> None:
        super().__init__(daemon=True)
        self.port, self.version, self.is_over = port, version, False
        self.answered = self.hung = self.slow = 0
        self.start()

    def run(self) -> None:
        head = struct.pack(">hhih", 2, self.version, 7, 1) + b"b" + struct.pack(">ii", -1, 0)
        frame = struct.pack(">i", len(head)) + head
        while not self.is_over:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as sock:
                try:
                    while not self.is_over:
                        began = time.monotonic()
                        sock.sendall(frame)
                        if not sock.recv(64):
                            break
                        self.answered += 1
                        time.sleep(0.002)
                        self.slow += time.monotonic() > began + SUSPICIOUS
                except TimeoutError:
                    self.hung += 1


def complaints(broker: ZooKeeperKafka) -> list[str]:
    """What the broker has logged of trouble with our requests; not that somebody has hung up."""
    lines = broker.log_file.read_text(errors="replace").splitlines()
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    return [
        line
        for line, cause in pairs
        if ("ERROR" in line or "uncaught exception" in line)
        and not ("Closing socket" in line and ("reset by peer" in cause or "Broken pipe" in cause))
    ]


def test_old_broker_is_not_upset_by_our_clients_and_their_faults(old_broker: ZooKeeperKafka) -> None:
    before = complaints(old_broker)
    bystanders = [Bystander(old_broker.port) for _ in range(4)]
    version = OLD[old_broker.version]
    faults = [Drop(api="Fetch", after=3, every=5), RewriteCorrelationId(3, api="ListOffsets", count=1)]
    with FaultProxy({0: ("127.0.0.1", old_broker.port)}, faults=faults) as proxy:
        consumers = []
        for servers in (old_broker.bootstrap_servers, proxy.bootstrap_servers):
            consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None, api_version=version)
            consumer.assign([TopicPartition("asked", 0)])
            consumer.seek_to_beginning()
            consumers.append(consumer)
        got: Counter[int] = Counter()
        until = time.monotonic() + IDLE
        while time.monotonic() < until:
            for place, consumer in enumerate(consumers):
                got[place] += sum(map(len, consumer.poll(100).values()))
        for consumer in consumers:
            consumer.close()
        with Cluster({"bootstrap_servers": old_broker.bootstrap_servers, "api_version": version}) as cluster:

            async def read() -> None:
                until = time.monotonic() + IDLE / 2
                while time.monotonic() < until:
                    await cluster.fetch(1, {TopicPartition("asked", 0): 50}, max_wait_ms=500)

            cluster.run(read)
    for bystander in bystanders:
        bystander.is_over = True
        bystander.join(5)
    assert got == {0: 50, 1: 50}
    assert [bystander.hung for bystander in bystanders] == [0] * 4
    assert all(bystander.answered > 100 for bystander in bystanders)
    assert complaints(old_broker) == before


def probes_of(client: KafkaConsumer | KafkaProducer) -> int:
    return client.recovery_counters.of("probe")


def test_nothing_is_probed_while_nothing_is_wrong(kafka_cluster: KafkaCluster) -> None:
    """A consumer of 50 records a second, one that idles, and the producer that feeds them.

    It was four probes a second once.  Where a busy machine falls silent, a bystander sees it as well.
    """
    servers = kafka_cluster.bootstrap_servers
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    topic = f"probed-{time.time_ns()}"
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=servers)
    busy = KafkaConsumer(topic, bootstrap_servers=servers, group_id=f"busy-{topic}", auto_offset_reset="earliest")
    idle = KafkaConsumer(bootstrap_servers=servers, group_id=None)
    idle.assign([TopicPartition(topic, 0)])
    idle.seek_to_end()
    got = sent = 0
    clients = (producer, busy, idle)
    before: list[int] = []
    bystander = Bystander(int(servers.rpartition(":")[2]), version=1)
    began = time.monotonic()
    until = began + 3 + IDLE
    while time.monotonic() < until:
        producer.send(topic, b"x", partition=0)
        sent += 1
        got += sum(map(len, busy.poll(20).values()))
        idle.poll(0)
        if not before and time.monotonic() > began + 3:
            before = [probes_of(client) for client in clients]  # the group has joined
            bystander.slow = 0
    counted = sum(probes_of(client) for client in clients) - sum(before)
    bystander.is_over = True
    producer.flush()
    while got < sent:
        got += sum(map(len, busy.poll(500).values()))
    for client in clients:
        client.close()
    assert got == sent
    assert bystander.answered > 100
    assert counted <= 4 * bystander.slow


def test_paused_broker_is_asked_once_by_each_connection(
    start_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = start_cluster()
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=None)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics({"paused": {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    consumer.assign([TopicPartition("paused", 0)])
    consumer.poll(1_000)
    before = probes_of(consumer)
    for _ in range(3):
        cluster.pause(1)
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            consumer.poll(50)
        cluster.resume(1)
        consumer.poll(1_000)
    counted = probes_of(consumer) - before
    consumer.close()
    assert counted <= 6  # two connections; it was some twenty for each pause once
    assert consumer.recovery_counters.of("retired") == 0
