"""transactions.py: no request is forgotten, a commit can be waited for again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.future import Future
from kafka.producer.transaction_manager import FindCoordinatorHandler, TransactionState
from kafka.protocol.metadata import CoordinatorType

from tolerant_client.errors import CoordinatorUnavailableError
from tolerant_client.transactions import TolerantTransactionManager


def make() -> Any:
    """Nobody to ask for metadata."""
    return TolerantTransactionManager(
        transactional_id="x", transaction_timeout_ms=1000, retry_backoff_ms=10, metadata=SimpleNamespace(_manager=None)
    )


def pending(transactions: Any) -> list[Any]:
    return [handler for _, _, handler in sorted(transactions._pending_requests)]


def in_transaction(transactions: Any) -> Any:
    transactions.initialize_transactions()
    transactions.next_request_handler(False)
    transactions._transition_to(TransactionState.READY)
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


def test_lookups_that_find_nothing_for_too_long_are_told_and_an_answer_ends_the_count() -> None:
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
