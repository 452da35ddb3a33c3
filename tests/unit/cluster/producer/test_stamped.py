"""Batches of one producer in one partition: their sequences, their order and their positions (stamped.py)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.errors import ProducerFencedError
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, read_header

P = TopicPartition("orders", 0)
LEADER = 1
TOPIC_ID = uuid.UUID(int=7)


class Target:
    """Keeps what was sent; `answer` settles the oldest request."""

    def __init__(self) -> None:
        self.sent: list[tuple[BatchHeader, Future]] = []
        self.transactional_ids: set[str | None] = set()
        self.topic_ids: list[dict[TopicPartition, uuid.UUID]] = []
        self.end = 0
        self.updates = 0
        self.manager = SimpleNamespace(cluster=SimpleNamespace(request_update=self._update))

    def _update(self) -> None:
        self.updates += 1

    def produce(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, memoryview],
        *,
        transactional_id: str | None,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
    ) -> Future:
        assert node_id == LEADER
        self.topic_ids.append(dict(topic_ids))
        self.transactional_ids.add(transactional_id)
        future = Future()
        self.sent.append((read_header(batches[P]), future))
        return future

    def answer(self, base_offset: int = -1, error_code: int = 0) -> None:
        self.sent.pop(0)[1].success([ProducedPartition(P, error_code, base_offset)])

    async def sendable(self, node_id: int) -> None:
        """No quota."""

    async def by_leader(self, partitions: Any) -> dict[int, list[TopicPartition]]:
        return {LEADER: list(partitions)}

    async def insist(self, what: str, attempt: Any, patience_ms: int | None = None) -> Any:
        return await attempt()

    async def list_offsets(self, asked: Any) -> dict[TopicPartition, int]:
        return {P: self.end}

    async def offsets_at(self, *_: Any, **__: Any) -> dict[TopicPartition, int]:
        return {P: self.end}

    @property
    def sequences(self) -> list[int]:
        return [header.base_sequence for header, _ in self.sent]


def appends(target: Target, sequence: int = 0, transactional_id: str | None = None, **options: Any) -> StampedAppends:
    there: Any = target
    return StampedAppends(there, P, 4711, 3, sequence, transactional_id=transactional_id, **options)


def batch(base_offset: int, count: int = 5) -> tuple[BatchHeader, memoryview]:
    view = memoryview(bytearray(encode_batch([Record(0, 1, None, b"x")] * count, base_offset=base_offset)))
    return read_header(view), view


def on_a_loop(test: Callable[[NetworkSelector], Awaitable[None]]) -> None:
    net = NetworkSelector()
    with contextlib.closing(net):
        net.run(test, net)


def test_batches_carry_their_producer_and_sequences_that_follow_one_another() -> None:
    target = Target()
    stamped = appends(target, 2**31 - 5, "link-gap")
    for base_offset in (0, 5, 10):
        stamped.send(LEADER, *batch(base_offset))
    headers = [header for header, _ in target.sent]
    assert [(h.producer_id, h.producer_epoch, h.is_transactional) for h in headers] == [(4711, 3, True)] * 3
    assert target.sequences == [2**31 - 5, 0, 5] and target.transactional_ids == {"link-gap"}


def test_what_is_settled_comes_in_the_order_of_sending_and_no_more_is_waited_for_than_has_to_be() -> None:
    async def run(net: NetworkSelector) -> None:
        target = Target()
        stamped = appends(target)
        for base_offset in (0, 5, 10):
            stamped.send(LEADER, *batch(base_offset))
        target.answer(100)
        assert [(header.base_offset, part.base_offset) async for header, part in stamped.settled(2)] == [(0, 100)]
        target.answer(105)
        target.answer(110)
        assert [part.base_offset async for _, part in stamped.settled()] == [105, 110]

    on_a_loop(run)


@pytest.mark.parametrize(
    "code, transactional_id, raised, updates",
    [
        (6, None, Errors.NotLeaderForPartitionError, 1),
        (10, None, Errors.MessageSizeTooLargeError, 0),
        (47, None, Errors.InvalidProducerEpochError, 0),
        (47, "link-gap", ProducerFencedError, 0),
    ],
)
def test_the_sequence_of_what_was_refused_alone_is_that_of_the_next(
    code: int, transactional_id: str | None, raised: type[Exception], updates: int
) -> None:
    async def run(net: NetworkSelector) -> None:
        target = Target()
        stamped = appends(target, 0, transactional_id)
        for error_code in (code, 0):
            appending = net.call_soon_with_future(stamped.append, LEADER, *batch(5))
            await net.sleep(0)
            assert target.sequences == [0]
            target.answer(7, error_code)
            if error_code:
                with pytest.raises(raised, match="append to orders-0" + ("" if transactional_id else " at offset 5")):
                    await appending
            else:
                assert await appending == 7
        assert target.updates == updates

    on_a_loop(run)


def test_a_lost_response_is_handed_up() -> None:
    async def run(net: NetworkSelector) -> None:
        target = Target()
        stamped = appends(target)
        stamped.send(LEADER, *batch(0))
        target.sent.pop()[1].failure(Errors.KafkaConnectionError("reset"))
        with pytest.raises(Errors.KafkaConnectionError):
            async for _ in stamped.settled():
                raise AssertionError("nobody knows where it is")

    on_a_loop(run)


def test_many_go_out_together_and_one_in_another_place_ends_it() -> None:
    async def run(net: NetworkSelector) -> None:
        target = Target()
        appending = net.call_soon_with_future(appends(target).append_all_at, LEADER, map(batch, range(0, 50, 5)), 4)
        await net.sleep(0)
        assert target.sequences == [0, 5, 10, 15]
        target.answer(0)
        await net.sleep(0)
        assert target.sequences == [5, 10, 15, 20]
        target.answer(6)
        with pytest.raises(Errors.OffsetOutOfRangeError, match="offset 5 of orders-0 was appended at 6"):
            await appending
        assert target.sequences == [10, 15, 20]

    on_a_loop(run)


def test_every_request_is_for_the_topic_that_was_read_and_asks_whether_it_may_go_out() -> None:
    async def run(net: NetworkSelector) -> None:
        target, asked = Target(), iter([True, True, False])

        def may_send() -> None:
            if not next(asked):
                raise Errors.NotLeaderForPartitionError("the claim is over")

        stamped = appends(target, topic_id=TOPIC_ID, may_send=may_send)
        appending = net.call_soon_with_future(stamped.append_all_at, LEADER, map(batch, range(0, 50, 5)), 4)
        with pytest.raises(Errors.NotLeaderForPartitionError, match="the claim is over"):
            await appending
        assert target.sequences == [0, 5] and target.topic_ids == [{P: TOPIC_ID}] * 2

    on_a_loop(run)


@pytest.mark.parametrize("end", [10, 7])
def test_after_a_freeze_nothing_goes_out_before_the_log_was_seen_to_end_where_it_was_left(end: int) -> None:
    """Responses that came before the freeze are old, whenever they are read."""

    async def run(net: NetworkSelector) -> None:
        target, now = Target(), [0.0]
        stamped = appends(target, clock=lambda: now[0])
        appending = net.call_soon_with_future(stamped.append_all_at, LEADER, map(batch, range(0, 20, 5)), 2)
        await net.sleep(0)
        assert target.sequences == [0, 5]
        now[0], target.end = 5.0, end
        target.answer(0)
        await net.sleep(0)
        assert target.sequences == [5], "one is still in flight"
        target.answer(5)
        if end != 10:
            with pytest.raises(Errors.OffsetOutOfRangeError, match="ended at 10, and ends at 7 now"):
                await appending
            assert target.sequences == []
        else:
            while target.sequences != [10, 15]:
                await net.sleep(0)
            target.answer(10)
            target.answer(15)
            await appending

    on_a_loop(run)
