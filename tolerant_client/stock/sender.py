"""kafka-python's sender, which sends a batch again as soon as its leader is connected again.

Laws:
- `delivery_timeout_ms` ends a record also while a request of its transaction waits for a silent broker, and so that record's
  `flush()`.  kafka-python expires nothing then: it relies on the failure of that request, which ours survives.
- A producer that closes waits for no request of a transaction that has failed, once all its records have ended.
- A batch whose connection ended waits for the next connection, not for `retry_backoff_ms` as well: the broker refused
  nothing, and connecting has its own backoff.  A second failure of the batch waits as in kafka-python, and so does its
  last try: the leader may have moved, and Metadata tells it meanwhile.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConnectionError, KafkaTimeoutError, RequestTimedOutError

from tolerant_client.errors import RecoveryExhaustedError
from tolerant_client.stock.stock_names import Sender

_LATE_S = 0.5  # between two looks for records that are late
_SILENT = (RequestTimedOutError, RecoveryExhaustedError)  # which the next connection may not cure


class TolerantSender(Sender):  # type: ignore[misc]  # kafka-python is untyped
    """The sender of one producer; on the producer's thread."""

    def run(self) -> None:
        """The loop of the producer's thread."""
        if self._transaction_manager is not None and self._transaction_manager.is_transactional():
            self._client._manager.call_soon(self._end_late_records)
        super().run()

    async def _end_late_records(self) -> None:
        """Runs on the event loop, which this thread drives also where it waits for a broker to become ready."""
        manager, transactions, records = self._client._manager, self._transaction_manager, self._accumulator
        while not manager.closed:
            await manager._net.sleep(_LATE_S)
            for batch in records.expired_batches():
                late = (
                    f"{batch.record_count} records for {batch.topic_partition} were not sent within delivery_timeout_ms"
                )
                self._complete_batch_with_exception(batch, KafkaTimeoutError(late))
            if not self._running and transactions.has_error() and not records.has_incomplete:
                self._force_close = True

    def _dispatch_error(self, batch: Any, exception: BaseException, partition_response: Any) -> None:
        """Completes a batch that failed, or has it sent again."""
        super()._dispatch_error(batch, exception, partition_response)
        is_lost = isinstance(exception, KafkaConnectionError) and not isinstance(exception, _SILENT)
        if is_lost and batch.attempts == 1 < self.config["retries"]:
            batch.last_attempt -= self.config["retry_backoff_ms"] / 1000
