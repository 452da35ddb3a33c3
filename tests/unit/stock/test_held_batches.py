"""Batches that their own cluster has acknowledged, and that wait for the standby."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.stock_producer import OTHER, PARTITION, Producer, idempotent, response
from tolerant_client.errors import NotMirroredError
from tolerant_client.stock.held_batches import HeldBatches
from tolerant_client.stock.moved_batches import MovedBatches
from tolerant_client.stock.sought_batches import Sought, Tell


class Holding:
    """A producer whose leader acknowledges each batch, and that holds it."""

    def __init__(self) -> None:
        self.producer: Producer = idempotent()
        self.woken = 0
        manager = self.producer.client._manager
        manager.closed, manager._net.call_soon_with_future = False, lambda call, *args: call(*args)
        self.held = self.producer.sender.held = HeldBatches(self.producer.sender, 1_000, self._wake)
        self.first = self.producer.append()  # beside the one that it has

    def _wake(self) -> None:
        self.woken += 1

    def acknowledge(self, offset: int, error: type[Errors.KafkaError] = Errors.NoError) -> Any:
        """The leader's response to what is sent now; returns the batch."""
        batch = self.producer.sends()
        told = response(error, batch.topic_partition)
        vars(told.responses[0].partition_responses[0]).update(base_offset=offset)
        self.producer.sender._handle_produce_response(1, 0.0, [batch], told)
        return batch


def test_what_is_held_is_not_complete_and_holds_up_nothing() -> None:
    holding = Holding()
    batch = holding.acknowledge(40)
    assert not holding.first.is_done and holding.held.record_count == 2 and holding.woken == 1
    assert not holding.producer.sender.has_in_flight
    later = holding.producer.append()
    holding.acknowledge(42, Errors.DuplicateSequenceNumberError)
    assert holding.held.waiting() == {PARTITION} and holding.woken == 1
    assert not holding.held.up_to(OTHER) + holding.held.up_to(PARTITION, 41), "its batch has two records"
    copied = holding.held.up_to(PARTITION, 42)
    holding.held.end([(one, None) for one in copied])
    assert holding.first.get(0).offset == 41 and not later.is_done
    assert batch not in holding.producer.accumulator._incomplete.all()
    (last,) = holding.held.up_to(PARTITION)
    holding.held.end([(one, "what has ended does not end again") for one in copied] + [(last, "it was left out")])
    with pytest.raises(NotMirroredError, match="at offset 42, but it was left out"):
        later.get(0)
    assert not holding.held.waiting()


def test_what_was_told_is_not_compared_again_while_the_event_loop_is_late() -> None:
    holding, late = Holding(), list[Any]()
    manager = holding.producer.client._manager
    manager._net.call_soon_with_future = lambda call, *args: late.append((call, args))
    holding.acknowledge(40)
    holding.held.end([(one, None) for one in holding.held.up_to(PARTITION)])
    assert not holding.held.up_to(PARTITION) and not holding.first.is_done
    holding.held.end([])
    ((call, args),) = late
    call(*args)
    assert holding.first.get(0).offset == 41


def test_a_record_without_an_offset_cannot_be_followed() -> None:
    holding = Holding()
    holding.acknowledge(-1, Errors.DuplicateSequenceNumberError)
    with pytest.raises(
        NotMirroredError, match="orders-0: the record is written on its own cluster, but its leader does not tell"
    ):
        holding.first.get(0)
    assert not holding.held.waiting()


def test_what_waits_too_long_fails_and_what_is_younger_waits_on() -> None:
    holding = Holding()
    holding.acknowledge(40)
    younger = holding.producer.append()
    holding.acknowledge(42)
    queue = holding.held._held[PARTITION]
    queue[0] = queue[0]._replace(until_s=0.0)
    slept: list[float] = []
    manager = holding.producer.client._manager

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        manager.closed = True

    manager._net.sleep = sleep
    asyncio.run(holding.held._end_late())
    with pytest.raises(
        NotMirroredError, match=r"at offset 41, but the standby was not seen to have it within .* \(1000\)"
    ):
        holding.first.get(0)
    assert not younger.is_done and 0.0 < slept[0] <= 1.0


