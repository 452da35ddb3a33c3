"""kafka-python's record accumulator, whose flush also waits for batches that are split meanwhile."""

from __future__ import annotations

import time
from typing import Any

from kafka.errors import KafkaTimeoutError

from tolerant_client.stock.stock_names import RecordAccumulator


class TolerantAccumulator(RecordAccumulator):  # type: ignore[misc]  # kafka-python is untyped
    """The records of one producer that have not ended yet."""

    def await_flush_completion(self, timeout: float | None = None) -> Any:
        """Waits until the records that are there now have ended; raises KafkaTimeoutError after `timeout` seconds.

        kafka-python waits for their batches, and raises UnknownError where a broker found one too large and it was
        split: its records go on in other batches.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        try:
            for batch in self._incomplete.all():
                for record in batch._record_futures:
                    while not record.is_done:
                        # A split moves a record to another batch, and wakes who waits for the old one.
                        left = None if ends is None else max(0.0, ends - time.monotonic())
                        if not record._produce_future.wait(left):
                            raise KafkaTimeoutError("Timeout waiting for records to be sent")
        finally:
            self._flushes_in_progress.decrement()
