"""kafka-python's sender, which sends a batch again as soon as its leader is connected again.

Laws:
- A batch whose connection ended waits for the next connection, not for `retry_backoff_ms` as well: the broker refused
  nothing, and connecting has its own backoff.  A second failure of the batch waits as in kafka-python, and so does its
  last try: the leader may have moved, and Metadata tells it meanwhile.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConnectionError, RequestTimedOutError

from tolerant_client.errors import RecoveryExhaustedError
from tolerant_client.stock.stock_names import Sender

_SILENT = (RequestTimedOutError, RecoveryExhaustedError)  # which the next connection may not cure


class TolerantSender(Sender):  # type: ignore[misc]  # kafka-python is untyped
    """The sender of one producer; on the producer's thread."""

    def _dispatch_error(self, batch: Any, exception: BaseException, partition_response: Any) -> None:
        """Completes a batch that failed, or has it sent again."""
        super()._dispatch_error(batch, exception, partition_response)
        is_lost = isinstance(exception, KafkaConnectionError) and not isinstance(exception, _SILENT)
        if is_lost and batch.attempts == 1 < self.config["retries"]:
            batch.last_attempt -= self.config["retry_backoff_ms"] / 1000
