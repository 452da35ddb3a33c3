"""What a read_committed consumer sees: batches without those of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tolerant_client.records.record_batch import BatchHeader, control_type

ABORT = 0


def skip_aborted(
    batches: Iterable[tuple[BatchHeader, memoryview]], aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that count, markers included; `aborted` is (producer id, first offset) pairs.

    `aborted` is what one Fetch answer said about the same batches: a producer's
    transactional batches are dropped from the first offset on, until its abort marker.
    """
    waiting = sorted(aborted, key=lambda pair: pair[1], reverse=True)
    dropped: set[int] = set()
    for header, batch in batches:
        while waiting and waiting[-1][1] <= header.last_offset:
            dropped.add(waiting.pop()[0])
        if header.producer_id in dropped and header.is_transactional:
            if header.is_control and control_type(batch) == ABORT:
                dropped.discard(header.producer_id)
            elif not header.is_control:
                continue
        yield header, batch
