"""Finds the data of aborted transactions, which a read_committed consumer skips."""

from __future__ import annotations

from collections.abc import Iterable

from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type


class AbortedTransactions:
    """The aborted transactions of one Fetch response, as (producer id, first offset); its batches must come in order."""

    __slots__ = ("_open", "_waiting")

    def __init__(self, named: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(named, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()  # ids of producers whose aborted transaction has begun and has no marker yet

    def cover(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the next batch is data of an aborted transaction; call it for every batch, markers included.

        Raises RecordBatchError for an unreadable marker.
        """
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.is_control:
            # The log cleaner may keep a marker's batch without its record; then the transaction has no data left either.
            if not header.record_count or control_type(batch) == ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional
