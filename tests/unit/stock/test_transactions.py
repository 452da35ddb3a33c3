"""transactions.py: no request is forgotten, a commit can be waited for again."""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.producer.transaction_manager import (
    AddOffsetsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    ProducerIdAndEpoch,
    TransactionState,
    TxnOffsetCommitHandler,
)
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorResponse
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.errors import (
    ConnectionLostError,
    ConnectionTimedOutError,
    CoordinatorUnavailableError,
    OutcomeUnknownError,
    TransactionOutcomeUnknownError,
)
from tolerant_client.stock.transactions import TolerantTransactionManager
from tolerant_client.tracker.events import RecoveryCounters, Requeued


def make() -> Any:
    """Metadata without a manager to ask."""
    return TolerantTransactionManager(
        transactional_id="x", transaction_timeout_ms=1000, retry_backoff_ms=10, metadata=SimpleNamespace(_manager=None)
    )


def pending(transactions: Any) -> list[Any]:
    return [handler for _, _, handler in sorted(transactions._pending_requests)]


def in_transaction(transactions: Any) -> Any:
    transactions.initialize_transactions()
    transactions.next_request_handler(False)
    transactions._transition_to(TransactionState.READY)
    transactions.producer_id_and_epoch = ProducerIdAndEpoch(7, 3)
    transactions.begin_transaction()
    transactions._transaction_started = True
    return transactions


def test_request_whose_coordinator_refuses_the_connection_is_not_forgotten() -> None:
    transactions = make()
    transactions.initialize_transactions()
    request = transactions.next_request_handler(False)
    transactions._transaction_coordinator = "coordinator-1"
    transactions.lookup_coordinator_for_request(request)
    lookup, kept = pending(transactions)
    assert isinstance(lookup, FindCoordinatorHandler)
    assert kept is request
    transactions.retry(request)  # what the sender does where it does not forget
    assert pending(transactions) == [lookup, request]


def test_commit_that_was_begun_is_waited_for_again_and_a_new_one_is_another() -> None:
    transactions = in_transaction(make())
    first = transactions.begin_commit()
    assert transactions.begin_commit() is first
    assert len(pending(transactions)) == 1
    assert first.wait(timeout_ms=10) is False
    pending(transactions)[0].result.done()
    transactions._pending_requests.clear()
    transactions._complete_transaction()
    assert first.wait() is True
    transactions.begin_transaction()
    transactions._transaction_started = True
    assert transactions.begin_commit() is not first


def test_lookups_that_find_nothing_for_too_long_are_told_and_a_response_ends_the_count() -> None:
    transactions = make()
    result = transactions.initialize_transactions()
    told = CoordinatorUnavailableError("told", "x")
    looked: list[str] = []
    watch = transactions._watches[CoordinatorType.TRANSACTION]
    watch.is_raising = True

    def call_soon(look: Any) -> Any:
        looked.append(look.__self__.name)
        watch.absence.told(1e9)
        watch._error = told
        return Future().success(None)

    transactions._connections = SimpleNamespace(call_soon=call_soon)
    watch.absence.__init__(0.0)
    request = transactions.next_request_handler(False)
    transactions.lookup_coordinator_for_request(request)
    lookup = transactions.next_request_handler(False)
    assert isinstance(lookup, FindCoordinatorHandler)
    for _ in range(3):
        assert result.wait(timeout_ms=1) is False
        lookup.reenqueue()
        assert transactions.next_request_handler(False) is lookup
    with pytest.raises(CoordinatorUnavailableError, match="told"):
        result.wait(timeout_ms=60_000)
    assert looked == ["x"]
    request.result.done()
    assert result.wait() is True
    assert not any(absence.failures for absence in (watch.absence for watch in transactions._watches.values()))


