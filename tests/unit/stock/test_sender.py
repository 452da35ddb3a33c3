"""When a batch that failed is sent again, and when a record ends that is late."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.stock_producer import LEADER, OTHER, PARTITION, Producer, idempotent, response, stamp
from tolerant_client.errors import ConnectionLostError, ConnectionTimedOutError, RecoveryExhaustedError
from tolerant_client.stock.stock_names import ProducerBatch
from tolerant_client.stock.transactions import TolerantTransactionManager
from tolerant_client.tracker.events import RecoveryCounters, Requeued


def ended(record: Any) -> Any:
    """The error of a record that has ended."""
    assert record.is_done
    return record.exception


@pytest.mark.parametrize("error", [Errors.KafkaConnectionError("reset"), ConnectionLostError("ended")])
def test_a_batch_whose_connection_ended_is_sent_over_the_next_one_at_once(error: Exception) -> None:
    producer = Producer()
    batch = producer.sends()
    producer.fail(batch, error)
    assert producer.sent() is batch


def test_a_batch_that_fails_again_waits() -> None:
    producer = Producer()
    for _ in range(2):
        batch = producer.sends()
        producer.fail(batch, Errors.KafkaConnectionError("reset"))
    assert producer.sent() is None


def test_a_batch_that_timed_out_or_was_refused_waits() -> None:
    errors = (
        Errors.RequestTimedOutError,
        Errors.NotLeaderForPartitionError,
        ConnectionTimedOutError,
        RecoveryExhaustedError,
    )
    for error in errors:
        producer = Producer()
        batch = producer.sends()
        producer.fail(batch, error("frozen"))
        assert producer.sent() is None


def test_the_last_try_waits_until_metadata_may_have_told_another_leader() -> None:
    producer = Producer(retries=1)
    batch = producer.sends()
    producer.fail(batch, Errors.KafkaConnectionError("reset"))
    assert producer.sent() is None


def run_on_the_event_loop(producer: Producer) -> list[float]:
    """How long the producer's coroutine sleeps, the first two times; the producer is closed then."""
    manager, naps = producer.client._manager, list[float]()
    manager.closed = False

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        manager.closed = len(naps) == 2

    manager._net.sleep = sleep
    asyncio.run(producer.sender._end_records_in_time())
    return naps


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_record_whose_transaction_waits_for_a_silent_broker_ends_in_time(is_closing: bool) -> None:
    """kafka-python expires nothing while a request of the transaction is under way, and ours is sent again and again."""
    producer = Producer()
    accumulator, sender = producer.accumulator, producer.sender
    accumulator.config["delivery_timeout_ms"] = 0
    (batch,) = accumulator._incomplete.all()
    sender._running = not is_closing
    sender._transaction_manager = Mock(has_fatal_error=lambda: False)
    run_on_the_event_loop(producer)
    (record,) = batch._record_futures
    assert isinstance(record.exception, Errors.KafkaTimeoutError) and "delivery_timeout_ms" in str(record.exception)
    sender.run_once()
    assert not accumulator.has_incomplete and sender._force_close is is_closing


@pytest.mark.parametrize(
    ("kind", "is_over"), [("plain", True), ("idempotent", True), ("transactional", False), ("failed transaction", True)]
)
def test_a_producer_that_closes_waits_for_no_request_once_its_records_have_ended(kind: str, is_over: bool) -> None:
    producer = Producer()
    if kind != "plain":
        producer.sender._transaction_manager = Mock(
            is_transactional=lambda: "transaction" in kind,
            has_error=lambda: "failed" in kind,
            has_in_flight_transactional_request=lambda: True,
        )
    producer.sender.initiate_close()
    batch = producer.sends()
    producer.sender.run_once()
    assert not producer.sender._force_close
    batch.complete(0, -1)
    producer.accumulator.deallocate(batch)
    producer.sender.run_once()
    assert producer.sender._force_close is is_over


