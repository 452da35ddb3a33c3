"""kafka-python's transaction manager whose waits end when there is no coordinator.

Laws:
- As for groups (coordinator.py): a call that waits for the coordinator longer
  than `RecoveryPolicy.coordinator_timeout_ms` raises CoordinatorUnavailableError.
- The error changes no state: the request goes on, and the same call, made
  again, waits for it again.  kafka-python's commit_transaction waits for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from kafka.producer.transaction_manager import FindCoordinatorHandler, TransactionManager
from kafka.protocol.metadata import CoordinatorType

from tolerant_client.coordinator import Absence, describe_coordinator
from tolerant_client.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CoordinatorPartition
from tolerant_client.policy import RecoveryPolicy

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.2  # seconds
_ASK_WITHIN = 10.0  # seconds; describe_coordinator gives up before


class TolerantTransactionManager(TransactionManager):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's TransactionManager, same arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Without a manager (kafka-python's own tests) nobody can be asked for metadata.
        self._connections = getattr(self._metadata, "_manager", None)
        policy = getattr(self._connections, "recovery_policy", None) or RecoveryPolicy()
        limit = policy.coordinator_timeout_ms / 1000
        self._absences = {kind: Absence(limit) for kind in (CoordinatorType.TRANSACTION, CoordinatorType.GROUP)}
        self._group = ""
        self._completion: tuple[str, _WatchedResult] | None = None

    def initialize_transactions(self) -> Any:
        """Starts the initialization; returns what to wait for."""
        return _WatchedResult(super().initialize_transactions(), self)

    def begin_commit(self) -> Any:
        """Starts the commit, or goes on with the one that was begun; returns what to wait for."""
        return self._complete("commit", super().begin_commit)

    def begin_abort(self) -> Any:
        """Starts the abort, or goes on with the one that was begun; returns what to wait for."""
        return self._complete("abort", super().begin_abort)

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> Any:
        """Adds offsets of a group; returns what to wait for."""
        return _WatchedResult(super().send_offsets_to_transaction(offsets, group_metadata), self)

    def _complete(self, how: str, begin: Any) -> Any:
        with self._lock:
            if self._completion is None or self._completion[0] != how or self._completion[1].is_done:
                self._completion = (how, _WatchedResult(begin(), self))
            return self._completion[1]

    # -- lookups, watched -------------------------------------------------------

    def lookup_coordinator_for_request(self, request: Any) -> None:
        """Called by kafka-python's sender with a request that it cannot send.

        Where the coordinator is known and refuses the connection, the sender then
        forgets the request (Sender._maybe_send_pending_request, up to 3.0.12), and a
        commit would wait for ever, even once the coordinator is back.
        """
        is_forgotten = self.coordinator(request.coordinator_type) is not None
        super().lookup_coordinator_for_request(request)
        if is_forgotten:
            self.retry(request)

    def _lookup_coordinator(self, coord_type: Any, coord_key: str) -> None:
        known = self.coordinator(coord_type)
        if known is not None:
            self._absences[coord_type].failed(f"{known} does not serve it", time.monotonic(), is_known=True)
        super()._lookup_coordinator(coord_type, coord_key)

    def _enqueue_request(self, request_handler: Any) -> None:
        if any(waiting is request_handler for _, _, waiting in self._pending_requests):
            return
        if isinstance(request_handler, FindCoordinatorHandler):
            absence = self._absences[request_handler._coord_type]
            if request_handler._coord_type == CoordinatorType.GROUP:
                self._group = request_handler._coord_key
            if request_handler.is_retry:
                absence.failed("FindCoordinator found none", time.monotonic())
            elif absence.is_lasting:
                # Makes the sender pause; kafka-python asks again at once while the coordinator refuses connections.
                request_handler.set_retry()
        super()._enqueue_request(request_handler)

    def answered(self) -> None:
        """A request to a coordinator has been answered."""
        for absence in self._absences.values():
            absence.answered()

    def say_what_is_wrong(self, is_last_chance: bool) -> None:
        """Raises CoordinatorUnavailableError if a coordinator is away too long, or at all with `is_last_chance`."""
        for kind, absence in self._absences.items():
            is_known = self.coordinator(kind) is not None
            is_away = is_last_chance and absence.is_lasting and not is_known
            if self._connections is None or not (is_away or absence.is_due(is_known)):
                continue
            is_group = kind == CoordinatorType.GROUP
            name, topic = (self._group, OFFSETS_TOPIC) if is_group else (self.transactional_id, TRANSACTIONS_TOPIC)
            found = self._ask(name, topic)
            now = time.monotonic()
            waited_ms, failure = absence.waited_ms(now), absence.last_failure
            absence.told(now)
            if found is not None:
                raise found.error(waited_ms, failure)
            log.warning("%s: no broker has answered for %.1f s; still trying", name, waited_ms / 1000)


    def _ask(self, name: str, topic: str) -> CoordinatorPartition | None:
        """describe_coordinator for the caller's thread; the producer's own thread runs the event loop."""
        is_done = threading.Event()
        connections: Any = self._connections
        future = connections.call_soon(describe_coordinator, connections, name, topic)
        future.add_both(lambda _: is_done.set())
        is_done.wait(_ASK_WITHIN)
        return future.value if future.succeeded() else None


class _WatchedResult:
    """kafka-python's TransactionalRequestResult, whose wait looks after the coordinator."""

    def __init__(self, result: Any, owner: TolerantTransactionManager) -> None:
        self._result = result
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def wait(self, timeout_ms: float | None = None) -> bool:
        """True when the request has been answered, False when `timeout_ms` passed.

        Raises the request's own error, and CoordinatorUnavailableError.
        """
        deadline = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            patience = max(0.0, min(_LOOK_EVERY, deadline - time.monotonic()))
            if self._result.wait(timeout_ms=patience * 1000):
                self._owner.answered()
                return True
            is_over = time.monotonic() >= deadline
            self._owner.say_what_is_wrong(is_last_chance=is_over)
            if is_over:
                return False
