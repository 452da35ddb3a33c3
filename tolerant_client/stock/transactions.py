"""kafka-python's transaction manager, which survives lost connections and knows the outcome of a transaction.

How one request ends is decided in transaction_requests.py, how long a call waits in transaction_calls.py.

Laws:
- However a connection ends, its request is sent again over the next one: each of these requests has the same effect
  when it is repeated within its transaction (api_rows.py).
- A request whose connection ended may still wait in a broker and run late: EndTxn would end the *next* transaction
  (KAFKA-17754), AddPartitionsToTxn would open one that nobody ends.  So no transaction begins before such a *copy* is
  fenced: InitProducerId with our own producer id and epoch (KIP-360, Kafka 2.5) raises the epoch, and the broker
  refuses it where somebody else has taken over the transactional.id.  Older brokers cannot do this, and are not asked.
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
"""

from __future__ import annotations

import threading
import time
from typing import Any

import kafka.errors as Errors
from kafka.protocol.metadata import CoordinatorType

from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tolerant_client.stock.coordinator_watch import CoordinatorWatch
from tolerant_client.stock.stock_names import (
    FindCoordinatorHandler,
    InitProducerIdHandler,
    ProducerIdAndEpoch,
    TransactionManager,
    TransactionState,
    TxnOffsetCommitHandler,
)
from tolerant_client.stock.transaction_calls import WatchedResult
from tolerant_client.stock.transaction_requests import OwnerHandler, RequestEnding

_LAST_LOOK = 0.25  # seconds for the lookup of a call whose time is up, so that its error can say why
_MAX_BLOCK_MS = 60_000  # kafka-python's default
_LAST_EPOCH = 32_767  # an int16
_TELLS_AGE_FROM_OWNER = (4, 0)  # KIP-890; before, an abort for age leaves the producer without a new epoch
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
        self._completion: tuple[str, WatchedResult] | None = None
        self._offset_commit: tuple[tuple[dict[Any, Any], Any], WatchedResult] | None = None
        self._is_copy_left = False  # a request of this transaction may still be in some broker
        self._offsets_left: dict[tuple[str, Any], Any] = {}  # by group and partition: what a copy would commit
        config = getattr(self._connections, "config", {})
        self._max_block = config.get("max_block_ms", _MAX_BLOCK_MS) / 1000
        self.is_bounded = False  # `max_block` bounds waiting calls: a request's end would end kafka-python's producer
        self._fence: WatchedResult | None = None

    def initialize_transactions(self) -> Any:
        """Starts the initialization; returns what to wait for."""
        return WatchedResult(super().initialize_transactions(), self, "initialization")

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
                    self._offset_commit = (call, WatchedResult(result, self, "offset commit"))
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
                self._completion = (how, WatchedResult(begin(), self, how))
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
            self._enqueue_request(OwnerHandler(self, abort.result))
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
        self._fence = WatchedResult(request.result, self, "new epoch of the producer")
        self._enqueue_request(request)

    def classify_batch_error(self, error: Any, batch: Any, log_start_offset: int = -1) -> Any:
        """What a failed record means: that its transaction must be aborted; without one, that an epoch is over."""
        found = super().classify_batch_error(error, batch, log_start_offset=log_start_offset)
        if not self.is_transactional() and type(error) is not Errors.ClusterAuthorizationFailedError:
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
            RequestEnding(request_handler)
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
