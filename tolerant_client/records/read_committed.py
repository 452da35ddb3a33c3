"""What a read_committed consumer leaves out: the data of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable

from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type


class AbortedTransactions:
    """Those that one Fetch response names, as (producer id, first offset), followed along its batches in their order."""

    __slots__ = ("_open", "_waiting")

    def __init__(self, named: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(named, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()  # producers whose transaction has begun, and has no marker yet

    def cover(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the next batch is data of one of them; asked of every batch, markers too.

        Raises RecordBatchError for a marker that cannot be read.
        """
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.is_control:
            # The cleaner leaves a marker's batch without its record; then the transaction has no data either.
            if not header.record_count or control_type(batch) == ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional
