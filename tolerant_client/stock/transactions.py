"""kafka-python's transaction manager, which survives lost connections and knows the outcome of a transaction.

Laws:
- However a connection ends, its request is sent again over the next one: each of these requests has the same effect
  when it is repeated within its transaction (api_rows.py).
- A request whose connection ended may still wait in a broker and run late: EndTxn would end the *next* transaction
  (KAFKA-17754), AddPartitionsToTxn would open one that nobody ends.  So no transaction begins before such a *copy* is
  fenced: InitProducerId with our own producer id and epoch (KIP-360, Kafka 2.5) raises the epoch, and the broker
  refuses it where somebody else has taken over the transactional.id.  Older brokers cannot do this, and are not asked.
- A commit is reported as done when a broker said so.  Where one copy of its EndTxn was lost and another is refused, the
  transaction may or may not be committed: TransactionOutcomeUnknownError.
- A refused epoch does not prove that somebody has taken over: a broker also raises it when it aborts a transaction for
  its age.  InitProducerId tells these apart (KIP-890, transaction.version 2), but aborts what a new owner has begun.
  So after an abort that is refused for its epoch we first ask for the state of the transaction, which changes nothing,
  and for the next epoch only if the transaction was aborted.
- A transaction with a failed record can only be aborted.  kafka-python commits it where the record timed out, and
  where a broker lost track of the sequence it drops the transaction and calls the commit a success.
- Records that fail without a transaction fail alone, with those of their batch.  Nobody knows then which sequence the broker expects, so the
  producer begins every partition again under its next epoch, which needs no broker (KIP-360).  kafka-python gives up
  its id there and never asks for another, or ends the producer where a broker refused the record.
- Offsets are sent one call after the other: a call waits until the one before it is done.  The same call again, while
  the outcome of the first is unknown, waits for the first.  A copy of a TxnOffsetCommit may run after newer offsets and
  undo them: no others are sent for its partitions, and the transaction can only be aborted.
- An absent coordinator is watched and reported as coordinator_watch.py defines.  The error changes no state: the
  request continues, and the same call, made again, waits for it again.
- Every call has an end.  A request that ends in a way that ends kafka-python's producer (above all: no response in
  time) bounds the waiting calls until a coordinator responds: after `max_block_ms` they raise a KafkaTimeoutError,
  which changes no state either.  So with a frozen coordinator calls end once both that and `request_timeout_ms` have
  passed.  Refused connections end neither kafka-python's calls nor ours.  Calls that still wait when the producer has
  been closed fail.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType

from tolerant_client.errors import ConnectionLostError, TransactionOutcomeUnknownError
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tolerant_client.stock.coordinator_watch import CoordinatorWatch
from tolerant_client.stock.stock_names import (
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    Priority,
    ProducerIdAndEpoch,
    TransactionManager,
    TransactionState,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)

_LOOK_EVERY = 0.2  # seconds
_LAST_LOOK = 0.25  # seconds for the lookup of a call whose time is up, so that its error can say why
_MAX_BLOCK_MS = 60_000  # kafka-python's default
_LAST_EPOCH = 32_767  # an int16
_TELLS_AGE_FROM_OWNER = (4, 0)  # KIP-890; before, an abort for age leaves the producer without a new epoch
_ABORTED = ("PrepareAbort", "CompleteAbort")
_WATCHED = {CoordinatorType.TRANSACTION: TRANSACTIONS_TOPIC, CoordinatorType.GROUP: OFFSETS_TOPIC}


class TolerantTransactionManager(TransactionManager):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's TransactionManager, same arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = threading.RLock()  # an interrupt can leave a Condition locked: it is Python code
        # Without a manager (as in kafka-python's own tests) nobody can be asked for metadata.
        self._connections = getattr(self._metadata, "_manager", None)
        self._watches = {
            kind: CoordinatorWatch(self._connections, self.transactional_id or "", topic)
            for kind, topic in _WATCHED.items()
        }
        self._completion: tuple[str, _WatchedResult] | None = None
        self._offset_commit: tuple[tuple[dict[Any, Any], Any], _WatchedResult] | None = None
        self._is_copy_left = False  # a request of this transaction may still be in some broker
        self._offsets_left: dict[tuple[str, Any], Any] = {}  # by group and partition: what a copy would commit
        config = getattr(self._connections, "config", {})
        self._max_block = config.get("max_block_ms", _MAX_BLOCK_MS) / 1000
        self.is_bounded = False  # `max_block` bounds waiting calls: a request's end would end kafka-python's producer
        self._fence: _WatchedResult | None = None

    def initialize_transactions(self) -> Any:
        """Starts the initialization; returns what to wait for."""
        return _WatchedResult(super().initialize_transactions(), self, "initialization")

    def begin_transaction(self) -> None:
        """Begins a transaction, once no copy of an earlier request can end it."""
        with self._lock:  # which is held from a transaction's end until its fence exists
            fence = self._fence
        if fence is not None:
            fence.wait()
            self._fence = None
        super().begin_transaction()
        self._completion = self._offset_commit = None
        self._offsets_left.clear()

    def begin_commit(self) -> Any:
        """Starts the commit, or resumes the one that was begun; returns what to wait for."""
        return self._complete("commit", super().begin_commit)

    def begin_abort(self) -> Any:
        """Starts the abort, or resumes the one that was begun; returns what to wait for."""
        return self._complete("abort", super().begin_abort)

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> Any:
        """Adds offsets of a group once those of an earlier call are added; returns what to wait for.

        Raises the error of the earlier call, and KafkaError where a copy of it could undo these offsets.
        """
        call = (dict(offsets), group_metadata)
        while True:
            with self._lock:
                if self._current_state != TransactionState.IN_TRANSACTION:
                    return super().send_offsets_to_transaction(*call)  # raises the reason
                earlier = self._offset_commit
                if earlier is not None and not earlier[1].is_told and earlier[0] == call:
                    return earlier[1]
                self._refuse_to_be_undone(*call)
                if earlier is None or earlier[1].is_told:
                    result = super().send_offsets_to_transaction(*call)
                    # kafka-python would send what an aborted transaction has left there with the next offsets.
                    self._pending_txn_offset_commits.clear()
                    self._offset_commit = (call, _WatchedResult(result, self, "offset commit"))
                    return self._offset_commit[1]
            earlier[1].wait()

    def _refuse_to_be_undone(self, offsets: dict[Any, Any], group_metadata: Any) -> None:
        group = getattr(group_metadata, "group_id", group_metadata)
        for partition, offset in offsets.items():
            left = self._offsets_left.get((group, partition), offset)
            if left != offset:
                error = Errors.KafkaError(
                    f"{self.transactional_id}: the response to the commit of offset {left.offset} of {partition.topic}-"
                    f"{partition.partition} in group {group} was lost; that commit may still run after that of"
                    f" offset {offset.offset} and undo it: abort the transaction, and send all that is in it in a new one"
                )
                self.transition_to_abortable_error(error)
                raise error

    def _complete(self, how: str, begin: Any) -> Any:
        with self._lock:
            if self._completion is None or self._completion[0] != how or self._completion[1].is_told:
                if self.is_closed:
                    raise Errors.KafkaError(f"{self.transactional_id}: the producer is closed")
                self._completion = (how, _WatchedResult(begin(), self, how))
            return self._completion[1]

    # -- when a call ends -------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing is sent any more: kafka-python's sender closes the connections when it ends."""
        return bool(getattr(self._connections, "closed", False))

    def max_wait(self) -> float:
        """Seconds that a call without a timeout of its own may wait."""
        return self._max_block if self.is_bounded else float("inf")

    # -- what became of it ------------------------------------------------------

    def repeated_ends(self) -> int:
        """How often an EndTxn was sent again below this layer, on the connection that had lost its response."""
        counters = getattr(self._connections, "recovery_counters", None)
        return 0 if counters is None else int(counters.of("requeued", "EndTxn"))

    def leave_copy(self, request: Any = None) -> None:
        """Notes that a request of this transaction may still run, at any time."""
        self._is_copy_left = True
        if isinstance(request, TxnOffsetCommitHandler):
            with self._lock:
                group = request.consumer_group_id
                self._offsets_left.update({(group, at): offset for at, offset in request.offsets.items()})

    def _complete_transaction(self) -> None:
        with self._lock:
            super()._complete_transaction()
            if self._is_copy_left and self._supports_epoch_bump():
                self._is_copy_left = False
                self._raise_epoch()

    def ask_for_owner(self, abort: Any) -> bool:
        """Asks why an abort is refused for its epoch, if a broker can tell; True: the response ends the abort."""
        is_told: bool = self._api_version >= _TELLS_AGE_FROM_OWNER
        if is_told:
            self._enqueue_request(_OwnerHandler(self, abort.result))
        return is_told

    def abort_by_epoch(self, result: Any) -> None:
        """Ends a transaction that the broker has aborted; `result` is done when the next epoch is given or refused."""
        with self._lock:
            super()._complete_transaction()
            self._is_copy_left = False
            self._raise_epoch(result)

    def _raise_epoch(self, result: Any = None) -> None:
        """The first half of bump_producer_id_and_epoch, between two transactions."""
        self._transition_to(TransactionState.BUMPING_PRODUCER_EPOCH)
        self._sequence_numbers.clear()
        self._last_acked_offset.clear()
        request = InitProducerIdHandler(self, self.transaction_timeout_ms, is_epoch_bump=True)
        request._result = result or request.result
        self._fence = _WatchedResult(request.result, self, "new epoch of the producer")
        self._enqueue_request(request)

    def classify_batch_error(self, error: Any, batch: Any, log_start_offset: int = -1) -> Any:
        """What a failed record means: that its transaction must be aborted; without one, that an epoch is over."""
        found = super().classify_batch_error(error, batch, log_start_offset=log_start_offset)
        if not self.is_transactional() and type(error) not in self._FATAL_ERRORS:
            is_of_this_epoch = self.producer_id_and_epoch.match(batch)
            return self.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET if is_of_this_epoch else self.ERROR_CLASS_RETRIABLE
        if found == self.ERROR_CLASS_FATAL or self.has_fatal_error():
            return self.ERROR_CLASS_FATAL
        # The records may be in the log, or may still get there: the next transaction begins with another epoch.
        self.leave_copy()
        return self.ERROR_CLASS_ABORTABLE

    def reset_producer_id(self) -> None:
        """Makes an idempotent producer start over, with its next epoch; a transactional one does so by aborting."""
        with self._lock:
            if self.is_transactional() or self._current_state != TransactionState.READY:
                return
            last = self.producer_id_and_epoch
            super().reset_producer_id()
            if last.epoch < _LAST_EPOCH:
                self.set_producer_id_and_epoch(ProducerIdAndEpoch(last.producer_id, last.epoch + 1))
            else:
                self._ask_for_id()

    def _ask_for_id(self) -> None:
        self._transition_to(TransactionState.BUMPING_PRODUCER_EPOCH)
        self._enqueue_request(InitProducerIdHandler(self, self.transaction_timeout_ms))

    def begin_anew(self) -> None:
        """Makes an idempotent producer start over on another cluster; while it waits for an id, it gets one of that cluster."""
        with self._lock:
            if self._current_state == TransactionState.READY:
                super().reset_producer_id()
                self._ask_for_id()

    def _restart_epoch_bump_without_producer_id(self, transaction_timeout_ms: Any, result: Any) -> None:
        """Called where the broker refuses our epoch: somebody has taken over, and keeps the transactional.id."""
        if not self.is_transactional():
            super()._restart_epoch_bump_without_producer_id(transaction_timeout_ms, result)
            return
        fenced = Errors.ProducerFencedError()
        self.transition_to_fatal_error(fenced)
        result.done(error=fenced)

    # -- lookups, watched -------------------------------------------------------

    def lookup_coordinator_for_request(self, request: Any) -> None:
        """Called by kafka-python's sender with a request that it cannot send.

        Where the coordinator is known but refuses the connection, the sender then
        forgets the request (Sender._maybe_send_pending_request, up to 3.0.12), and a
        commit would wait for ever, even after the coordinator is back.
        """
        is_forgotten = self.coordinator(request.coordinator_type) is not None
        super().lookup_coordinator_for_request(request)
        if is_forgotten:
            self.retry(request)

    def _lookup_coordinator(self, coord_type: Any, coord_key: str) -> None:
        known = self.coordinator(coord_type)
        if known is not None:
            absence = self._watches[coord_type].absence
            absence.failed(f"{known} does not serve it", time.monotonic(), is_known=True)
        super()._lookup_coordinator(coord_type, coord_key)

    def _enqueue_request(self, request_handler: Any) -> None:
        if any(waiting is request_handler for _, _, waiting in self._pending_requests):
            return
        if "on_complete" not in vars(request_handler):
            _Ending(request_handler)
        if isinstance(request_handler, FindCoordinatorHandler):
            watch = self._watches[request_handler._coord_type]
            watch.name = request_handler._coord_key
            if request_handler.is_retry:
                watch.absence.failed("FindCoordinator found none", time.monotonic())
            elif watch.absence.is_lasting:
                # Makes the sender pause; kafka-python asks again at once while the coordinator refuses connections.
                request_handler.set_retry()
        super()._enqueue_request(request_handler)

    def answered(self) -> None:
        """Notes that a coordinator has responded to a request."""
        for watch in self._watches.values():
            watch.answered()

    def say_what_is_wrong(self, is_last_chance: bool) -> None:
        """Has an absent coordinator looked up; raises what was found if the policy, or a call's end, asks for it."""
        if self._connections is None:
            return
        for kind, watch in self._watches.items():
            is_known = self.coordinator(kind) is not None
            is_away = is_last_chance and watch.absence.is_lasting and not is_known
            if is_away or watch.absence.is_due(is_known):
                looked = threading.Event()
                self._connections.call_soon(watch.look).add_both(lambda _, looked=looked: looked.set())
                if is_last_chance:
                    looked.wait(_LAST_LOOK)
            if (is_away or watch.is_raising) and (error := watch.take_error()):
                raise error


