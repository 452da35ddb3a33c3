"""Gaps: source offsets that have no committed record, and the records and markers that take them on the target.

Laws:
- All writers fill the same gap with the same batches: their bounds follow from the gap and the topic alone.
- No batch is larger than allowed, neither compressed nor as a broker stores it for a topic with its own
  `compression.type`.
- Filler differs from every record of a source by its header, a filler marker by its producer id.

A filler record has no value, no key (in a compacted topic the key FILLER, so that the cleaner keeps at most one
of them) and one header, FILLER.  The header's value is null; is_filler accepts any.

A filler marker for offset t has producer id FIRST_MARKER_PRODUCER_ID + (series << 48) + (t >> 15) and epoch t & 0x7fff: a
broker refuses the marker of an epoch lower than the last one it has of a producer id (ProducerAppendInfo.java,
checkProducerEpoch), and no coordinator ever assigns such ids (they count from 0, ProducerIdManager.java).  The series is 0,
unless the broker has refused markers in the middle of a request: the next series takes their offsets.

No I/O and no clock here.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tolerant_client.errors import OptionError
from tolerant_client.records import codecs
from tolerant_client.records.batch_columns import HEADER
from tolerant_client.records.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    encode_batch,
    read_header,
)

FILLER: Final = "tolerant.filler"
FIRST_MARKER_PRODUCER_ID: Final = 1 << 62

_KEY: Final = FILLER.encode()
_EPOCH_BITS: Final = 15
_EPOCH_MASK: Final = (1 << _EPOCH_BITS) - 1
_SERIES_AT: Final = 63 - _EPOCH_BITS  # bit: no offset is longer
_LARGEST_BATCH: Final = 1 << 20  # bytes before compression: more gains nothing and costs every consumer memory
_DELTAS_BY_WIDTH: Final = ((0, 1 << 6), (1 << 6, 1 << 13), (1 << 13, 1 << 20))  # of a zigzag varint of 1, 2, 3 bytes
_BEFORE_DELTA: Final = 3  # length (of less than 64, so one byte), attributes, timestamp delta


class GapFill(str, enum.Enum):
    """How the offsets of a gap are filled on the target; AUTO is RECORDS for compacted topics, else MARKERS where they may be
    written, else TRANSACTIONS.
    """

    AUTO = "auto"
    TRANSACTIONS = "transactions"
    MARKERS = "markers"
    RECORDS = "records"

    @property
    def option(self) -> str:
        """How to choose it, for a message."""
        return f"--gap-fill {self.value} (in the file of --config: tolerant.gap.fill = {self.value})"


class Gap(NamedTuple):
    """A half-open range of source offsets without a committed record."""

    from_offset: int
    until_offset: int


def choose_way(fill: GapFill, *, is_compacted: bool) -> GapFill:
    """How gaps of one topic are filled; AUTO where only the target's brokers tell, gap by gap.

    In a compacted topic the cleaner may remove a record between the fetches of two writers, which then see different
    holes: only RECORDS, which have sequences, are safe then.
    """
    return GapFill.RECORDS if fill is GapFill.AUTO and is_compacted else fill


def filler_time(neighbours: Iterable[int], now_ms: int) -> int:
    """The timestamp of filler next to data with these (in ms, the preferred one first; -1 for none), at most `now_ms`.

    It is the data's own, so retention keeps filler as long as the data next to it, and a search by time skips it.
    It is the present if the data has none: a segment's age is that of its youngest record, so with an old timestamp
    the data would be deleted with the filler.  It is never negative, which stops Kafka Streams
    (FailOnInvalidTimestamp.java), and never in the future, which would keep the segment.
    """
    return min(next((time for time in neighbours if time >= 0), now_ms), now_ms)


def filler_batches(
    gap: Gap,
    *,
    is_compacted: bool,
    max_batch_bytes: int,
    timestamp_ms: int,
    codec: int = codecs.GZIP,
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Filler records for a whole gap: writable batches without producer and CRC (record_batch.restamp).

    All records have `timestamp_ms` (filler_time).  Every client reads gzip; zstd is a third as large and four times as fast,
    for filler that nobody reads.  Raises OptionError before the first batch if `max_batch_bytes` cannot hold one record.
    """
    if timestamp_ms < 0:
        raise ValueError(f"filler with timestamp {timestamp_ms}; see filler_time")
    most = _records_in(min(max_batch_bytes, _LARGEST_BATCH) - HEADER_SIZE, is_compacted)
    if not most:
        raise OptionError(
            f"max.message.bytes {max_batch_bytes} of the target topic is too small for a filler record; raise it"
        )
    for base_offset in range(gap.from_offset, gap.until_offset, most):
        count = min(most, gap.until_offset - base_offset)
        data = bytearray(_filler_batch(count, is_compacted, codec))
        view = np.frombuffer(data, HEADER, 1)
        view["base_offset"] = base_offset
        view["base_timestamp"] = view["max_timestamp"] = timestamp_ms
        yield read_header(data), memoryview(data)


