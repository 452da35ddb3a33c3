"""A new member's first JoinGroup, whose response is its id, on a real broker: its group waits for no id that the member does not know."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener

from support.beside_stock import new_topic, slow_for
from support.held_answers import HookedProxy, Link
from tolerant_client import KafkaConsumer
from tolerant_client.testing import KafkaCluster

JOIN_GROUP = 11
SESSION_S = 12.0
GATEWAY_TAKES = 4.0
MOMENT_S = 6.0  # a rebalance takes less, also on a slow machine, but never the session of an id that nobody uses


class Standstill(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
    """How long a member had to wait for its next assignment, at most."""

    longest = 0.0
    _began = 0.0

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._began = time.monotonic()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.longest = max(self.longest, time.monotonic() - self._began)


def lost(link: Link, api_key: int, frame: bytes) -> list[bytes]:
    return [] if api_key == JOIN_GROUP else [frame]


@pytest.mark.parametrize("first", [lost, slow_for(JOIN_GROUP, GATEWAY_TAKES)], ids=["lost", "slow"])
def test_a_group_waits_for_no_id_of_which_the_response_was_lost_or_slow(
    kafka_cluster: KafkaCluster, first: Callable[[Link, int, bytes], list[bytes]]
) -> None:
    topic = new_topic(kafka_cluster, "first-join")
    seen: list[int] = []

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes]:
        seen.append(api_key)
        return first(link, api_key, frame) if seen.count(JOIN_GROUP) == 1 else [frame]

    options: Any = {"group_id": topic, "enable_auto_commit": False, "heartbeat_interval_ms": 500}
    options["session_timeout_ms"] = int(SESSION_S * 1000)
    # A stock member that is not polled all the time makes its group rebalance again and again (docs/clients.md).
    with (
        HookedProxy(kafka_cluster.proxied) as proxy,
        KafkaConsumer(bootstrap_servers=kafka_cluster.bootstrap_servers, **options) as other,
        KafkaConsumer(topic, bootstrap_servers=proxy.bootstrap_servers, **options) as member,
    ):
        proxy.answer = answer
        standstill = Standstill()
        other.subscribe([topic], listener=standstill)
        while not other.assignment():
            other.poll(100)
        standstill.longest = 0.0
        deadline = time.monotonic() + 3 * SESSION_S
        while not (member._coordinator.stable() and standstill.longest):
            assert time.monotonic() < deadline
            member.poll(100)
            other.poll(100)
        assert standstill.longest < MOMENT_S