def test_lookups_in_a_series_of_failures_make_the_sender_pause() -> None:
    transactions = make()
    transactions.initialize_transactions()
    request = transactions.next_request_handler(False)
    pauses = []
    for _ in range(5):
        transactions._transaction_coordinator = "coordinator-1"
        transactions.lookup_coordinator_for_request(request)
        pauses.append(transactions.next_request_handler(False).is_retry)
    assert pauses == [False, False, True, True, True]


# -- what became of a transaction ------------------------------------------------


def sent(transactions: Any) -> Any:
    """The next request, as kafka-python's sender takes it; `answer` ends it."""
    request = transactions.next_request_handler(False)
    identity = transactions.next_in_flight_request_correlation_id()
    return SimpleNamespace(
        handler=request, request=request.request, answer=lambda outcome: request.on_complete(identity, outcome)
    )


ENDS = [
    Errors.KafkaConnectionError("reset"),
    Errors.RequestTimedOutError("silent"),
    Errors.CorrelationIdError("shifted"),
    Errors.InvalidReceiveError("bad length"),
    Errors.Cancelled(),
    Errors.NodeNotReadyError(1),
    Errors.KafkaTimeoutError("never sent"),
]


@pytest.mark.parametrize("ended", ENDS, ids=lambda error: type(error).__name__)
def test_a_request_is_sent_again_however_its_connection_ended(ended: Exception) -> None:
    transactions = in_transaction(make())
    result = transactions.begin_commit()
    commit = sent(transactions)
    assert isinstance(commit.handler, EndTxnHandler)
    commit.answer(ended)
    lookup, again = pending(transactions)
    assert isinstance(lookup, FindCoordinatorHandler)
    assert again is commit.handler
    assert not result.is_done


def test_the_epoch_is_raised_after_a_lost_response_and_before_the_next_transaction() -> None:
    transactions = in_transaction(make())
    transactions._api_version = (3, 9)
    result = transactions.begin_commit()
    sent(transactions).answer(Errors.KafkaConnectionError("reset"))
    transactions.next_request_handler(False)  # the lookup
    sent(transactions).answer(SimpleNamespace(error_code=0))
    assert result.wait() is True  # it is committed, whatever happens to the fence
    begun = threading.Thread(target=transactions.begin_transaction)
    begun.start()
    fence = sent(transactions)
    assert isinstance(fence.handler, InitProducerIdHandler)
    assert (fence.request.producer_id, fence.request.producer_epoch) == (7, 3)
    begun.join(0.3)
    assert begun.is_alive()
    fence.answer(SimpleNamespace(error_code=0, producer_id=7, producer_epoch=4))
    begun.join(10)
    assert transactions._current_state == TransactionState.IN_TRANSACTION
    assert transactions.producer_id_and_epoch.epoch == 4


def test_brokers_that_cannot_raise_an_epoch_are_not_asked_to() -> None:
    transactions = in_transaction(make())
    transactions._api_version = (2, 4)
    transactions.begin_commit()
    sent(transactions).answer(Errors.KafkaConnectionError("reset"))
    transactions.next_request_handler(False)
    sent(transactions).answer(SimpleNamespace(error_code=0))
    assert pending(transactions) == []
    transactions.begin_transaction()


FENCED, INVALID_STATE = 90, 48


@pytest.mark.parametrize("code", [FENCED, INVALID_STATE])
def test_a_commit_whose_response_was_lost_and_whose_repeat_is_refused_is_unknown(code: int) -> None:
    transactions = in_transaction(make())
    result = transactions.begin_commit()
    sent(transactions).answer(Errors.KafkaConnectionError("reset"))
    transactions.next_request_handler(False)
    sent(transactions).answer(SimpleNamespace(error_code=code))
    with pytest.raises(TransactionOutcomeUnknownError, match="may or may not be committed") as caught:
        result.wait()
    assert isinstance(caught.value, OutcomeUnknownError)
    assert isinstance(caught.value, Errors.ProducerFencedError)  # whoever handles fencing handles this
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_commit_that_is_refused_at_once_is_fenced_as_in_kafka_python() -> None:
    transactions = in_transaction(make())
    result = transactions.begin_commit()
    sent(transactions).answer(SimpleNamespace(error_code=FENCED))
    with pytest.raises(Errors.ProducerFencedError) as caught:
        result.wait()
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_commit_that_was_sent_again_below_and_refused_is_unknown_too() -> None:
    transactions = in_transaction(make())
    transactions._connections = SimpleNamespace(recovery_counters=RecoveryCounters())
    result = transactions.begin_commit()
    commit = sent(transactions)
    transactions._connections.recovery_counters.add(Requeued("EndTxn", 1, None, "lost"), 1)
    commit.answer(SimpleNamespace(error_code=FENCED))
    transactions._connections = None
    with pytest.raises(TransactionOutcomeUnknownError):
        result.wait()


