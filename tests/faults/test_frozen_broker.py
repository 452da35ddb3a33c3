"""One of three brokers is frozen (SIGSTOP): nobody who needs only the others waits for it, beside kafka-python.

A frozen broker keeps its connections and accepts new ones, so that nothing but silence shows it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

import tolerant_client
from support.ended import end
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.alone

FROZEN = 1
REQUEST_TIMEOUT_MS = 10_000
ENOUGH = 4.0  # seconds, far below the timeout


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster(nodes=3)


class Clients:
    """A producer, a consumer and an admin client that know all brokers, and two topics: on the frozen one, and not."""

    def __init__(self, package: Any, cluster: KafkaCluster, name: str) -> None:
        self.there, self.elsewhere, self.unseen = (f"frozen-{name}-{what}" for what in ("there", "elsewhere", "unseen"))
        options = {"bootstrap_servers": cluster.bootstrap_servers, "request_timeout_ms": REQUEST_TIMEOUT_MS}
        self.admin = package.KafkaAdminClient(**options)
        self.admin.create_topics(
            [NewTopic(self.there, -1, -1, {0: [1]}), NewTopic(self.elsewhere, -1, -1, {0: [2]}),
             NewTopic(self.unseen, -1, -1, {0: [3]})]
        )  # fmt: skip
        self.producer = package.KafkaProducer(delivery_timeout_ms=40_000, **options)
        for topic in (self.there, self.elsewhere):
            self.producer.send(topic, b"before", partition=0).get(30)
        self.consumer = package.KafkaConsumer(group_id=None, auto_offset_reset="earliest", **options)
        self.consumer.assign([TopicPartition(self.elsewhere, 0)])
        self.read(1)

    def read(self, count: int) -> None:
        ends = time.monotonic() + 60
        while count > 0 and time.monotonic() < ends:
            count -= sum(map(len, self.consumer.poll(500).values()))

    def send(self, topic: str) -> None:
        with contextlib.suppress(Errors.KafkaError):
            self.producer.send(topic, b"while", partition=0).get(60)

    def consume(self) -> None:
        self.consumer.assign([TopicPartition(self.unseen, 0)])
        self.read(1)

    def list_topics(self) -> None:
        for _ in range(5):
            with contextlib.suppress(Errors.KafkaError):
                self.admin.list_topics()

    def close(self) -> None:
        end(self.producer)
        self.consumer.close()
        self.admin.close()


@pytest.mark.long
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_who_needs_only_the_other_brokers_does_not_wait_for_a_frozen_one(
    cluster: KafkaCluster, record_property: Callable[[str, object], None]
) -> None:
    took: dict[str, dict[str, float]] = {}
    for name, package in (("stock", kafka), ("ours", tolerant_client)):
        clients = Clients(package, cluster, name)
        cluster.pause(FROZEN)
        try:
            with contextlib.suppress(Errors.KafkaError):
                clients.producer.send(clients.there, b"lost", partition=0)
            time.sleep(1.0)
            took[name] = {
                "send": seconds(lambda clients=clients: clients.send(clients.elsewhere)),
                "send to a new topic": seconds(lambda clients=clients: clients.send(clients.unseen)),
                "consume a new topic": seconds(clients.consume),
                "list topics": seconds(clients.list_topics),
            }
        finally:
            cluster.resume(FROZEN)
            cluster.wait_ready()
        clients.close()
    record_property("seconds", took)
    print(f"\n{took}")
    for what, ours in took["ours"].items():
        assert ours < max(ENOUGH, took["stock"][what]), what
        assert ours < REQUEST_TIMEOUT_MS / 1000, what


def seconds(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 2)
