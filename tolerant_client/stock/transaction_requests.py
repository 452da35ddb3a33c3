"""How one request of kafka-python's transaction manager ends: tried again, done, or the end of the producer.

Laws:
- A commit is reported as done when a broker said so.  Where one copy of its EndTxn was lost and another is refused, the
  transaction may or may not be committed: TransactionOutcomeUnknownError.
- A refused epoch does not prove that somebody has taken over: a broker also raises it when it aborts a transaction for
  its age.  InitProducerId tells these apart (KIP-890, transaction.version 2), but aborts what a new owner has begun.
  So after an abort that is refused for its epoch we first ask for the state of the transaction, which changes nothing,
  and for the next epoch only if the transaction was aborted.
"""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType

from tolerant_client.errors import ConnectionLostError, TransactionOutcomeUnknownError
from tolerant_client.stock.stock_names import (
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    Priority,
    TxnRequestHandler,
)

_ABORTED = ("PrepareAbort", "CompleteAbort")


class OwnerHandler(TxnRequestHandler):  # type: ignore[misc]  # kafka-python is untyped
    """Asks the coordinator whether it aborted our transaction, or somebody owns the transactional.id (KIP-664)."""

    def __init__(self, owner: Any, result: Any) -> None:
        super().__init__(owner, result=result)
        self.request = DescribeTransactionsRequest(transactional_ids=[owner.transactional_id])

    @property
    def priority(self) -> Any:
        """That of the request that follows it."""
        return Priority.INIT_PRODUCER_ID

    def handle_response(self, response: Any) -> None:
        """Continues with the next epoch, or ends the producer."""
        (found,) = response.transaction_states
        error = Errors.for_code(found.error_code)
        if issubclass(error, Errors.RetriableError):
            self.transaction_manager._lookup_coordinator(CoordinatorType.TRANSACTION, self.transactional_id)
            self.transaction_manager.retry(self)
        elif error is Errors.NoError and found.transaction_state in _ABORTED and self._is_next_of_ours(found):
            self.transaction_manager.abort_by_epoch(self.result)
        else:
            self.fatal_error(Errors.ProducerFencedError())

    def _is_next_of_ours(self, found: Any) -> bool:
        """Whether the coordinator has raised the epoch once, as an abort for age does: a new owner raises it, too."""
        return bool((found.producer_id, found.producer_epoch) == (self.producer_id, self.producer_epoch + 1))


class RequestEnding:
    """Handles the end of one request of kafka-python, in place of its handler's own methods."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._is_copy_left = False
        self._repeats_before = handler.transaction_manager.repeated_ends()
        handler.on_complete = self.on_complete
        handler.fatal_error = self.fatal_error
        handler.fail = self.fail

    def on_complete(self, correlation_id: int, outcome: Any) -> None:
        """Takes the response, or the error that ended the connection, which always means to try again."""
        if isinstance(outcome, (Errors.RetriableError, Errors.InvalidReceiveError)):
            if _ends_stocks_producer(outcome):
                self._handler.transaction_manager.is_bounded = True
            # A lookup leaves nothing behind, and an InitProducerId cannot be fenced by another one.
            is_harmless = isinstance(self._handler, (FindCoordinatorHandler, InitProducerIdHandler, OwnerHandler))
            if not is_harmless and not isinstance(outcome, Errors.NodeNotReadyError):
                self._is_copy_left = True
                self._handler.transaction_manager.leave_copy(self._handler)
            outcome = Errors.KafkaConnectionError(str(outcome))
        elif not isinstance(outcome, Exception) and not isinstance(self._handler, FindCoordinatorHandler):
            # A coordinator has responded: the calls wait as kafka-python's do.  A lookup does not count: any broker
            # responds to it, also while the coordinator itself is frozen.
            self._handler.transaction_manager.is_bounded = False
        type(self._handler).on_complete(self._handler, correlation_id, outcome)

    def fatal_error(self, error: Exception) -> None:
        """Ends the producer; but an abort that is refused for its epoch first asks why."""
        handler = self._handler
        is_refused = isinstance(handler, EndTxnHandler) and isinstance(error, Errors.ProducerFencedError)
        if is_refused and not handler.request.committed and handler.transaction_manager.ask_for_owner(handler):
            return
        type(handler).fatal_error(handler, self._meaning(error))

    def fail(self, error: Exception) -> None:
        """Ends this request, because the producer has ended."""
        type(self._handler).fail(self._handler, self._meaning(error))

    def _meaning(self, error: Exception) -> Exception:
        handler = self._handler
        if not isinstance(handler, EndTxnHandler) or not handler.request.committed:
            return error
        if not self._is_copy_left and handler.transaction_manager.repeated_ends() == self._repeats_before:
            return error
        unknown = TransactionOutcomeUnknownError(
            f"{handler.transactional_id}: the response to the commit was lost, and its repeat failed ({error}): the"
            " transaction may or may not be committed. Make a new producer, and read the topic, or the offsets that"
            " were committed with it, to find out"
        )
        unknown.__cause__ = error
        return unknown


def _ends_stocks_producer(outcome: Exception) -> bool:
    cause = outcome.__cause__ if isinstance(outcome, ConnectionLostError) else outcome
    return not isinstance(cause, (Errors.KafkaConnectionError, OSError))