def test_who_has_taken_over_keeps_the_transactional_id() -> None:
    # Kafka 2.5 and 2.6 respond with 47, after which kafka-python takes the id back by asking without an epoch.
    transactions = in_transaction(make())
    transactions._api_version = (2, 5)
    transactions.begin_commit()
    sent(transactions).answer(Errors.KafkaConnectionError("reset"))
    transactions.next_request_handler(False)
    sent(transactions).answer(SimpleNamespace(error_code=0))
    sent(transactions).answer(SimpleNamespace(error_code=47))
    with pytest.raises(Errors.ProducerFencedError):
        transactions.begin_transaction()
    assert pending(transactions) == []


@pytest.mark.parametrize("error", [Errors.KafkaTimeoutError("expired"), Errors.OutOfOrderSequenceNumberError()])
def test_a_transaction_with_a_failed_record_is_aborted_never_committed(error: Exception) -> None:
    transactions = in_transaction(make())
    transactions._api_version = (3, 9)
    assert transactions.classify_batch_error(error, SimpleNamespace()) == transactions.ERROR_CLASS_ABORTABLE
    transactions.transition_to_abortable_error(error)
    with pytest.raises(Errors.KafkaError, match="error state"):
        transactions.begin_commit()
    transactions.begin_abort()
    ended = sent(transactions)
    assert not ended.request.committed
    ended.answer(SimpleNamespace(error_code=0))
    assert isinstance(sent(transactions).handler, InitProducerIdHandler)


def refused_for_its_epoch(version: tuple[int, int] = (4, 2)) -> tuple[Any, Any]:
    """An abort whose EndTxn is refused."""
    transactions = in_transaction(make())
    transactions._api_version = version
    aborted = transactions.begin_abort()
    sent(transactions).answer(SimpleNamespace(error_code=FENCED))
    return transactions, aborted


def described(state: str, error_code: int = 0, epoch: int = 4) -> Any:
    found = SimpleNamespace(error_code=error_code, transaction_state=state, producer_id=7, producer_epoch=epoch)
    return SimpleNamespace(transaction_states=[found])


def test_the_abort_of_a_transaction_that_timed_out_takes_the_next_epoch() -> None:
    transactions, aborted = refused_for_its_epoch()
    asked = sent(transactions)
    assert asked.request.transactional_ids == ["x"]
    asked.answer(described("", error_code=16))  # NotCoordinator
    transactions.next_request_handler(False)  # the lookup
    sent(transactions).answer(described("CompleteAbort"))
    fence = sent(transactions)
    assert (fence.request.producer_id, fence.request.producer_epoch) == (7, 3)
    assert not aborted.is_done
    fence.answer(SimpleNamespace(error_code=0, producer_id=7, producer_epoch=4))
    assert aborted.wait() is True
    transactions.begin_transaction()
    assert transactions.producer_id_and_epoch.epoch == 4
    assert not transactions._transaction_started
    assert pending(transactions) == []


