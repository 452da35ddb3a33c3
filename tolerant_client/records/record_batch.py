"""Record batches of message format v2, as views over the bytes that a broker sent.

Laws:
- Nothing is copied: iter_batches yields views, and only restamp writes, in place.
- An invalid batch raises RecordBatchError with its base offset and the reason;
  payload never appears in an error message.
- encode_batch writes exactly what decode_records yields, including header keys
  that are not UTF-8 (surrogate escapes preserve them).

Wire layout (KIP-98; org.apache.kafka.common.record.DefaultRecordBatch), big-endian:

     0  int64   base offset                 outside the CRC
     8  int32   length                      of the bytes after it: size - 12
    12  int32   partition leader epoch      outside the CRC
    16  int8    magic                       2
    17  uint32  CRC-32C                     of everything from byte 21 on
    21  int16   attributes                  bits 0-2 codec, 3 log append time, 4 transactional,
                                            5 control, 6 delete horizon (KIP-534)
    23  int32   last offset delta
    27  int64   base timestamp
    35  int64   max timestamp
    43  int64   producer id
    51  int16   producer epoch
    53  int32   base sequence
    57  int32   record count
    61          records, compressed as a whole

Record (org.apache.kafka.common.record.DefaultRecord), zigzag varints:

    length | int8 attributes | timestamp delta (varlong) | offset delta
    | key length (-1: null), key | value length (-1: null), value
    | header count | per header: key length, key, value length (-1: null), value
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import crc32c

from tolerant_client.errors import RecordBatchError
from tolerant_client.records import codecs
from tolerant_client.records.record_cursor import Headers, RecordCursor, put_varint
from tolerant_client.records.record_fields import MAX_HEADERS

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = 21

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

_MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_MAGIC_OFFSET: Final = 16
_INT64_MAX: Final = 2**63 - 1
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
_CONTROL_KEY: Final = struct.Struct(">hh")

ABORT: Final = 0  # the type of an abort marker (ControlRecordType)


class BatchHeader(NamedTuple):
    """The header of one batch; `size` is that of the whole batch in bytes, the first 12 bytes included."""

    base_offset: int
    size: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)


class Record(NamedTuple):
    """One record; the bytes are copies and outlive the batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def read_header(batch: memoryview | bytes | bytearray, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked; at least HEADER_SIZE bytes must follow."""
    base_offset, length, *rest = _HEADER.unpack_from(batch, position)
    return BatchHeader(base_offset, length + LOG_OVERHEAD, *rest)


def iter_batches(records: memoryview, *, verify_crc: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every complete batch in the `records` of a Fetch response, with a view of its bytes.

    A partial batch at the end is not yielded: brokers cut the last one at the size
    limit.  If nothing was yielded although `records` is not empty, the limit was
    too small for the first batch (brokers before Fetch v3) or its length is wrong.
    The views are valid until the buffer under `records` is reused.
    Raises RecordBatchError at the first invalid batch.
    """
    unpack_from = _HEADER.unpack_from
    checksum = crc32c.crc32c
    position, end = 0, len(records)
    while end - position >= HEADER_SIZE:
        base_offset, length, *rest = unpack_from(records, position)
        header = BatchHeader(base_offset, length + LOG_OVERHEAD, *rest)
        if (
            header.magic != 2
            or length < _MIN_LENGTH
            or base_offset < 0
            or header.record_count < 0
            or not 0 <= header.last_offset_delta < _INT64_MAX - base_offset
            or header.record_count > header.last_offset_delta + 1
        ):
            raise RecordBatchError(_distrust(header), base_offset)
        following = position + header.size
        if following > end:
            return
        batch = records[position:following]
        if verify_crc and (computed := checksum(batch[ATTRIBUTES_OFFSET:])) != header.crc:
            raise RecordBatchError(
                f"CRC mismatch in a record batch of {header.size} bytes, {computed:08x} computed", base_offset
            )
        yield header, batch
        position = following
    _check_tail(records[position:])


def _distrust(header: BatchHeader) -> str:
    if header.magic != 2:
        return f"record batch with magic {header.magic}, expected 2"
    if header.size < HEADER_SIZE:
        return f"record batch with length {header.size - LOG_OVERHEAD}, expected at least {_MIN_LENGTH}"
    if header.base_offset < 0:
        return "record batch with a negative base offset"
    if header.record_count < 0:
        return f"record batch with a negative record count {header.record_count}"
    if not 0 <= header.last_offset_delta < _INT64_MAX - header.base_offset:
        return f"record batch with an impossible last offset delta {header.last_offset_delta}"
    return f"record batch with {header.record_count} records in {header.last_offset_delta + 1} offsets"


def _check_tail(tail: memoryview) -> None:
    # Messages of v0 and v1 can be shorter than a v2 header: report their magic
    # instead of treating them as a partial batch.
    if len(tail) <= _MAGIC_OFFSET:
        return
    (base_offset,) = _INT64.unpack_from(tail)
    (length,) = _LENGTH.unpack_from(tail, 8)
    magic = tail[_MAGIC_OFFSET]
    if magic != 2:
        raise RecordBatchError(f"record batch with magic {magic}, expected 2", base_offset)
    if length < _MIN_LENGTH:
        raise RecordBatchError(f"record batch with length {length}, expected at least {_MIN_LENGTH}", base_offset)


def restamp(
    batch: memoryview | bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    *,
    is_transactional: bool = False,
) -> None:
    """Write a new producer, base offset and leader epoch into a batch, in place, and recompute its CRC (DESIGN.md M1).

    `batch` is a writable view of exactly one batch.  The transactional bit is
    set to `is_transactional`: a copied batch is a plain idempotent one unless
    it goes into a transaction of the mirror (M2, M6).  Records, codec and
    timestamps do not change.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_OFFSET)
    wanted = (attributes & ~TRANSACTIONAL_BIT) | (TRANSACTIONAL_BIT if is_transactional else 0)
    if wanted != attributes:
        _ATTRIBUTES.pack_into(batch, ATTRIBUTES_OFFSET, wanted)
    _INT64.pack_into(batch, 0, base_offset)
    _LENGTH.pack_into(batch, 12, partition_leader_epoch)
    _PRODUCER.pack_into(batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, CRC_OFFSET, crc32c.crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))


def records_section(header: BatchHeader, batch: memoryview) -> memoryview:
    """The records of one batch, decompressed; a view of `batch` if it is not compressed.

    Raises RecordBatchError if they are damaged or decompress to more than the
    bounds of codecs.decompress allow.
    """
    if not header.codec:
        return batch[HEADER_SIZE:]
    try:
        return codecs.decompress(header.codec, batch[HEADER_SIZE:])
    except codecs.CodecError as error:
        raise RecordBatchError(str(error), header.base_offset) from error


def control_type(batch: memoryview) -> int:
    """The type of a control batch: ABORT, or 1 for commit (ControlRecordType; others exist).

    Raises RecordBatchError if the batch has no control record with a valid key.
    """
    header = read_header(batch)
    for record in decode_records(batch):
        if record.key is not None and len(record.key) >= _CONTROL_KEY.size:
            return int(_CONTROL_KEY.unpack_from(record.key)[1])
        raise RecordBatchError("control record with a bad key", header.base_offset)
    raise RecordBatchError("control batch without a record", header.base_offset)


def decode_records(batch: memoryview) -> Iterator[Record]:
    """Every record of one batch: the plain decoder, written to be correct rather than fast.

    With log append time every record has the batch's max timestamp.
    Raises RecordBatchError for invalid varints, lengths beyond the end, offsets
    out of order and bytes left over.
    """
    header = read_header(batch)
    for record, _ in decode_section(header, records_section(header, batch)):
        yield record


def decode_section(
    header: BatchHeader, section: memoryview, from_offset: int = 0, most_headers: int = MAX_HEADERS
) -> Iterator[tuple[Record, int]]:
    """As decode_records, but of decompressed records: each with its size in bytes without the length prefix.

    The headers of records below `from_offset` are skipped unread.  A record with more than `most_headers` raises
    RecordBatchError.
    """
    cursor = RecordCursor(section, header.base_offset)
    last_delta = -1
    for _ in range(header.record_count):
        length = cursor.varint()
        end = cursor.position + length
        if length < 0 or end > cursor.end:
            raise cursor.error("record length beyond the end of the batch")
        cursor.skip(1)  # attributes, unused
        timestamp = header.base_timestamp + cursor.varint(64)
        if header.has_log_append_time:
            timestamp = header.max_timestamp
        elif not -_INT64_MAX - 1 <= timestamp <= _INT64_MAX:
            raise cursor.error("timestamp beyond 64 bits")
        delta = cursor.varint()
        if not last_delta < delta <= header.last_offset_delta:
            raise cursor.error(f"offset delta {delta} out of order")
        last_delta = delta
        key, value = cursor.data(), cursor.data()
        offset = header.base_offset + delta
        if offset < from_offset:
            cursor.position = max(end, cursor.position)
        headers = cursor.headers(offset, most_headers) if offset >= from_offset else ()
        if cursor.position != end:
            raise cursor.error("record length does not match its content")
        yield Record(offset, timestamp, key, value, headers), length
    if cursor.position != cursor.end:
        raise cursor.error(f"{cursor.end - cursor.position} bytes left over after the last record")


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    codec: int = codecs.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """One batch of these records, with consecutive offsets from `base_offset`.

    `offsets` (ascending, absolute) and `last_offset_delta` can leave gaps, as log
    compaction does; a broker accepts no produced batch with gaps.  With
    `log_append_time` (ms) the batch has that time as its broker's log append time.
    """
    if not records and last_offset_delta is None:
        raise ValueError("a batch without records needs its last_offset_delta")
    if offsets is None:
        offsets = range(base_offset, base_offset + len(records))
    base_timestamp = records[0].timestamp if records else -1
    max_timestamp = max((record.timestamp for record in records), default=-1)
    section = bytearray()
    for offset, record in zip(offsets, records, strict=True):
        body = bytearray(1)
        put_varint(body, record.timestamp - base_timestamp)
        put_varint(body, offset - base_offset)
        _put_data(body, record.key)
        _put_data(body, record.value)
        body += encode_headers(record.headers)
        put_varint(section, len(body))
        section += body
    if last_offset_delta is None:
        last_offset_delta = offsets[-1] - base_offset
    attributes = (
        codec
        | (0 if log_append_time is None else LOG_APPEND_TIME_BIT)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
    )
    compressed = codecs.compress(codec, section)
    batch = bytearray(
        _HEADER.pack(
            base_offset,
            _MIN_LENGTH + len(compressed),
            partition_leader_epoch,
            2,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp if log_append_time is None else log_append_time,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    batch += compressed
    _CRC.pack_into(batch, CRC_OFFSET, crc32c.crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))
    return bytes(batch)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Headers encoded as in a record, their count first."""
    data = bytearray()
    put_varint(data, len(headers))
    for key, value in headers:
        _put_data(data, key.encode("utf-8", "surrogateescape"))
        _put_data(data, value)
    return bytes(data)


def _put_data(buffer: bytearray, data: bytes | None) -> None:
    if data is None:
        buffer.append(1)
    else:
        put_varint(buffer, len(data))
        buffer += data
