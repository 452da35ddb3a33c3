"""Merges batches with holes between them into fewer without: with translated offsets holes need not be kept.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.rewrite import rewrite
from tolerant_client.records.record_batch import BatchHeader

_INT64 = struct.Struct(">q")


class DenseBatch(NamedTuple):
    """A batch to append, and the runs that its records come from, in order: (source offset, count)."""

    header: BatchHeader
    batch: memoryview
    spans: tuple[tuple[int, int], ...]


def dense(
    batches: Sequence[tuple[BatchHeader, memoryview]], max_batch_bytes: int, joined_bytes: int | None
) -> list[DenseBatch]:
    """The records of batches without inner holes, in as few batches of at most `joined_bytes` as possible.

    A single batch passes untouched, and a larger record is a batch of its own.  The views must be writable.
    Raises OversizedRecordError and RecordBatchError.
    """
    if len(batches) == 1:
        ((header, batch),) = batches
        return [DenseBatch(header, batch, ((header.base_offset, header.record_count),))]
    starts, renumbered, at = [], [], 0
    for header, batch in batches:
        _INT64.pack_into(batch, 0, at)  # outside the CRC
        renumbered.append((header._replace(base_offset=at), batch))
        starts.append(at)
        at += header.record_count
    found = []
    number = 0  # index of the source batch that the next record comes from
    for item in rewrite(
        renumbered,
        0,
        fill_holes=False,
        is_compacted=False,
        max_batch_bytes=max_batch_bytes,
        joined_bytes=joined_bytes,
    ):
        assert not isinstance(item, Gap)
        header, batch = item
        spans: list[tuple[int, int]] = []
        first = header.base_offset
        while first < header.next_offset:
            original = batches[number][0]
            count = min(header.next_offset, starts[number] + original.record_count) - first
            source = original.base_offset + first - starts[number]
            if spans and sum(spans[-1]) == source:
                spans[-1] = (spans[-1][0], spans[-1][1] + count)
            else:
                spans.append((source, count))
            first += count
            if first == starts[number] + original.record_count:
                number += 1
        found.append(DenseBatch(header, batch, tuple(spans)))
    return found