@pytest.mark.parametrize(
    ("state", "epoch"), [("Ongoing", 4), ("Empty", 4), ("CompleteCommit", 4), ("CompleteAbort", 5)]
)
def test_a_producer_that_was_taken_over_leaves_the_new_owner_alone(state: str, epoch: int) -> None:
    """InitProducerId would abort the transaction that the new owner has begun, or begins after one that it has aborted."""
    transactions, aborted = refused_for_its_epoch()
    sent(transactions).answer(described(state, epoch=epoch))
    with pytest.raises(Errors.ProducerFencedError):
        aborted.wait()
    assert transactions.has_fatal_error()
    assert pending(transactions) == []


def test_a_next_epoch_that_is_refused_ends_the_producer() -> None:
    transactions, aborted = refused_for_its_epoch()
    sent(transactions).answer(described("CompleteAbort"))
    sent(transactions).answer(SimpleNamespace(error_code=FENCED))
    with pytest.raises(Errors.ProducerFencedError):
        aborted.wait()
    assert transactions.has_fatal_error()


def test_brokers_that_give_no_next_epoch_after_a_timeout_are_not_asked_for_it() -> None:
    transactions, aborted = refused_for_its_epoch((3, 9))
    with pytest.raises(Errors.ProducerFencedError):
        aborted.wait()
    assert pending(transactions) == []


def test_an_interrupt_at_the_end_of_a_call_leaves_no_lock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kafka-python's Condition the sender waited for it for ever, and so did the next call."""
    transactions = make()
    with monkeypatch.context() as interrupted:
        interrupted.setattr(threading.Condition, "__exit__", Mock(side_effect=KeyboardInterrupt))
        with suppress(KeyboardInterrupt):
            transactions.has_error()
    sender = threading.Thread(target=transactions.has_error, daemon=True)
    sender.start()
    sender.join(10)
    assert not sender.is_alive()


# -- when a call ends --------------------------------------------------------------


def impatient() -> Any:
    """Calls that may wait 300 ms; `_connections.closed` is what the sender's end sets."""
    transactions = in_transaction(make())
    transactions._connections = SimpleNamespace(closed=False, call_soon=lambda look: Future().success(None))
    transactions._max_block = 0.3
    return transactions


def test_a_commit_that_is_not_answered_in_time_raises_and_the_same_call_waits_again_for_the_same_commit() -> None:
    transactions = impatient()
    commit = transactions.begin_commit()
    sent(transactions).answer(ConnectionTimedOutError("silent"))
    with pytest.raises(Errors.KafkaTimeoutError, match="make the same call again") as caught:
        commit.wait()
    assert caught.value.retriable
    transactions.next_request_handler(False)  # the lookup
    sent(transactions).answer(SimpleNamespace(error_code=0))  # between the two calls
    again = transactions.begin_commit()
    assert again.wait() is True
    assert len(transactions._pending_requests) <= 1  # except for the fence
    with pytest.raises(Errors.KafkaError, match="READY to state COMMITTING|BUMPING_PRODUCER_EPOCH to state COMMITTING"):
        transactions.begin_commit()


def test_a_commit_whose_wait_is_interrupted_when_it_is_done_is_waited_for_again() -> None:
    """An interrupt tells the caller nothing: the same call again was an invalid transition, as in kafka-python."""
    transactions = impatient()
    commit = transactions.begin_commit()
    sent(transactions).answer(SimpleNamespace(error_code=0))
    wait, commit._result.wait = commit._result.wait, Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        commit.wait()
    commit._result.wait = wait
    assert transactions.begin_commit().wait() is True


@pytest.mark.parametrize("ended", [error for error in ENDS if not isinstance(error, Errors.KafkaConnectionError)])
def test_what_ends_stocks_producer_gives_our_calls_an_end(ended: Exception) -> None:
    transactions = impatient()
    commit = transactions.begin_commit()
    sent(transactions).answer(ended)
    with pytest.raises(Errors.KafkaTimeoutError):
        commit.wait()