def test_late_records_that_were_never_sent_are_told_as_not_written() -> None:
    """Whoever repeats them has to know."""
    producer = Producer()
    (late,) = producer.accumulator._incomplete.all()
    producer.let_pass(121, late)
    run_on_the_event_loop(producer)
    error = ended(late._record_futures[0])
    assert str(error).endswith("did not end within delivery_timeout_ms: they were not written"), error
    assert isinstance(error, Errors.KafkaTimeoutError) and "may be" not in str(error)


def test_late_records_are_looked_for_when_the_next_one_is_late() -> None:
    producer = Producer()
    (waiting,) = producer.accumulator._incomplete.all()
    producer.let_pass(50, waiting)
    assert run_on_the_event_loop(producer)[0] == pytest.approx(70, abs=1)
    producer.let_pass(70, waiting)
    assert run_on_the_event_loop(producer)[0] == pytest.approx(120, abs=1)
    assert isinstance(ended(waiting._record_futures[0]), Errors.KafkaTimeoutError)


def test_a_record_ends_in_time_while_no_broker_gives_a_producer_id() -> None:
    transactions = TolerantTransactionManager(api_version=(4, 2))
    transactions.init_producer_id()
    producer = Producer(transactions=transactions)
    (waiting,) = producer.accumulator._incomplete.all()
    producer.let_pass(121, waiting)
    run_on_the_event_loop(producer)
    assert isinstance(ended(waiting._record_futures[0]), Errors.KafkaTimeoutError)
    assert len(transactions._pending_requests) == 1 and not transactions.has_error()


def test_records_that_are_late_at_the_same_time_all_end() -> None:
    producer = idempotent()
    records = [producer.append(TopicPartition("orders", number)) for number in range(3)]
    producer.let_pass(121, *producer.accumulator._incomplete.all())
    run_on_the_event_loop(producer)
    assert all(isinstance(ended(record), Errors.KafkaTimeoutError) for record in records)


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_after_a_record_that_was_sent_is_late_the_next_ones_are_sent_under_the_next_epoch(is_in_flight: bool) -> None:
    """kafka-python gives up its producer id then, and never asks for another: it sends nothing any more."""
    producer = idempotent()
    assert producer.requested() == [0]
    (late,) = producer.accumulator._incomplete.all()
    if not is_in_flight:
        producer.fail(late, Errors.NotEnoughReplicasError())
    producer.append()
    producer.let_pass(121, late)
    assert not late.is_done
    producer.sender._late_at = 0.0
    assert producer.requested() == ([] if is_in_flight else [0])
    assert isinstance(ended(late._record_futures[0]), Errors.KafkaTimeoutError)
    assert str(ended(late._record_futures[0])).endswith(
        "within delivery_timeout_ms; the records were sent, and may be written"
    )
    if is_in_flight:
        producer.fail(late, Errors.KafkaConnectionError("reset"))
        assert producer.requested() == [0]
    (sent,) = producer.accumulator._incomplete.all()
    assert stamp(late) == (7, 0, 0) and stamp(sent) == (7, 1, 0)


def test_a_record_that_is_late_in_its_queue_lets_no_other_one_pass_the_batch_in_flight() -> None:
    producer = idempotent()
    assert producer.requested() == [0]
    late = producer.append()
    waiting = [batch for batch in producer.accumulator._incomplete.all() if batch.producer_id < 0]
    producer.let_pass(121, *waiting)
    run_on_the_event_loop(producer)
    assert isinstance(ended(late), Errors.KafkaTimeoutError) and "not written" in str(ended(late))
    producer.append()
    assert producer.requested() == []


@pytest.mark.parametrize(
    "error", [Errors.NoError, Errors.OutOfOrderSequenceNumberError, Errors.InvalidTxnStateError, None]
)
def test_a_late_batch_does_nothing_more_when_its_request_ends(error: type[Errors.BrokerResponseError] | None) -> None:
    """A transaction may have begun meanwhile that knows nothing of it."""
    producer = idempotent()
    assert producer.requested() == [0]
    (late,) = producer.accumulator._incomplete.all()
    producer.let_pass(121, late)
    run_on_the_event_loop(producer)
    assert producer.transactions.producer_id_and_epoch.epoch == 1
    producer.append()
    if error is None:
        producer.fail(late, Errors.KafkaConnectionError("reset"))
    else:
        producer.refuse(late, error)
    assert producer.transactions.producer_id_and_epoch.epoch == 1 and not producer.transactions.has_error()
    assert producer.requested() == [0] and len(producer.accumulator._incomplete.all()) == 1