def test_at_a_move_what_is_there_ends_and_the_rest_is_sent_in_order() -> None:
    holding = Holding()
    held, accumulator = holding.held, holding.producer.accumulator
    sent = [holding.first]
    for offset in (40, 42, 43):
        holding.acknowledge(offset)
        sent.append(holding.producer.append())
    batches = MovedBatches(holding.producer.sender, lambda partition: 43)
    assert holding.producer.sender.held is None, "on the next cluster it is acks=all"
    assert holding.producer.sent() is None, "nothing is sent before it is known what is there"

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        assert {p: one.places for p, one in sought.items()} == {PARTITION: [40, 42]}
        tell(PARTITION, [40])

    asyncio.run(batches.settle(find))
    assert holding.first.get(0).offset == 41 and not held.waiting()
    queue = list(accumulator._batches[PARTITION])
    assert [batch._record_futures for batch in queue] == [[sent[2]], [sent[3]]]
    with pytest.raises(NotMirroredError, match="at offset 42, but the standby has something else"):
        sent[1].get(0)
    assert PARTITION not in accumulator.muted


def test_a_producer_that_stays_has_acknowledged_what_its_cluster_still_has() -> None:
    holding = Holding()
    sent = [holding.first]
    for offset in (40, 42, 43):
        holding.acknowledge(offset)
        sent.append(holding.producer.append())
    told: list[Any] = [Errors.KafkaConnectionError("away"), [40, 43]]

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        assert sought[PARTITION].places == [40, 42, 43]
        tell(PARTITION, told.pop(0))

    async def sleep(seconds: float) -> None:
        assert told and not any(future.is_done for future in sent)

    holding.producer.client._manager._net.sleep = sleep
    asyncio.run(holding.producer.sender.hold_no_longer(find))
    assert [sent[0].get(0).offset, sent[2].get(0).offset] == [41, 43]
    with pytest.raises(NotMirroredError, match="at offset 42, but it is not there any more"):
        sent[1].get(0)
    holding.acknowledge(44)
    assert sent[3].get(0).offset == 44, "as with acks=all"


def test_a_copy_that_ends_within_a_batch_is_told() -> None:
    holding = Holding()
    holding.acknowledge(40)
    batches = MovedBatches(holding.producer.sender, lambda partition: 41)

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        tell(PARTITION, [])

    asyncio.run(batches.settle(find))
    with pytest.raises(NotMirroredError, match="something else at its offset: filler .* a part of its batch"):
        holding.first.get(0)


def test_a_partition_whose_records_are_too_late_while_they_cannot_be_read_is_not_muted_for_ever() -> None:
    holding = Holding()
    holding.acknowledge(40)
    batches = MovedBatches(holding.producer.sender, lambda partition: 42)
    later = holding.producer.append()
    held = holding.held

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        assert holding.producer.sent() is None
        held.settle([(one, "too late") for one in held.up_to(PARTITION)])
        tell(PARTITION, Errors.KafkaTimeoutError("the standby is silent"))

    asyncio.run(batches.settle(find))
    assert not later.is_done and PARTITION not in holding.producer.accumulator.muted


def test_a_partition_whose_records_are_too_late_goes_on_while_those_of_another_one_cannot_be_read() -> None:
    holding = Holding()
    holding.acknowledge(40)
    holding.producer.append(OTHER)
    holding.acknowledge(7)
    held, muted, waiting = holding.held, holding.producer.accumulator.muted, list[set[TopicPartition]]()
    batches = MovedBatches(holding.producer.sender, lambda partition: 50)

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        if OTHER not in sought:
            tell(PARTITION, [40])
            return
        assert muted == {PARTITION, OTHER}
        held.settle([(one, "too late") for one in held.up_to(OTHER)])
        tell(PARTITION, Errors.KafkaTimeoutError("the standby is silent"))

    async def sleep(seconds: float) -> None:
        waiting.append(set(muted))

    holding.producer.client._manager._net.sleep = sleep
    asyncio.run(batches.settle(find))
    assert waiting == [{PARTITION}] and not muted and holding.first.get(0).offset == 41