def test_a_response_lets_calls_wait_again_but_a_lookups_does_not() -> None:
    transactions = impatient()
    transactions._metadata.add_coordinator = lambda *what: "coordinator-1"
    transactions.begin_commit()
    sent(transactions).answer(ConnectionTimedOutError("silent"))
    lookup = sent(transactions)
    assert isinstance(lookup.handler, FindCoordinatorHandler)
    lookup.answer(FindCoordinatorResponse(version=0, error_code=0, node_id=1, host="h", port=9092))
    assert transactions.max_wait() == 0.3, "any broker responds to a lookup, even while the coordinator is frozen"
    ended = sent(transactions)
    assert isinstance(ended.handler, EndTxnHandler)
    ended.answer(SimpleNamespace(error_code=51))
    assert transactions.max_wait() == float("inf")


def test_refused_connections_end_no_call_as_in_stock() -> None:
    transactions = impatient()
    commit = transactions.begin_commit()
    lost = ConnectionLostError("reset")
    lost.__cause__ = ConnectionResetError()
    for ended in (Errors.KafkaConnectionError("111 ECONNREFUSED"), lost):
        sent(transactions).answer(ended)
        transactions.next_request_handler(False)  # the lookup
    waiting = threading.Thread(target=commit.wait)
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive()
    sent(transactions).answer(SimpleNamespace(error_code=0))
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_begin_ends_while_its_fence_has_no_response_and_may_be_repeated() -> None:
    transactions = impatient()
    transactions._api_version = (3, 9)
    transactions.begin_commit()
    sent(transactions).answer(ConnectionTimedOutError("silent"))
    transactions.next_request_handler(False)
    sent(transactions).answer(SimpleNamespace(error_code=0))
    fence = sent(transactions)
    fence.answer(ConnectionTimedOutError("silent"))
    with pytest.raises(Errors.KafkaTimeoutError, match="new epoch"):
        transactions.begin_transaction()
    transactions.next_request_handler(False)
    sent(transactions).answer(SimpleNamespace(error_code=0, producer_id=7, producer_epoch=4))
    transactions.begin_transaction()
    assert transactions._current_state == TransactionState.IN_TRANSACTION


def test_what_waits_when_the_producer_is_closed_fails_and_a_commit_is_unknown() -> None:
    transactions = impatient()
    offsets = transactions.send_offsets_to_transaction({}, "group")
    commit = transactions.begin_commit()
    transactions._connections.closed = True
    with pytest.raises(TransactionOutcomeUnknownError, match="may or may not be committed"):
        commit.wait()
    with pytest.raises(Errors.KafkaError, match="closed before the response to the offset commit arrived"):
        offsets.wait()


def test_a_commit_that_is_begun_after_the_close_is_known_not_to_be_one() -> None:
    transactions = impatient()
    transactions._connections.closed = True
    with pytest.raises(Errors.KafkaError, match="is closed") as caught:
        transactions.begin_commit()
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_commit_nobody_waited_for_is_not_taken_for_the_next_one() -> None:
    transactions = impatient()
    first = transactions.begin_commit()
    sent(transactions).answer(SimpleNamespace(error_code=0))
    transactions.begin_transaction()
    assert transactions.begin_commit() is not first


# -- offsets in a transaction ------------------------------------------------------

ILLEGAL_GENERATION = 22


def at(offset: int, partition: int = 0) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", partition): OffsetAndMetadata(offset, "", -1)}


def offset_commit(transactions: Any) -> Any:
    """The TxnOffsetCommit on its way, once AddOffsetsToTxn has its response; `carries` is partition to offset."""
    added = sent(transactions)
    assert isinstance(added.handler, AddOffsetsToTxnHandler)
    added.answer(SimpleNamespace(error_code=0))
    found = sent(transactions)
    assert isinstance(found.handler, TxnOffsetCommitHandler)
    found.carries = {p.partition_index: p.committed_offset for topic in found.request.topics for p in topic.partitions}
    return found


