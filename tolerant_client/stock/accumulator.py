"""kafka-python's record accumulator, whose flush also waits for batches that are split meanwhile.

Laws:
- The parts of a batch of which every attempt was refused are new batches, and its sequences are free: it is not written.
  So a part that never is (the transaction is aborted, one record alone is too large) leaves no gap.
- The parts of a batch that may be written keep its sequences, under the producer id and epoch that it was sent with, and all
  of them are sent, also while their transaction is aborted.  Brokers refuse a batch as too large before they look whether it is
  one that they have, so an earlier attempt may be written (its limit was lowered since): its broker refuses the parts as out of
  order then, and no record is written twice.  kafka-python gives the parts the next sequences of the epoch that began meanwhile.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any
from weakref import WeakSet

from kafka.errors import KafkaTimeoutError

from tolerant_client.records.record_batch import decode_records
from tolerant_client.stock.stock_names import MemoryRecordsBuilder, RecordAccumulator


class TolerantAccumulator(RecordAccumulator):  # type: ignore[misc]  # kafka-python is untyped
    """The records of one producer that have not ended yet.

    `may_be_written` are batches with an attempt that no broker has refused, `may_be_elsewhere` those that had one on a former cluster.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.may_be_written: WeakSet[Any] = WeakSet()
        self.may_be_elsewhere: WeakSet[Any] = WeakSet()

    def may_have(self, batch: Any) -> bool:
        """Whether a log may have its records, here or on a former cluster."""
        return batch in self.may_be_written or batch in self.may_be_elsewhere

    def _tp_lock(self, tp: Any) -> Any:
        """The lock of a partition, which its holder may take again."""
        lock = self._tp_locks.get(tp)
        if lock is None:
            with self._tp_locks[None]:
                lock = self._tp_locks.setdefault(tp, threading.RLock())
        return lock

    def split_and_reenqueue(self, batch: Any, now: float | None = None) -> Any:
        """Puts the parts of a batch in its place; returns how many they are."""
        partition, transactions = batch.topic_partition, self._transaction_manager
        with self._tp_lock(partition):  # no record is added to a part
            next_sequence = transactions.sequence_number(partition) if batch.has_sequence else None
            try:
                count = super().split_and_reenqueue(batch, now)  # takes the batch's sequences back
                if batch in self.may_be_written:
                    for part in islice(self._batches[partition], count):
                        self._replace(batch, part)
            except BaseException:
                self._leave_parts(batch)
                raise
            finally:
                if batch.has_sequence and (
                    batch in self.may_be_written or not transactions.producer_id_and_epoch.match(batch)
                ):
                    # Nothing is free: also later parts have theirs.
                    transactions.set_sequence_number(partition, next_sequence)
        return count

    def _leave_parts(self, batch: Any) -> None:
        """Has who waits for a record of a part that will never be sent wait for the batch again, which fails."""
        for record in batch._record_futures:
            part, record._produce_future = record._produce_future, batch.produce_future
            part._latch.set()

    def _replace(self, batch: Any, part: Any) -> None:
        """Makes the next part of a batch that may be written as that one: it is not given other sequences, nor aborted."""
        partition, transactions = batch.topic_partition, self._transaction_manager
        if batch.has_sequence:
            sequence = transactions.sequence_number(partition)
            part.records.set_producer_state(
                batch.producer_id, batch.producer_epoch, sequence, transactions.is_transactional()
            )
            transactions.increment_sequence_number(partition, part.record_count)
        part.records.close()
        part._retry, part.drained = True, batch.drained
        self.may_be_written.add(part)

    def renew(self, batch: Any) -> None:
        """Makes a batch that was sent one that never was: it is given a producer id and sequences when it is."""
        closed = batch.records
        batch.records = MemoryRecordsBuilder(
            self.config["message_version"], self.config["compression_attrs"], self.config["batch_size"]
        )
        for record in decode_records(memoryview(closed.buffer())):
            batch.records.append(record.timestamp, record.key, record.value, record.headers)
        batch._retry = False
        if batch in self.may_be_written:
            self.may_be_written.discard(batch)
            self.may_be_elsewhere.add(batch)

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