def test_a_late_record_keeps_no_other_partition_from_being_sent() -> None:
    """kafka-python takes what it would send out of its queues first, and then neither sends it nor puts it back."""
    producer = idempotent()
    late = producer.sends()
    producer.fail(late, Errors.NotEnoughReplicasError())
    producer.let_pass(121, late)
    producer.append(OTHER)
    assert producer.requested() == [OTHER.partition]


@pytest.mark.parametrize(
    "error", [Errors.MessageSizeTooLargeError, Errors.ProducerFencedError, Errors.InvalidTxnStateError]
)
def test_a_record_that_a_broker_refuses_fails_alone(error: type[Errors.KafkaError]) -> None:
    """kafka-python's producer refuses each later send: that of too large a record, for example, ends it.

    So does what no broker can mean of a producer without a transactional id.
    """
    producer = idempotent()
    refused = producer.sends()
    producer.append()
    producer.append(OTHER)
    producer.refuse(refused, error)
    assert isinstance(ended(refused._record_futures[0]), error)
    assert [stamp(batch) for batch in producer.all_sent()] == [(7, 1, 0), (7, 1, 0)]


def test_a_producer_without_the_right_to_write_ends_as_in_kafka_python() -> None:
    producer = idempotent()
    refused = producer.sends()
    producer.refuse(refused, Errors.ClusterAuthorizationFailedError)
    assert producer.transactions.has_fatal_error()


def test_a_batch_of_an_earlier_epoch_is_sent_again_as_it_was_and_begins_no_other_epoch() -> None:
    producer = idempotent()
    producer.append(OTHER)
    first, other = producer.all_sent()
    producer.refuse(first, Errors.MessageSizeTooLargeError)
    producer.fail(other, Errors.KafkaConnectionError("reset"))
    producer.append(OTHER)
    assert producer.all_sent() == [other] and stamp(other) == (7, 0, 0)
    producer.refuse(other, Errors.MessageSizeTooLargeError)
    assert stamp(producer.sent()) == (7, 1, 0)


def may_be_written(producer: Producer, batch: ProducerBatch) -> None:
    """A first attempt at this batch ends without a response."""
    producer.fail(batch, Errors.KafkaConnectionError("reset"))
    while sent := producer.sent():
        assert sent is batch


@pytest.mark.parametrize("first_sequence", [10, 2**31 - 3])
@pytest.mark.parametrize("epoch", ["this", "an earlier"])
def test_the_parts_of_a_batch_that_may_be_written_keep_its_sequences(epoch: str, first_sequence: int) -> None:
    """Its limit was lowered since, perhaps: only under these sequences a broker refuses to write it again."""
    producer = idempotent()
    producer.transactions._sequence_numbers[OTHER] = first_sequence
    for _ in range(5):
        producer.append(OTHER)
    first, other = producer.all_sent()
    if epoch == "an earlier":
        producer.refuse(first, Errors.MessageSizeTooLargeError)
    may_be_written(producer, other)
    producer.refuse(other, Errors.MessageSizeTooLargeError)
    producer.append(OTHER)
    producer.let_pass(1, *producer.accumulator._incomplete.all())
    found = []
    while batch := producer.sent():
        found.append((batch.record_count, stamp(batch)))
    later = (7, 0, (first_sequence + 5) % 2**31) if epoch == "this" else (7, 1, 0)
    assert found == [(3, (7, 0, first_sequence)), (2, (7, 0, (first_sequence + 3) % 2**31)), (1, later)]


