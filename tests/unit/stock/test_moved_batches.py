"""What becomes of a producer's batches when it moves to another cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.stock_producer import OTHER, PARTITION, Producer, idempotent, response, stamp
from tolerant_client.stock.moved_batches import MovedBatches
from tolerant_client.stock.sought_batches import Sought, Tell
from tolerant_client.stock.stock_names import ProducerIdAndEpoch, TransactionState

LOST = Errors.KafkaConnectionError("the client moves to another cluster")


class Log:
    """What the next cluster has, and what it was asked for; its first `failures` responses are errors."""

    def __init__(self, offsets: Mapping[TopicPartition, Sequence[int]], failures: int = 0) -> None:
        self.offsets, self.failures = offsets, failures
        self.asked: list[Mapping[TopicPartition, Sought]] = []

    async def find(self, net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        self.asked.append(dict(sought))
        if len(self.asked) <= self.failures:
            raise Errors.KafkaConnectionError("the standby restarts")
        for partition in sought:
            tell(partition, self.offsets.get(partition, ()))


def moved(producer: Producer, end: int | None = 1_000) -> MovedBatches:
    async def sleep(_: float) -> None: ...

    producer.client._manager = SimpleNamespace(closed=False, _net=SimpleNamespace(sleep=sleep))
    return MovedBatches(producer.sender, lambda partition: end)


def gets_id(producer: Producer) -> None:
    """The next cluster gives the producer an id."""
    transactions = producer.transactions
    assert transactions._current_state == TransactionState.BUMPING_PRODUCER_EPOCH and transactions._pending_requests
    transactions._pending_requests.clear()
    transactions.set_producer_id_and_epoch(ProducerIdAndEpoch(9, 0))
    transactions._transition_to(TransactionState.READY)


def acknowledged(producer: Producer, offset: int, **said: Any) -> None:
    """A first batch, which the former cluster acknowledges."""
    batch = producer.sends()
    told = response(Errors.NoError, PARTITION)
    vars(told.responses[0].partition_responses[0]).update(base_offset=offset, **said)
    producer.sender._handle_produce_response(1, 0.0, [batch], told)


def test_a_batch_that_the_next_cluster_has_is_acknowledged_with_its_offset() -> None:
    producer = idempotent()
    acknowledged(producer, 40)
    first, second = producer.append(), producer.append()
    producer.fail(producer.sends(), LOST)
    batches, log = moved(producer), Log({PARTITION: [41]}, failures=2)
    later = producer.append()
    assert producer.sent() is None, "nothing of the partition is sent while it is in question"
    asyncio.run(batches.settle(log.find))
    assert [first.get(0).offset, second.get(0).offset] == [41, 42] and not later.is_done
    assert len(log.asked) == 3
    sought = log.asked[0][PARTITION]
    assert sought.from_offset == 41 and [len(batch) for batch in sought.batches] == [2]
    assert sought.appended_since_ms is None
    gets_id(producer)
    assert stamp(producer.sent()) == (9, 0, 0)


def test_a_batch_that_the_next_cluster_lacks_is_sent_there_with_its_id_and_before_later_ones() -> None:
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    producer.fail(batch, LOST)
    batches = moved(producer)
    producer.append()
    asyncio.run(batches.settle(Log({}).find))
    gets_id(producer)
    again = producer.sends()
    assert again is batch and stamp(again) == (9, 0, 0) and again.record_count >= 2
    assert again not in producer.accumulator.may_be_written


def test_what_was_refused_or_never_sent_or_is_of_a_topic_without_copies_is_not_asked_for() -> None:
    producer = idempotent()
    producer.refuse(producer.sends(), Errors.NotLeaderForPartitionError)
    producer.append(OTHER)
    log = Log({})
    batches = moved(producer)
    asyncio.run(batches.settle(log.find))
    assert not log.asked
    producer = idempotent()
    producer.fail(producer.sends(), LOST)
    asyncio.run(moved(producer, None).settle(log.find))
    assert not log.asked
    gets_id(producer)
    assert stamp(producer.sent()) == (9, 0, 0)


NOW = 1_764_000_000_000


@pytest.mark.parametrize(
    ("told_ms", "has_append_times"), [([], False), ([-1], False), ([NOW], True), ([-1, NOW], True), ([NOW, -1], False)]
)
def test_times_count_unless_brokers_give_them(told_ms: Sequence[int], has_append_times: bool) -> None:
    producer = idempotent()
    for time_ms in told_ms:
        acknowledged(producer, 40, log_append_time_ms=time_ms)
        producer.append()
    batch = producer.sends()
    producer.let_pass(10, batch)
    producer.fail(batch, LOST)
    log = Log({})
    asyncio.run(moved(producer).settle(log.find))
    since_ms = log.asked[0][PARTITION].appended_since_ms
    assert (since_ms is not None) is has_append_times
    assert since_ms is None or abs(since_ms - (time.time() - 10) * 1000) < 5_000


def test_the_time_that_a_broker_tells_of_a_repeat_says_nothing_of_who_gives_times() -> None:
    producer = idempotent()
    producer.fail(producer.sends(), Errors.KafkaConnectionError("reset"))
    acknowledged(producer, 40, log_append_time_ms=NOW)
    producer.append()
    batch = producer.sends()
    producer.sender._repeats_before[batch] = -1  # the connection has lost a response since
    told = response(Errors.NoError, PARTITION)
    vars(told.responses[0].partition_responses[0]).update(base_offset=41, log_append_time_ms=NOW)
    producer.sender._handle_produce_response(1, 0.0, [batch], told)
    assert not producer.sender.gives_times


def test_what_was_acknowledged_is_known_also_after_the_producer_began_anew() -> None:
    producer = idempotent()
    acknowledged(producer, 40)
    producer.transactions.reset_producer_id()
    producer.append()
    producer.fail(producer.sends(), LOST)
    log = Log({})
    asyncio.run(moved(producer).settle(log.find))
    assert log.asked[0][PARTITION].from_offset == 41


def test_a_partition_that_cannot_be_read_holds_up_no_other() -> None:
    producer = idempotent()
    second = producer.append(OTHER)
    for batch in producer.all_sent():
        producer.fail(batch, LOST)
    asked = list[int]()

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        asked.append(len(sought))
        refused = Errors.TopicAuthorizationFailedError("Fetch of orders-0")
        for p in sought:
            tell(p, refused if p == PARTITION and len(asked) < 3 else [7])

    asyncio.run(moved(producer).settle(find))
    assert asked == [2, 1, 1] and second.get(0).offset == 7


def test_while_nothing_was_acknowledged_the_time_says_where_to_look() -> None:
    producer = idempotent()
    producer.fail(producer.sends(), LOST)
    log = Log({})
    asyncio.run(moved(producer).settle(log.find))
    assert log.asked[0][PARTITION].from_offset == -1


def test_a_partition_is_settled_as_soon_as_it_is_known() -> None:
    producer = idempotent()
    other = producer.append(OTHER)
    for batch in producer.all_sent():
        producer.fail(batch, LOST)
    was_settled = list[bool]()

    async def find(net: Any, sought: Mapping[TopicPartition, Sought], tell: Tell) -> None:
        tell(OTHER, [7])
        was_settled.append(other.is_done)  # while the broker of the other one is silent, say
        tell(PARTITION, [])

    asyncio.run(moved(producer).settle(find))
    assert was_settled == [True]


def test_after_a_topic_was_created_again_the_search_begins_in_the_new_log() -> None:
    producer = idempotent()
    acknowledged(producer, 40)
    producer.append()
    acknowledged_at = response(Errors.NoError, PARTITION)
    acknowledged_at.responses[0].partition_responses[0].base_offset = 0
    producer.sender._handle_produce_response(1, 0.0, [producer.sends()], acknowledged_at)
    producer.append()
    producer.fail(producer.sends(), LOST)
    log = Log({})
    asyncio.run(moved(producer).settle(log.find))
    assert log.asked[0][PARTITION].from_offset == 1


def test_the_error_of_a_record_that_the_former_cluster_may_have_says_so() -> None:
    producer = idempotent()
    batch, sent = producer.sends(), producer.append()
    producer.fail(batch, LOST)
    asyncio.run(moved(producer, None).settle(Log({}).find))
    producer.let_pass(1_000, *producer.accumulator._batches[PARTITION])
    producer.sender._end_late_records(time.monotonic())
    with pytest.raises(Errors.KafkaTimeoutError, match="the records were sent, and may be written"):
        batch._record_futures[0].get(0)
    with pytest.raises(Errors.KafkaTimeoutError, match="they were not written"):
        sent.get(0)


def test_a_record_that_is_late_before_the_next_cluster_tells_ends_and_leaves_its_partition() -> None:
    producer = idempotent()
    batch = producer.sends()
    producer.fail(batch, LOST)
    batches = moved(producer)
    later = producer.append()
    producer.let_pass(1_000, batch)
    log = Log({}, failures=5)

    async def settle() -> None:
        producer.sender._end_late_records(time.monotonic())
        await batches.settle(log.find)

    asyncio.run(settle())
    assert len(log.asked) == 1, "nothing is in question any more"
    (record,) = batch._record_futures
    assert "may be written" in str(record.exception)
    gets_id(producer)
    assert stamp(producer.sent()) == (9, 0, 0) and not later.is_done


def test_the_parts_of_a_batch_are_looked_for_one_after_the_other() -> None:
    producer = idempotent()
    for _ in range(3):
        producer.append()
    batch = producer.sends()
    producer.fail(batch, LOST)
    again = producer.accumulator._batches[PARTITION].popleft()
    producer.accumulator.split_and_reenqueue(again)
    batches, log = moved(producer), Log({PARTITION: [7, 9]})
    asyncio.run(batches.settle(log.find))
    assert [len(part) for part in log.asked[0][PARTITION].batches] == [2, 2]
    assert [record.get(0).offset for record in batch._record_futures] == [7, 8, 9, 10]