class _OwnerHandler(TxnRequestHandler):  # type: ignore[misc]  # kafka-python is untyped
    """Asks the coordinator whether it aborted our transaction, or somebody owns the transactional.id (KIP-664)."""

    def __init__(self, owner: TolerantTransactionManager, result: Any) -> None:
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


class _Ending:
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
            is_harmless = isinstance(self._handler, (FindCoordinatorHandler, InitProducerIdHandler, _OwnerHandler))
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


class _WatchedResult:
    """kafka-python's TransactionalRequestResult, whose wait also watches the coordinator; `what` names the request."""

    def __init__(self, result: Any, owner: TolerantTransactionManager, what: str) -> None:
        self._result = result
        self._owner = owner
        self._what = what
        self.is_told = False  # whether a caller knows its end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def wait(self, timeout_ms: float | None = None) -> bool:
        """True when the request is done, False when `timeout_ms` passed.

        Raises the request's own error, CoordinatorUnavailableError, without `timeout_ms` KafkaTimeoutError, and
        after the producer was closed TransactionOutcomeUnknownError (for a commit) or KafkaError.
        """
        began = time.monotonic()
        while True:
            longest = self._owner.max_wait() if timeout_ms is None else timeout_ms / 1000
            left = max(0.0, began + longest - time.monotonic())
            is_closed = self._owner.is_closed  # read first: what was done before the close is seen below
            if self._is_done(min(_LOOK_EVERY, left)):
                self._owner.answered()
                return True
            if is_closed:
                raise self._closed()
            self._owner.say_what_is_wrong(is_last_chance=left == 0)
            if left == 0 and timeout_ms is not None:
                return False
            if left == 0:
                raise Errors.KafkaTimeoutError(
                    f"{self._owner.transactional_id}: no response to the {self._what} within {longest:.1f} s"
                    " (max_block_ms); make the same call again to wait for it again"
                )

    def _is_done(self, patience: float) -> bool:
        try:
            is_done = bool(self._result.wait(timeout_ms=patience * 1000))
        except BaseException as error:  # an interrupt, too, which tells nobody what became of the request
            self.is_told = self.is_told or error is self._result.exception
            raise
        self.is_told = self.is_told or is_done
        return is_done

    def _closed(self) -> Errors.KafkaError:
        name = self._owner.transactional_id
        if self._what == "commit":
            return TransactionOutcomeUnknownError(
                f"{name}: the producer was closed before the response to the commit arrived: the transaction may or may"
                " not be committed. Read the topic, or the offsets that were committed with it, to find out"
            )
        return Errors.KafkaError(f"{name}: the producer was closed before the response to the {self._what} arrived")