def test_a_split_that_fails_leaves_the_sequences_of_a_batch_that_may_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker would take the next batch for one that it has, and no record of it would be written."""
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    may_be_written(producer, batch)
    monkeypatch.setattr("kafka.producer.record_accumulator.MemoryRecordsBuilder", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        producer.accumulator.split_and_reenqueue(batch)
    assert producer.transactions.sequence_number(PARTITION) == batch.record_count == 2


def test_a_part_that_is_split_again_frees_no_sequence_of_those_after_it() -> None:
    """A broker would take the next batch for one that it has, and no record of it would be written."""
    producer = idempotent()
    for _ in range(3):
        producer.append()
    batch = producer.sends()
    may_be_written(producer, batch)
    for _ in range(2):
        producer.refuse(batch, Errors.MessageSizeTooLargeError)
        producer.let_pass(1, *producer.accumulator._incomplete.all())
        batch = producer.sends()
    producer.append()
    found = [stamp(batch)]
    while part := producer.sent():
        found.append(stamp(part))
    assert found == [(7, 0, 0), (7, 0, 1), (7, 0, 2), (7, 0, 4)]


@pytest.mark.parametrize("epoch", ["this", "an earlier"])
def test_the_parts_of_a_batch_that_is_not_written_are_new_batches(epoch: str) -> None:
    """Also the later records of a batch with one that is too large are written."""
    producer = idempotent()
    producer.transactions._sequence_numbers[OTHER] = 10
    for _ in range(5):
        producer.append(OTHER)
    first, other = producer.all_sent()
    if epoch == "an earlier":
        producer.refuse(first, Errors.MessageSizeTooLargeError)
    producer.refuse(other, Errors.MessageSizeTooLargeError)
    (epoch_of_parts, at) = (0, 10) if epoch == "this" else (1, 0)
    part = producer.sends()
    assert part.record_count == 3 and stamp(part) == (7, epoch_of_parts, at)
    while part.record_count > 1:
        producer.refuse(part, Errors.MessageSizeTooLargeError)
        part = producer.sends()
        assert stamp(part) == (7, epoch_of_parts, at)
    producer.refuse(part, Errors.MessageSizeTooLargeError)
    assert "may be written" not in str(ended(part._record_futures[0]))
    found = []
    while batch := producer.sent():
        found.append((batch.record_count, stamp(batch)))
    at = epoch_of_parts + 1
    assert found == [(1, (7, at, 0)), (1, (7, at, 1)), (2, (7, at, 2))]


@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_batch_may_be_written_if_its_connection_sent_it_again(is_repeated: bool) -> None:
    """Its response was lost on a living connection, of which the sender knows nothing."""
    producer, counters = idempotent(), RecoveryCounters()
    producer.client._manager.recovery_counters = counters
    producer.append()
    assert producer.requested() == [0]
    (batch,) = producer.accumulator._incomplete.all()
    if is_repeated:
        counters.add(Requeued("Produce", 1, None, "lost"), LEADER)
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    assert [part.in_retry() for part in producer.accumulator._batches[PARTITION]] == [is_repeated] * 2


@pytest.mark.parametrize(
    ("error", "at", "is_in_doubt"),
    [
        (Errors.NotLeaderForPartitionError, -1, False),
        (Errors.NotEnoughReplicasError, -1, False),
        (Errors.NotLeaderForPartitionError, 70, True),  # deposed while it waited for its followers
        (Errors.NotEnoughReplicasAfterAppendError, 70, True),
        (Errors.RequestTimedOutError, 70, True),
        (Errors.KafkaStorageError, -1, True),
    ],
)
def test_the_parts_of_a_batch_that_was_refused_before_are_new_batches(
    error: type[Errors.BrokerResponseError], at: int, is_in_doubt: bool
) -> None:
    """Else one record that is too large, after a leader has moved, would fail all records of its batch."""
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    producer.refuse(batch, error, at)
    producer.let_pass(1, batch)
    assert producer.sends() is batch
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    assert [part.in_retry() for part in producer.accumulator._batches[PARTITION]] == [is_in_doubt] * 2


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_an_aborted_transaction_leaves_no_gap_in_the_sequences(is_in_doubt: bool) -> None:
    """The next one begins at the sequence that the broker expects: nothing that has sequences is aborted unsent."""
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    if is_in_doubt:
        may_be_written(producer, batch)
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    producer.let_pass(1, *producer.accumulator._incomplete.all())
    producer.sends()
    producer.accumulator.abort_undrained_batches(Errors.TransactionAbortedError())
    left = producer.accumulator._incomplete.all()
    assert producer.transactions.sequence_number(PARTITION) == sum(part.record_count for part in left)
    assert len(left) == (2 if is_in_doubt else 1)


def test_parts_that_are_out_of_order_may_be_written_and_the_next_epoch_begins() -> None:
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    records = batch._record_futures
    may_be_written(producer, batch)
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    producer.append()
    for record in records:
        producer.let_pass(1, *producer.accumulator._incomplete.all())
        part = producer.sends()
        producer.refuse(part, Errors.OutOfOrderSequenceNumberError)
        assert isinstance(ended(record), Errors.OutOfOrderSequenceNumberError) and "may be written" in str(
            ended(record)
        )
    assert stamp(producer.sent()) == (7, 1, 0)


def test_a_record_that_may_be_written_and_is_too_large_says_so() -> None:
    producer = idempotent()
    batch = producer.sends()
    may_be_written(producer, batch)
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    error = ended(batch._record_futures[0])
    assert isinstance(error, Errors.MessageSizeTooLargeError) and "may be written" in str(error)


@pytest.mark.parametrize("make", [idempotent, Producer])
def test_late_parts_of_a_batch_that_may_be_written_say_so(make: Any) -> None:
    """Also without a producer id, where they may be written twice, as with kafka-python."""
    producer = make()
    producer.append()
    batch = producer.sends()
    records = batch._record_futures
    may_be_written(producer, batch)
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    another = producer.append()
    producer.let_pass(121, *[part for part in producer.accumulator._incomplete.all() if part.in_retry()])
    run_on_the_event_loop(producer)
    assert ["may be written" in str(ended(record)) for record in records] == [True, True]
    assert not another.is_done


NOT_CONNECTED = Errors.KafkaTimeoutError("the connection was not ready before the deadline")


@pytest.mark.parametrize(
    ("first", "last", "is_said"),
    [
        (ConnectionLostError("reset"), NOT_CONNECTED, True),
        (ConnectionLostError("reset"), Errors.NodeNotReadyError("1"), True),
        (Errors.NodeNotReadyError("1"), ConnectionTimedOutError("frozen"), True),
        (Errors.NodeNotReadyError("1"), RecoveryExhaustedError("sent twice", ["no response"]), True),
        (Errors.NodeNotReadyError("1"), Errors.NodeNotReadyError("1"), False),
    ],
)
def test_a_record_that_is_given_up_without_a_response_says_whether_it_may_be_written(
    first: Exception, last: Exception, is_said: bool
) -> None:
    """Also where its last attempt was not even sent; by its age, or by the number of attempts."""
    for seconds, retries in ((121, 10), (0, 1)):
        producer = Producer(retries=retries)
        batch = producer.sends()
        producer.fail(batch, first)
        producer.let_pass(1, batch)
        producer.sends()
        producer.let_pass(seconds, batch)
        producer.fail(batch, last)
        error = ended(batch._record_futures[0])
        assert type(error) is type(last) and str(last) in str(error).replace(
            "; the records were sent, and may be written", ""
        )
        assert ("may be written" in str(error)) == is_said
        assert "may be written" not in str(last)  # other batches of the request have the same error


def test_a_response_that_does_not_prove_a_refusal_says_so() -> None:
    producer = Producer(retries=0)
    batch = producer.sends()
    producer.refuse(batch, Errors.NotEnoughReplicasAfterAppendError)
    assert "may be written" in str(ended(batch._record_futures[0]))


def test_no_record_is_added_to_a_part_before_it_has_its_sequence() -> None:
    producer = idempotent()
    producer.append()
    batch = producer.sends()
    may_be_written(producer, batch)
    sequence_number, threads = producer.transactions.sequence_number, []

    def append_meanwhile(partition: TopicPartition) -> Any:
        if producer.accumulator._batches[partition]:  # the parts are there
            threads.append(threading.Thread(target=producer.append))
            threads[-1].start()
            threads[-1].join(0.05)
        return sequence_number(partition)

    producer.transactions.sequence_number = append_meanwhile
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    producer.transactions.sequence_number = sequence_number
    assert threads
    for thread in threads:
        thread.join(10)
    producer.let_pass(1, *producer.accumulator._incomplete.all())
    assert [stamp(producer.sent()) for _ in range(3)] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]


@pytest.mark.parametrize("message_version", [1, 2])
def test_a_batch_without_a_producer_id_is_split(message_version: int) -> None:
    producer = Producer(message_version=message_version)
    producer.append()
    batch = producer.sends()
    producer.refuse(batch, Errors.MessageSizeTooLargeError)
    assert [part.record_count for part in (producer.sent(), producer.sent()) if part is not None] == [1, 1]


def test_after_the_last_epoch_another_producer_id_is_asked_for() -> None:
    producer = idempotent(epoch=32_767)
    refused = producer.sends()
    producer.append()
    producer.refuse(refused, Errors.MessageSizeTooLargeError)
    assert producer.sent() is None
    (request,) = [waiting for _, _, waiting in producer.transactions._pending_requests]
    assert request.request.producer_id == -1
    request.transaction_manager._in_flight_request_correlation_id = 1
    request.on_complete(1, SimpleNamespace(error_code=0, producer_id=8, producer_epoch=0))
    assert stamp(producer.sent()) == (8, 0, 0)


def two_in_flight() -> tuple[Producer, list[ProducerBatch]]:
    producer = idempotent()
    for partition in (OTHER, OTHER):
        producer.append(partition)
    assert producer.requested() == [0, 1]
    return producer, [queue[0][1] for queue in producer.sender._in_flight_batches.values()]


def test_a_batch_whose_handling_raises_fails_and_the_others_of_its_request_are_handled() -> None:
    producer, batches = two_in_flight()
    producer.accumulator.split_and_reenqueue = Mock(side_effect=TypeError("no way to split"))
    records = [record for batch in batches for record in batch._record_futures]
    producer.sender._handle_produce_response(
        LEADER, 0.0, batches, response(Errors.MessageSizeTooLargeError, OTHER, PARTITION)
    )
    assert isinstance(ended(records[0]), Errors.MessageSizeTooLargeError)
    assert "no way to split" in str(ended(records[1]))
    assert not producer.accumulator.has_incomplete


@pytest.mark.parametrize("end", ["response", "failure"])
def test_a_request_that_ends_leaves_its_partitions_to_the_next_batches_whatever_its_handling_raises(end: str) -> None:
    producer, batches = two_in_flight()
    producer.append()
    assert producer.requested() == []
    if end == "response":
        unasked = TopicPartition(PARTITION.topic, 9)
        with pytest.raises(KeyError):
            producer.sender._handle_produce_response(
                LEADER, 0.0, batches, response(Errors.MessageSizeTooLargeError, unasked, PARTITION, OTHER)
            )
    else:
        producer.accumulator.reenqueue = Mock(side_effect=SystemExit)
        with pytest.raises(SystemExit):
            producer.sender._failed_produce(batches, LEADER, Errors.KafkaConnectionError("reset"))
    producer.append(OTHER)
    assert producer.requested() == [0, 1]


def test_a_batch_that_is_sent_again_is_not_ended_by_what_is_raised_afterwards() -> None:
    producer, (batch, _) = two_in_flight()
    producer.cluster.request_update.side_effect = RuntimeError("no loop")
    producer.refuse(batch, Errors.NotLeaderForPartitionError)
    assert batch.final_state is None and batch in producer.accumulator._batches[PARTITION]
