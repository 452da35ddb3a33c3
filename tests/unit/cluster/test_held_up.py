"""What tells that requests may lie unread at a node."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import PRODUCE, PRODUCE_OLD, ROWS, lane_of
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.held_up import HeldUp
from tolerant_client.cluster.produce import ProduceResult
from tolerant_client.records.record_batch import Record, encode_batch

P = TopicPartition("orders", 0)


class Lane:
    """Requests on one lane, under the test's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held_up = HeldUp(lambda: self.now)

    def send(self, lane: str = "produce-1") -> Future:
        self.held_up.sent(lane, future := Future())
        return future


def respond(future: Future, throttle_time_ms: int = 0) -> None:
    future.success(ProduceResult((), throttle_time_ms))


def test_a_node_that_takes_a_second_holds_up_what_was_sent_after_that() -> None:
    lane = Lane()
    sent = [lane.send() for _ in range(3)]
    assert not lane.held_up.is_now()
    lane.now = 0.9
    respond(sent[0])
    lane.now = 1.1
    assert lane.held_up.is_now(), "the node is not silent, but has not responded to the oldest one"
    for future in sent[1:]:
        respond(future)
    assert not lane.held_up.is_now()


def test_a_throttle_holds_up_until_half_a_minute_after_its_end_also_once_its_connection_is_lost() -> None:
    lane = Lane()
    other, first, second = lane.send("produce-2"), lane.send(), lane.send()
    respond(other)
    respond(first, 40_000)
    second.failure(Errors.KafkaConnectionError("cut off"))
    assert lane.held_up.told_until("produce-1") == lane.held_up.told_until() == 40.0
    assert lane.held_up.told_until("produce-2") == float("-inf")
    respond(lane.send(), 1_000)  # after another one, which lasts longer
    for lane.now, is_held_up in ((0.0, True), (39.0, True), (69.9, True), (70.1, False)):
        assert lane.held_up.is_now() is is_held_up
        assert lane.held_up.told_until() == 40.0


@pytest.mark.parametrize(("purpose", "counts"), [(PRODUCE, True), (PRODUCE_OLD, True), (ROWS, False)])
def test_batches_of_data_count_whoever_sends_them(monkeypatch: pytest.MonkeyPatch, purpose: str, counts: bool) -> None:
    with Cluster({"bootstrap_servers": "127.0.0.1:1"}) as cluster:
        sent: list[tuple[str, Any]] = []
        monkeypatch.setattr(cluster, "version", lambda *_: 9)
        monkeypatch.setattr(cluster, "lane", lane_of)
        monkeypatch.setattr(cluster.held_up, "sent", lambda lane, future: sent.append((lane, future)))
        future = Future()
        monkeypatch.setattr(cluster.manager, "send", lambda request, lane: future)
        batch = memoryview(encode_batch([Record(0, 0, None, b"v")]))
        assert cluster.produce(3, {P: batch}, lane=purpose) is future
        assert sent == ([(lane_of(purpose, 3), future)] if counts else [])