def is_filler(record: Record) -> bool:
    """True for a filler record, and for no record of a source but one."""
    (name, _), *others = record.headers or (("", None),)
    return name == FILLER and not others and record.value is None and record.key in (None, _KEY)


def is_filler_batch(header: BatchHeader, batch: memoryview) -> bool:
    """True for a batch of filler_batches, with its default codec, and for no batch of a source but one: its first record tells."""
    if header.base_timestamp != header.max_timestamp or header.codec not in (codecs.NONE, codecs.GZIP):
        return False
    first = bytes(batch[HEADER_SIZE : HEADER_SIZE + _LONGEST_FIRST])
    if header.codec:
        try:
            first = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(batch[HEADER_SIZE:], _LONGEST_FIRST)
        except zlib.error:  # a source's batch, which is copied as it is
            return False
    return first.startswith(_FIRST_RECORDS)


def marker_producer(offset: int, series: int = 0) -> tuple[int, int]:
    """Producer id and epoch of the filler marker for an offset."""
    return FIRST_MARKER_PRODUCER_ID + (series << _SERIES_AT) + (offset >> _EPOCH_BITS), offset & _EPOCH_MASK


def is_filler_marker(header: BatchHeader) -> bool:
    """True for a filler marker, at whatever offset it lies."""
    return header.is_control and header.producer_id >= FIRST_MARKER_PRODUCER_ID and header.producer_epoch >= 0


def _one_record(delta: int, is_compacted: bool) -> bytes:
    record = Record(delta, 0, _KEY if is_compacted else None, None, ((FILLER, None),))
    return encode_batch([record], offsets=[delta], last_offset_delta=delta)[HEADER_SIZE:]


_FIRST_RECORDS: Final = (_one_record(0, is_compacted=False), _one_record(0, is_compacted=True))
_LONGEST_FIRST: Final = max(map(len, _FIRST_RECORDS))


def _records_in(room: int, is_compacted: bool) -> int:
    """How many filler records fit into `room` bytes."""
    count = 0
    for first, until in _DELTAS_BY_WIDTH:
        size = len(_one_record(first, is_compacted))
        fitting = min(max(room, 0) // size, until - first)
        count += fitting
        room -= fitting * size
        if fitting < until - first:
            break
    return count


@lru_cache(maxsize=32)
def _filler_batch(count: int, is_compacted: bool, codec: int) -> bytes:
    """`count` filler records as a batch at offset 0, without timestamp, producer and CRC."""
    blocks = []
    for width, (first, until) in enumerate(_DELTAS_BY_WIDTH, 1):
        if first < count:
            # All records of a block are as long as its first, and differ only in the offset delta.
            deltas = np.arange(first, min(until, count)) << 1
            rows = np.tile(np.frombuffer(_one_record(first, is_compacted), np.uint8), (len(deltas), 1))
            for byte in range(width):
                rows[:, _BEFORE_DELTA + byte] = deltas >> 7 * byte & 0x7F | (0x80 if byte + 1 < width else 0)
            blocks.append(rows.tobytes())
    section = b"".join(blocks)
    packed = codecs.compress(codec, section)
    if len(packed) >= len(section):
        codec, packed = codecs.NONE, section
    header = np.zeros(1, HEADER)
    header["length"] = HEADER_SIZE - LOG_OVERHEAD + len(packed)
    header["magic"] = 2
    header["attributes"] = codec
    header["last_offset_delta"] = count - 1
    header["record_count"] = count
    header["partition_leader_epoch"] = header["producer_id"] = header["producer_epoch"] = header["base_sequence"] = -1
    return bytes(header.tobytes() + packed)
