"""Sends a request that any broker can answer to another broker while the first one is silent.

A frozen broker (SIGSTOP, a long garbage collection, a lost host) keeps its connections, and kafka-python waits there
for request_timeout_ms.  These requests hold up everybody: no send to a new topic, no poll and no lookup proceeds
without metadata.

Laws:
- Only a request that changes nothing, and that every broker answers alike, is sent twice.
- The first response counts; a failure counts once no broker is left that may still respond.
- The next broker is asked when the connection to the last one is doubtful, or after a second, then two, then four.
- All attempts end at the deadline that the request had at the first broker.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import kafka.errors as Errors

from tolerant_client.stock.stock_names import Future
from tolerant_client.tracker.rules.api_rows import READ_ONLY
from tolerant_client.tracker.rules.apis import APIS, FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA

_LOOK_EVERY = 0.1  # seconds
_PATIENCE = 1.0  # seconds; doubles for each further broker


def is_for_any_broker(request: Any, node_id: Any) -> bool:
    """Whether another broker's response is as good: for lookups, new producer ids, and reads that name no broker."""
    key = getattr(request, "API_KEY", None)
    if key in (METADATA, FIND_COORDINATOR):
        return True  # kafka-python names a broker, but has just chosen it itself
    if key == INIT_PRODUCER_ID:
        return request.transactional_id is None
    return node_id is None and key in APIS and APIS[key].rows == (READ_ONLY,)


class AnyBroker:
    """One request and the brokers that it was sent to; on the event loop of `manager`.

    `future` ends with the response.
    """

    def __init__(self, manager: Any, request: Any, timeout_ms: float) -> None:
        self.future = Future()
        self._manager = manager
        self._unsent = copy.copy(request)  # sending sets a request's version to its broker's
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._asked: list[Any] = []
        self._waiting = 0
        self._patience = _PATIENCE
        self._patience_ends = 0.0

    def ask(self, node_id: Any, response: Any) -> None:
        """Notes that `node_id` has been asked; `response` is the future of its response."""
        self._asked.append(node_id)
        self._waiting += 1
        self._patience_ends = time.monotonic() + self._patience
        self._patience *= 2
        response.add_callback(self._answered)
        response.add_errback(self._failed)
        if not self.future.is_done:
            self._manager._net.call_later(_LOOK_EVERY, self._look)

    def _answered(self, response: Any) -> None:
        self._waiting -= 1
        if not self.future.is_done:
            self.future.success(response)

    def _failed(self, error: BaseException) -> None:
        self._waiting -= 1
        if not self.future.is_done and not self._waiting:
            self.future.failure(error)

    def _look(self) -> None:
        now = time.monotonic()
        if self.future.is_done or self._manager.closed or now >= self._deadline:
            return
        node_id = None
        if now >= self._patience_ends or self._manager.is_doubtful(self._asked[-1]):
            node_id = self._manager.best_node(but=self._asked)
        if node_id is None:
            self._manager._net.call_later(_LOOK_EVERY, self._look)
            return
        self.ask(node_id, self._sent_to(node_id, (self._deadline - now) * 1000))

    def _sent_to(self, node_id: Any, timeout_ms: float) -> Any:
        try:
            return self._manager.get_connection(node_id).send_request(copy.copy(self._unsent), timeout_ms)
        except Errors.KafkaError as error:  # it refuses our credentials, or is gone
            return Future().failure(error)