def committed(request: Any, code: int = 0) -> Any:
    """The response to a TxnOffsetCommit, in the shape that kafka-python unpacks."""
    parts = request.handler._build_request().topics
    return SimpleNamespace(topics=[(t.name, [(p.partition_index, code) for p in t.partitions]) for t in parts])


def test_the_same_offsets_again_after_a_timeout_wait_for_the_same_request() -> None:
    transactions = impatient()
    request_of = transactions.send_offsets_to_transaction
    first = request_of(at(5), "group")
    offset_commit(transactions).answer(ConnectionTimedOutError("silent"))
    with pytest.raises(Errors.KafkaTimeoutError, match="make the same call again"):
        first.wait()
    assert request_of(at(5), "group") is first
    transactions.next_request_handler(False)  # the lookup
    repeat = sent(transactions)
    repeat.answer(committed(repeat))  # between the two calls
    again = request_of(at(5), "group")
    assert again.wait() is True
    assert pending(transactions) == []
    assert request_of(at(5), "group") is not first, "its caller knows its end: this is another call"


def test_other_offsets_wait_until_the_earlier_ones_are_done() -> None:
    transactions = impatient()
    first = transactions.send_offsets_to_transaction(at(5), "group")
    request = offset_commit(transactions)
    results: list[Any] = []
    second = threading.Thread(target=lambda: results.append(transactions.send_offsets_to_transaction(at(10), "group")))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    assert pending(transactions) == []
    request.answer(committed(request))
    second.join(10)
    assert first.is_done
    assert offset_commit(transactions).carries == {0: 10}
    assert not results[0].is_done


def test_offsets_that_a_lost_copy_could_undo_are_refused_and_the_transaction_is_aborted() -> None:
    transactions = impatient()
    first = transactions.send_offsets_to_transaction(at(5), "group")
    offset_commit(transactions).answer(ConnectionTimedOutError("silent"))
    transactions.next_request_handler(False)
    repeat = sent(transactions)
    repeat.answer(committed(repeat))
    assert first.wait() is True
    other_partition = transactions.send_offsets_to_transaction(at(7, partition=1), "group")
    request = offset_commit(transactions)
    request.answer(committed(request))
    assert other_partition.wait() is True
    with pytest.raises(Errors.KafkaError, match="offset 5 of t-0 in group group was lost.*abort the transaction"):
        transactions.send_offsets_to_transaction(at(10), "group")
    with pytest.raises(Errors.KafkaError, match="error state"):
        transactions.begin_commit()
    assert pending(transactions) == []
    transactions.begin_abort()
    sent(transactions).answer(SimpleNamespace(error_code=0))
    transactions.begin_transaction()
    transactions.send_offsets_to_transaction(at(10), "group")
    assert offset_commit(transactions).carries == {0: 10}


def test_offsets_of_an_aborted_transaction_are_not_sent_with_those_of_the_next_one() -> None:
    transactions = in_transaction(make())
    transactions.send_offsets_to_transaction(at(5), "group")
    refused = offset_commit(transactions)
    refused.answer(committed(refused, ILLEGAL_GENERATION))
    transactions.begin_abort()
    sent(transactions).answer(SimpleNamespace(error_code=0))
    transactions.begin_transaction()
    transactions.send_offsets_to_transaction(at(3, partition=1), "group")
    assert offset_commit(transactions).carries == {1: 3}


def test_offsets_are_those_of_the_call_whatever_becomes_of_its_dict() -> None:
    transactions = in_transaction(make())
    offsets = at(5)
    transactions.send_offsets_to_transaction(offsets, "group")
    offsets.update(at(10))
    assert offset_commit(transactions).carries == {0: 5}


def test_offsets_outside_a_transaction_are_refused_as_in_kafka_python() -> None:
    transactions = in_transaction(make())
    transactions.send_offsets_to_transaction(at(5), "group")
    transactions.begin_commit()
    with pytest.raises(Errors.KafkaError, match="not in an active transaction"):
        transactions.send_offsets_to_transaction(at(5), "group")
