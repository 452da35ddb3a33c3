"""Three brokers in memory, one of which freezes: who waits for it, compared with kafka-python in the same run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.protocol.admin import CreateTopicsRequest, DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest

import tolerant_client
from support.ended import end
from support.fake_broker import FakeBroker, serve
from tolerant_client.stock.any_broker import is_for_any_broker

REQUEST_TIMEOUT_MS = 5_000
LEADERS = {"first": 1, "second": 2}


class Node(FakeBroker):
    """One of several; from the first request named `freezes_at` on it is frozen, and neither reads nor responds."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        super().__init__()
        self.nodes = nodes
        self.freezes_at = ""
        self.is_frozen = False

    def _serve(self, frame: bytes) -> list[bytes]:
        answers = super()._serve(frame)
        self.is_frozen = self.is_frozen or self.names()[-1] == self.freezes_at
        return [] if self.is_frozen else answers

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        topic_class = MetadataResponse.MetadataResponseTopic
        asked = LEADERS if request.topics is None else [getattr(topic, "name", topic) for topic in request.topics]
        topics = [
            topic_class(error_code=0, name=name, is_internal=False, partitions=[
                topic_class.MetadataResponsePartition(
                    error_code=0, partition_index=0, leader_id=LEADERS[name], leader_epoch=1,
                    replica_nodes=[LEADERS[name]], isr_nodes=[LEADERS[name]], offline_replicas=[],
                )
            ])
            for name in asked
        ]  # fmt: skip
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=node.host, port=node.port, rack=None)
            for number, node in self.nodes.items()
        ]
        return MetadataResponse(version=version, brokers=brokers, cluster_id="fake", controller_id=2, topics=topics)


@pytest.fixture
def nodes() -> Iterator[dict[int, Node]]:
    nodes: dict[int, Node] = {}
    nodes.update({number: Node(nodes) for number in (1, 2, 3)})
    with contextlib.ExitStack() as served:
        for node in nodes.values():
            served.enter_context(serve(node))
        yield nodes
        for node in nodes.values():
            node.is_frozen, node.freezes_at = False, ""


def connected_to_first(client: Any, nodes: dict[int, Node]) -> Any:
    """A producer that has no other connection."""
    producer = client.KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{nodes[1].port}", acks=1, request_timeout_ms=REQUEST_TIMEOUT_MS,
        delivery_timeout_ms=30_000,
    )  # fmt: skip
    producer.send("first", b"0").get(10)
    manager = producer._sender._client._manager
    for node_id in [node_id for node_id in manager._conns if node_id != 1]:
        manager.call_soon(manager._conns[node_id].close)
    while [node_id for node_id, connection in manager._conns.items() if connection.connected] != [1]:
        time.sleep(0.01)
    return producer


def seconds(sent: Any) -> float:
    """Waits until it is acknowledged or has failed."""
    began = time.monotonic()
    with contextlib.suppress(Errors.KafkaError):
        sent.get(60)
    return time.monotonic() - began


def test_send_to_a_healthy_broker_does_not_wait_for_a_frozen_one_with_a_produce_in_flight(
    nodes: dict[int, Node],
) -> None:
    took = {}
    for name, client in (("stock", kafka), ("ours", tolerant_client)):
        producer = connected_to_first(client, nodes)
        nodes[1].is_frozen = True
        producer.send("first", b"1")
        time.sleep(0.3)
        took[name] = seconds(producer.send("second", b"2"))
        nodes[1].is_frozen = False
        end(producer)
    assert took["ours"] < 2.0  # far below the timeout


def test_metadata_that_a_broker_took_before_it_froze_are_asked_of_another_one(nodes: dict[int, Node]) -> None:
    took = {}
    for name, client in (("stock", kafka), ("ours", tolerant_client)):
        producer = connected_to_first(client, nodes)
        nodes[1].freezes_at = "Metadata"
        took[name] = seconds(producer.send("second", b"2"))
        nodes[1].is_frozen, nodes[1].freezes_at = False, ""
        end(producer)
    assert took["ours"] < 3.0  # far below the timeout
    assert took["ours"] < max(2.0, took["stock"])


def test_two_of_three_frozen_brokers_are_passed_by(nodes: dict[int, Node]) -> None:
    producer = connected_to_first(tolerant_client, nodes)
    nodes[1].is_frozen = nodes[3].is_frozen = True
    assert seconds(producer.send("second", b"2")) < REQUEST_TIMEOUT_MS / 1000 - 1
    nodes[1].is_frozen = nodes[3].is_frozen = False
    end(producer)


def test_a_response_in_time_is_asked_for_once(nodes: dict[int, Node]) -> None:
    producer = connected_to_first(tolerant_client, nodes)
    producer.send("second", b"2").get(10)
    asked = sum(node.names().count("Metadata") for node in nodes.values())
    time.sleep(1.5)
    assert sum(node.names().count("Metadata") for node in nodes.values()) == asked
    producer.close(timeout=1)


@pytest.mark.parametrize(
    ("request_", "node_id", "is_for_any"),
    [
        (MetadataRequest(topics=[]), 1, True),
        (FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]), 1, True),
        (InitProducerIdRequest(transactional_id=None), 1, True),
        (InitProducerIdRequest(transactional_id="x"), 1, False),
        (DescribeClusterRequest(), None, True),
        (DescribeClusterRequest(), 1, False),
        (CreateTopicsRequest(topics=[], timeout_ms=1), None, False),
    ],
)
def test_only_what_changes_nothing_and_names_no_broker_is_asked_twice(
    request_: Any, node_id: int | None, is_for_any: bool
) -> None:
    assert is_for_any_broker(request_, node_id) is is_for_any
