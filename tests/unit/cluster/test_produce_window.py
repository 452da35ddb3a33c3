"""How many Produce requests are in flight to one node, and how a quota is waited for (produce_window.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from tolerant_client.cluster.produce import ProduceResult
from tolerant_client.cluster.produce_window import ProduceTurns

MIB = 1 << 20  # what may be in flight at first


class Node:
    """A node that takes requests until it is `paused`."""

    def __init__(self, net: NetworkSelector) -> None:
        self.paused = False
        self.throttled_until = 0.0
        self.sent: list[str] = []
        self.futures: list[Future] = []
        self.free = Future()
        self.net = net
        self.now = 0.0
        there: Any = self
        self.turns = ProduceTurns(there, 1, 64, lambda: self.now)
        self.window = self.turns.window

    def paused_s(self, node_id: int) -> float:
        return 1.0 if self.paused else 0.0

    def throttle_s(self, node_id: str) -> float:
        return max(0.0, self.throttled_until - self.now)

    async def sendable(self, node_id: int) -> None:
        await self.free
        self.paused, self.free = False, Future()

    def produce(self, name: str) -> Future:
        assert not self.paused
        self.sent.append(name)
        self.futures.append(Future())
        return self.futures[-1]

    async def send(self, name: str, size: int = MIB) -> bool:
        return await self.turns.send(name, size, lambda: self.produce(name))

    def answer(self, throttle_time_ms: int = 0) -> None:
        self.paused = throttle_time_ms > 0
        self.throttled_until = max(self.throttled_until, self.now + throttle_time_ms / 1000)
        self.futures.pop(0).success(ProduceResult([], throttle_time_ms))


def on_a_loop(test: Callable[[NetworkSelector, Node], Awaitable[None]]) -> None:
    net = NetworkSelector()
    with contextlib.closing(net):
        net.run(test, net, Node(net))


async def turn(net: NetworkSelector) -> None:
    for _ in range(5):
        await net.sleep(0)


def test_requests_go_out_in_turn_and_without_a_quota_more_bytes_are_in_flight() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        for name in "abcdefgh":
            net.call_soon_with_future(node.send, name)
        await turn(net)
        assert node.sent == ["a"]
        node.answer()
        await turn(net)
        assert node.sent == list("abc")
        for _ in range(2):
            node.answer()
            await turn(net)
        assert node.sent == list("abcdef") and node.window.in_flight == 3 and node.window.room_bytes == 2.5 * MIB

    on_a_loop(run)


def test_what_is_in_flight_when_a_quota_begins_is_settled_and_then_one_request_at_a_time_is_sent() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        for name in "abcdefgh":
            net.call_soon_with_future(node.send, name)
        await turn(net)
        node.answer()
        await turn(net)
        node.answer(throttle_time_ms=5_000)
        await turn(net)
        assert node.sent == list("abc")
        node.now = 5.0
        node.free.success(None)
        await turn(net)
        assert node.sent == list("abc"), "one of them is in flight still"
        node.answer()  # an old burst has left the quota's average
        await turn(net)
        assert node.sent == list("abcd"), "a response without a throttle proves nothing"
        assert node.window.throttled_until == 5.0

    on_a_loop(run)


def test_a_throttle_that_the_connection_has_lifted_is_over() -> None:
    """One flipped bit may claim 24 days: no partition would be given up in that time, and none had room for more."""

    async def run(net: NetworkSelector, node: Node) -> None:
        net.call_soon_with_future(node.send, "a")
        await turn(net)
        node.answer(throttle_time_ms=1 << 31)
        node.now = 20.0
        assert node.window.throttled_until == (1 << 31) / 1000
        node.now = node.throttled_until = 30.0  # a probe had a response
        assert node.window.throttled_until == 30.0
        node.now = 50.0
        assert node.window.throttled_until == 30.0

    on_a_loop(run)


def test_under_a_quota_as_much_is_in_flight_as_it_takes_in_a_second_and_long_after_it_more() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        async def copy(until: float, per_s: int, throttle_time_ms: int) -> None:
            while node.now < until:
                await node.send(str(node.now), per_s // 2)
                node.now += 0.5
                node.answer(throttle_time_ms)
                node.paused = False

        await copy(60.0, 400_000, 500)
        assert 350_000 < node.window.room_bytes < 450_000
        await copy(89.0, 400_000, 0)
        assert 350_000 < node.window.room_bytes < 450_000
        await copy(100.0, 20_000_000, 0)
        assert node.window.room_bytes > 20_000_000

    on_a_loop(run)


def test_a_caller_that_may_not_send_any_more_holds_up_no_other() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        def refuse() -> Future:
            raise Errors.NotLeaderForPartitionError("no claim")

        await node.send("a")
        refused = net.call_soon_with_future(node.turns.send, "refused", MIB, refuse)
        net.call_soon_with_future(node.send, "b")
        await turn(net)
        node.answer(throttle_time_ms=1)
        node.free.success(None)
        with pytest.raises(Errors.NotLeaderForPartitionError):
            await refused
        await turn(net)
        assert node.sent == ["a", "b"]

    on_a_loop(run)


def test_a_lost_response_makes_room() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        await node.send("a")
        net.call_soon_with_future(node.send, "b")
        await turn(net)
        node.futures.pop().failure(Errors.KafkaConnectionError("away"))
        await turn(net)
        assert node.sent == ["a", "b"] and node.window.in_flight == 1

    on_a_loop(run)


def test_who_waits_keeps_its_turn_over_a_throttle() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        for name in "abc":
            net.call_soon_with_future(node.send, name)
        await turn(net)
        node.answer(throttle_time_ms=300)
        await turn(net)
        net.call_soon_with_future(node.send, "new")
        for number in range(3):
            node.free.success(None)
            await turn(net)
            assert node.sent == ["a", "b", "c", "new"][: number + 2]
            node.answer(throttle_time_ms=300)
            await turn(net)

    on_a_loop(run)


def test_what_is_begun_before_a_request_is_begun_in_its_turn() -> None:
    """Nobody else has a turn meanwhile; if that takes long, others have theirs, and the request is the next."""

    async def run(net: NetworkSelector, node: Node) -> None:
        begun: list[str] = []
        ready = {name: Future() for name in "bc"}

        async def begin(name: str) -> None:
            begun.append(name)
            await ready[name]

        def send(name: str) -> None:
            net.call_soon_with_future(
                lambda: node.turns.send(name, MIB, lambda: node.produce(name), prepare=lambda: begin(name))
            )

        await node.send("a")
        for name in "bc":
            send(name)
        net.call_soon_with_future(node.send, "d")
        await turn(net)
        assert begun == []
        node.answer(throttle_time_ms=1)
        node.free.success(None)
        await turn(net)
        assert begun == ["b"] and node.sent == ["a"]
        ready["b"].success(None)
        await turn(net)
        assert begun == ["b"] and node.sent == ["a", "b"]
        node.answer(throttle_time_ms=1)
        node.free.success(None)
        await turn(net)
        assert begun == ["b", "c"]
        await net.sleep(1.1)
        assert node.sent == ["a", "b", "d"], "its coordinator may be away"
        net.call_soon_with_future(node.send, "e")
        ready["c"].success(None)
        await turn(net)
        node.answer()
        await turn(net)
        assert node.sent[:4] == ["a", "b", "d", "c"]

    on_a_loop(run)


def test_a_turn_that_does_not_come_in_time_or_is_not_wanted_is_given_up() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        await node.send("a")
        assert not await node.turns.send("late", MIB, lambda: node.produce("late"), within_s=0.01)
        net.call_soon_with_future(node.send, "b")
        given_up = net.call_soon_with_future(node.send, "given up")
        await turn(net)
        node.turns.give_up("given up")
        node.turns.give_up("nobody")
        assert not await given_up
        node.answer()
        await turn(net)
        assert node.sent == ["a", "b"]

    on_a_loop(run)


def test_many_requests_that_fail_at_once_fail_one_after_the_other() -> None:
    async def run(net: NetworkSelector, node: Node) -> None:
        await node.send("a")
        tried: list[int] = []

        def fail(number: int) -> Future:
            tried.append(number)
            return Future().failure(Errors.KafkaConnectionError("away"))

        for number in range(2_000):
            net.call_soon_with_future(lambda number=number: node.turns.send(number, MIB, lambda: fail(number)))
        await turn(net)
        node.answer()
        await turn(net)
        assert tried == list(range(2_000)) and node.window.in_flight == 0

    on_a_loop(run)
