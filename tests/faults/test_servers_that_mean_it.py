"""A server that leaves topics out of Metadata which it does not know: odd, and meant, as stock takes it.

Stock kafka-python and ours run the same program one after the other, on real brokers behind a proxy that takes
the topics out; ours may be SLACK slower where it looks twice.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import TopicPartition

from support.beside_stock import LIBRARIES, Run, new_topic, slow_for
from support.held_answers import HookedProxy, Link
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.alone

LIST_OFFSETS, METADATA = 2, 3
LONG_POLL_MS = 3_000
LONGEST = 15.0  # of what stock does in 3 s
Answer = Callable[[Link, int, bytes], list[bytes]]


class LeavesOut:
    """For a HookedProxy: no Metadata response names a topic that has an error; everything else is as `answer` says."""

    def __init__(self, answer: Answer, takes: float = 0.0) -> None:
        self.answer, self.takes = answer, takes
        self.left_out = 0

    def note_version(self, link: Link, api_key: int, frame: bytes) -> bytes:
        _, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        link.note[correlation_id] = version
        return frame

    def __call__(self, link: Link, api_key: int, frame: bytes) -> list[bytes]:
        if api_key != METADATA:
            return self.answer(link, api_key, frame)
        time.sleep(self.takes)
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        version = link.note[correlation_id]
        response = MetadataResponse.decode(frame[4:], version=version, header=True)
        known = [topic for topic in response.topics if not topic.error_code]
        self.left_out += len(response.topics) - len(known)
        response.topics = known
        response.with_header(correlation_id=correlation_id)
        return [response.encode(header=True, framed=True)]


def assignment_of(consumer: Any, topics: list[str], expected: int) -> Callable[[], None]:
    """Subscribes and polls until so many partitions are assigned."""

    def subscribe() -> None:
        consumer.subscribe(topics)
        ends = time.monotonic() + LONGEST
        while len(consumer.assignment()) < expected and time.monotonic() < ends:
            consumer.poll(20)

    return subscribe


def test_gateway_that_leaves_topics_out_is_kept(kafka_cluster: KafkaCluster) -> None:
    """It answers Metadata by itself; after one slow ListOffsets its answers to probes prove nothing."""
    topic = new_topic(kafka_cluster, "gateway-knows")
    runs = {name: Run() for name in LIBRARIES}
    for name, library in LIBRARIES.items():
        with HookedProxy(kafka_cluster.proxied) as proxy:
            proxy.answer = gateway = LeavesOut(slow_for(LIST_OFFSETS, 1.5))
            proxy.request = gateway.note_version
            consumer = library.KafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers, group_id=None, allow_auto_create_topics=False
            )
            partition = TopicPartition(topic, 0)
            assert consumer.end_offsets([partition]) == {partition: 0}
            runs[name].timed(assignment_of(consumer, [topic, f"{topic}-absent"], 1))
            assert consumer.assignment() == {partition}
            assert gateway.left_out
            consumer.close(timeout_ms=1_000)
    runs["ours"].is_no_worse_than(runs["stock"])


def test_server_that_leaves_topics_out_is_kept_beside_a_long_poll(kafka_cluster: KafkaCluster) -> None:
    """A probe would wait behind the Fetch for longer than a trial may take."""
    first, second = (new_topic(kafka_cluster, f"polled-{n}") for n in "12")
    runs = {name: Run() for name in LIBRARIES}
    for name, library in LIBRARIES.items():
        with HookedProxy(kafka_cluster.proxied) as proxy:
            proxy.answer = server = LeavesOut(lambda link, api_key, frame: [frame], takes=0.08)
            proxy.request = server.note_version
            consumer = library.KafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers,
                group_id=None,
                allow_auto_create_topics=False,
                fetch_max_wait_ms=LONG_POLL_MS,
                metadata_max_age_ms=2_000,
            )
            assignment_of(consumer, [first, f"{first}-absent"], 1)()
            consumer.poll(300)
            runs[name].timed(assignment_of(consumer, [first, second, f"{first}-absent"], 2))
            assert consumer.assignment() == {TopicPartition(first, 0), TopicPartition(second, 0)}
            assert server.left_out
            consumer.close(timeout_ms=1_000)
    runs["ours"].is_no_worse_than(runs["stock"])
