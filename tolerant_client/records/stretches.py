"""Finds where each batch of a fetch begins, before anything is decoded."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tolerant_client.records.record_batch import HEADER_SIZE, LOG_OVERHEAD, read_header

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_LENGTH: Final = struct.Struct(">i")
SMALLEST_BATCH: Final = 26  # message format v0: offset, length, crc, magic, attributes, two lengths


class Stretch(NamedTuple):
    """Contiguous whole batches of one kind."""

    starts: list[int]
    end: int
    is_legacy: bool  # message formats v0 and v1


def survey(data: bytes | memoryview) -> tuple[list[Stretch], tuple[int, int] | None]:
    """The whole batches of a fetch, and (next offset, leader epoch) after them, or None if only decoding can tell.

    A batch whose length is too small is a stretch of its own, and the last one.
    """
    stretches: list[Stretch] = []
    starts: list[int] = []
    position = 0
    is_legacy = False
    length_at, unpack = _LENGTH_AT, _LENGTH.unpack_from
    while len(data) - position >= LOG_OVERHEAD:
        size = unpack(data, position + length_at)[0] + LOG_OVERHEAD
        if position + size > len(data):
            break
        if size < SMALLEST_BATCH:
            if starts:
                stretches.append(Stretch(starts, position, is_legacy))
            return [*stretches, Stretch([position], position + max(size, 0), False)], None
        if (data[position + _MAGIC_AT] <= 1) != is_legacy:
            if starts:
                stretches.append(Stretch(starts, position, is_legacy))
            starts, is_legacy = [], not is_legacy
        starts.append(position)
        position += size
    if not starts:
        return stretches, None
    stretches.append(Stretch(starts, position, is_legacy))
    if is_legacy or position - starts[-1] < HEADER_SIZE:
        return stretches, None
    header = read_header(data, starts[-1])
    return stretches, (header.next_offset, header.partition_leader_epoch)
