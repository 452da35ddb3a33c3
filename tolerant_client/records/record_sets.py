"""Message formats v0 and v1: brokers before 0.11 store them, and newer brokers keep them in old logs.

Laws:
- iter_record_sets checks sizes, checksums, codecs and the order of offsets, also inside compressed
  sets.  An invalid set raises RecordBatchError with an offset and the reason.
- The columns are those of Kafka's Java consumer: a v0 message has the timestamp -1 and the timestamp
  type -1 (TimestampType.NO_TIMESTAMP_TYPE).
- Compressed sets are bounded by codecs.decompress, as v2 batches are.

Message (org.apache.kafka.common.record.LegacyRecord), big-endian:

     0  int64   offset
     8  int32   size                of the bytes after it
    12  uint32  CRC-32              of everything from byte 16 on
    16  int8    magic               0 or 1; at the same position as in a v2 batch
    17  int8    attributes          bits 0-2 codec (none, gzip, snappy, lz4), 3 log append time (v1)
    18  int64   timestamp           v1 only
        int32   key length (-1: null), key
        int32   value length (-1: null), value

A message with a codec is a wrapper: its value decompresses to messages without a codec, and its offset is
that of the last of them.  In v0 these inner messages have absolute offsets, in v1 their offsets are relative
to the wrapper's first message (KIP-31).  If the wrapper has log append time, its timestamp is that of all
inner messages (KIP-32).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tolerant_client.errors import RecordBatchError
from tolerant_client.records import codecs
from tolerant_client.records.batch_columns import HEADER, BatchColumns
from tolerant_client.records.record_batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    iter_batches,
)
from tolerant_client.records.record_fields import NO_HEADERS, Fields
from tolerant_client.records.varint_columns import Doubt, Int64s

NO_TIMESTAMP: Final = -1
NO_TIMESTAMP_TYPE: Final = -1

_MAGIC_AT: Final = 16  # the CRC covers all bytes from here on
_TIMESTAMP_AT: Final = 18
_KEY_AT: Final = (18, 26)  # by magic
_LEAST_SIZE: Final = (14, 22)  # by magic: a message with null or empty key and value
_SIZE_AND_MAGIC: Final = struct.Struct(">8xi4xB")
_INT32: Final = struct.Struct(">i")
_INT64_MAX: Final = 2**63 - 1
_RUN_BYTES: Final = 1 << 20  # a run is cut after this many bytes, so that pieces of Arrow data have a bounded size
_RUN_OFFSETS: Final = 1 << 30  # a header's last offset delta has 32 bits
_CODECS: Final = (codecs.GZIP, codecs.SNAPPY, codecs.LZ4)
_COLUMNS: Final = ("start", "end", "offset", "crc", "magic", "attributes", "timestamp")
_HEAD: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("crc", ">u4"), ("magic", "u1"), ("attributes", "u1")])

Messages = npt.NDArray[np.void]  # a row of _COLUMNS for each message, all of them int64


class Message(NamedTuple):
    """The position of a message and its first fields; unused bits of `attributes` are 0."""

    start: int
    end: int
    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_stamped(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)


def iter_record_sets(
    records: memoryview, *, from_offset: int = 0, verify_crc: bool = True
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """As record_batch.iter_batches, for logs that may also hold messages of v0 and v1.

    A header with magic 0 or 1 stands for one wrapper, or for a run of messages
    without a codec and with the same magic and timestamp type; messages of a run
    before `from_offset` are skipped.  The header has the offsets, timestamps, codec,
    record count and size; leader epoch and producer fields are -1.  A partial set at
    the end is not yielded.  Raises RecordBatchError at the first invalid set.
    """
    next_offset = 0
    for header, view in _iter_checked(records, from_offset, verify_crc):
        if header.base_offset < next_offset:
            raise RecordBatchError("set that begins before the last one ended", header.base_offset)
        next_offset = header.next_offset
        yield header, view


def _iter_checked(records: memoryview, from_offset: int, verify_crc: bool) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The sets of iter_record_sets, each one checked, but not the order of the sets."""
    position = 0
    while len(records) - position > _MAGIC_AT:
        if records[position + _MAGIC_AT] > 1:
            end = _end_of_v2(records, position)
            yield from iter_batches(records[position:end], verify_crc=verify_crc)
            position = end
            continue
        found, distrust = _find(records, position, verify_crc)
        for group in _groups(found):
            if group["attributes"][0] & CODEC_MASK:
                for wrapper in _each(group):
                    yield _wrapper_header(records, wrapper, verify_crc), records[wrapper.start : wrapper.end]
            elif len(group := group[group["offset"] >= from_offset]):
                yield _run_header(group), records[int(group["start"][0]) : int(group["end"][-1])]
        if distrust is not None:
            raise distrust
        if len(found):
            position = int(found["end"][-1])
        if len(records) - position > _MAGIC_AT and records[position + _MAGIC_AT] <= 1:
            return  # a partial message at the end


def _end_of_v2(records: memoryview, position: int) -> int:
    """The position of the next message of v0 or v1; the end of `records` if there is none or a length is impossible."""
    while len(records) - position > _MAGIC_AT and records[position + _MAGIC_AT] > 1:
        (length,) = _INT32.unpack_from(records, position + 8)
        if length <= 0:
            return len(records)
        position += LOG_OVERHEAD + length
    return position if len(records) - position > _MAGIC_AT else len(records)


def _find(
    section: memoryview, position: int, verify_crc: bool, wrapper: Message | None = None
) -> tuple[Messages, RecordBatchError | None]:
    """As _scan, but only messages with ascending offsets and, with `verify_crc`, correct checksums."""
    found, distrust = _scan(section, position, wrapper)
    offsets = found["offset"]
    is_wrong = (offsets < 0) | (offsets == _INT64_MAX)
    is_wrong[1:] |= offsets[1:] <= offsets[:-1]
    if is_wrong.any():
        found, distrust = _before(found, is_wrong, "message with an offset out of order", wrapper)
    if verify_crc:
        crc32, ends = zlib.crc32, found["end"].tolist()
        crcs = [crc32(section[a + _MAGIC_AT : b]) for a, b in zip(found["start"].tolist(), ends)]
        is_wrong = np.array(crcs, np.int64) != found["crc"]
        if is_wrong.any():
            computed = crcs[int(is_wrong.argmax())]
            found, distrust = _before(found, is_wrong, f"CRC mismatch ({computed:08x} computed) in a message", wrapper)
    return found, distrust


def _before(
    found: Messages, is_wrong: npt.NDArray[np.bool_], reason: str, wrapper: Message | None
) -> tuple[Messages, RecordBatchError]:
    """The messages before the first wrong one, and the error of that one."""
    first = int(is_wrong.argmax())
    return found[:first], _distrust(reason, int(found["offset"][first]), wrapper)


def _scan(
    section: memoryview, position: int, wrapper: Message | None = None
) -> tuple[Messages, RecordBatchError | None]:
    """The messages from `position` on, up to the first v2 batch, partial message or invalid message.

    An error has the message's own offset, or that of its `wrapper`.
    """
    end, unpack_from = len(section), _SIZE_AND_MAGIC.unpack_from
    bounds = [position]
    distrust: RecordBatchError | None = None
    while end - position > _MAGIC_AT:
        size, magic = unpack_from(section, position)
        if magic > 1:
            break
        if size < _LEAST_SIZE[magic]:
            (offset,) = struct.unpack_from(">q", section, position)
            distrust = _distrust(f"message of format v{magic} with size {size}", offset, wrapper)
            break
        position += LOG_OVERHEAD + size
        if position > end:
            break
        bounds.append(position)
    found = np.zeros(len(bounds) - 1, [(name, np.int64) for name in _COLUMNS])
    if not len(found):
        return found, distrust
    found["start"], found["end"] = bounds[:-1], bounds[1:]
    head = _gather(section, found["start"], _HEAD)
    for name in ("offset", "crc", "magic"):
        found[name] = head[name]
    known = np.where(found["magic"] == 0, CODEC_MASK, CODEC_MASK | LOG_APPEND_TIME_BIT)
    found["attributes"] = head["attributes"] & known
    found["timestamp"] = NO_TIMESTAMP
    has_time = np.flatnonzero(found["magic"])
    if len(has_time):
        found["timestamp"][has_time] = _gather_number(section, found["start"][has_time] + _TIMESTAMP_AT, ">i8")
    return found, distrust


def _distrust(reason: str, offset: int, wrapper: Message | None) -> RecordBatchError:
    if wrapper is None:
        return RecordBatchError(reason, offset)
    return RecordBatchError(f"{reason} in a compressed set", wrapper.offset)


def _each(messages: Messages) -> Iterator[Message]:
    return map(Message._make, messages.tolist())


def _groups(found: Messages) -> Iterator[Messages]:
    """Adjacent messages of one magic, codec and timestamp type, of about _RUN_BYTES and _RUN_OFFSETS at most."""
    kinds = (found["start"] // _RUN_BYTES << 9) + (found["magic"] << 8) + found["attributes"]
    spans = found["offset"] // _RUN_OFFSETS
    cuts = (np.flatnonzero((kinds[1:] != kinds[:-1]) | (spans[1:] != spans[:-1])) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(found)]):
        if first < last:
            yield found[first:last]


def _run_header(run: Messages) -> BatchHeader:
    first, last = _each(run[[0, -1]])
    return _header(
        first._replace(end=last.end), first.offset, last.offset, len(run), first.timestamp, int(run["timestamp"].max())
    )


def _wrapper_header(records: memoryview, wrapper: Message, verify_crc: bool) -> BatchHeader:
    """The header of a compressed set, which is decompressed to check it and to find its first offset."""
    section = _unfold(wrapper, records[wrapper.start : wrapper.end])
    inner = _inner(section, wrapper, verify_crc)
    times = (int(inner["timestamp"][0]), int(inner["timestamp"].max()))
    if wrapper.is_stamped:
        times = (wrapper.timestamp, wrapper.timestamp)
    base_offset = int(inner["offset"][0]) + _shift(wrapper, inner)
    if not 0 <= base_offset <= wrapper.offset < base_offset + 2**31:
        raise RecordBatchError(f"compressed set that begins at offset {base_offset}", wrapper.offset)
    return _header(wrapper, base_offset, wrapper.offset, len(inner), *times)


def _header(
    of: Message, base_offset: int, last_offset: int, count: int, base_timestamp: int, max_timestamp: int
) -> BatchHeader:
    return BatchHeader(
        base_offset=base_offset,
        size=of.end - of.start,
        partition_leader_epoch=-1,
        magic=of.magic,
        crc=of.crc,
        attributes=of.attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )


def _inner(section: memoryview, wrapper: Message, verify_crc: bool) -> Messages:
    """The messages of a decompressed set: at least one, up to its end; raises RecordBatchError."""
    inner, distrust = _find(section, 0, verify_crc, wrapper)
    if distrust is not None:
        raise distrust
    if not len(inner) or inner["end"][-1] != len(section):
        left_over = len(section) - (int(inner["end"][-1]) if len(inner) else 0)
        raise RecordBatchError(f"{left_over} bytes that are not a message in a compressed set", wrapper.offset)
    if (inner["attributes"] & CODEC_MASK).any():
        raise RecordBatchError("compressed message in a compressed set", wrapper.offset)
    return inner


def _shift(wrapper: Message, inner: Messages) -> int:
    """The number to add to the offsets in a set; raises RecordBatchError."""
    last_offset = int(inner["offset"][-1])
    if last_offset > wrapper.offset:
        raise RecordBatchError(
            f"compressed set that ends at offset {last_offset}, after its own offset", wrapper.offset
        )
    return wrapper.offset - last_offset if wrapper.magic else 0


def unfold(header: BatchHeader, view: memoryview) -> memoryview:
    """The messages of one set from iter_record_sets, decompressed; `view` itself for a run.

    Raises RecordBatchError if they are damaged or decompress to more than the
    bounds of codecs.decompress allow.
    """
    return _unfold(_wrapper(header, view), view) if header.codec else view


def _wrapper(header: BatchHeader, view: memoryview) -> Message:
    return Message(0, len(view), header.last_offset, header.crc, header.magic, header.attributes, header.max_timestamp)


def _unfold(wrapper: Message, view: memoryview) -> memoryview:
    _, value = _key_and_value(view, wrapper._replace(start=0, end=len(view)), wrapper)
    if value is None:
        raise RecordBatchError("compressed set without a value", wrapper.offset)
    if wrapper.codec not in _CODECS:
        name = codecs.codec_name(wrapper.codec)
        raise RecordBatchError(f"message of format v{wrapper.magic} with codec {name}", wrapper.offset)
    if wrapper.codec == codecs.LZ4 and not wrapper.magic:
        value = codecs.with_lz4_header_checksum(value)
    try:
        return codecs.decompress(wrapper.codec, value)
    except codecs.CodecError as error:
        raise RecordBatchError(str(error), wrapper.offset) from error


def _key_and_value(
    section: memoryview, message: Message, wrapper: Message | None
) -> tuple[memoryview | None, memoryview | None]:
    position, fields = message.start + _KEY_AT[message.magic], []
    for _ in range(2):
        if message.end - position < _INT32.size:
            raise _distrust("message that ends before a key or value length", message.offset, wrapper)
        (length,) = _INT32.unpack_from(section, position)
        position += _INT32.size
        if not -1 <= length <= message.end - position:
            raise _distrust(f"field with the impossible length {length} in a message", message.offset, wrapper)
        fields.append(None if length < 0 else section[position : position + length])
        position += max(length, 0)
    if position != message.end:
        raise _distrust(f"{message.end - position} bytes left over in a message", message.offset, wrapper)
    return fields[0], fields[1]


def decode_messages(header: BatchHeader, view: memoryview) -> Iterator[tuple[Record, int]]:
    """Every record of one set from iter_record_sets with its timestamp type: the plain decoder.

    Raises RecordBatchError.
    """
    for record, kind, _ in decode_unfolded(header, view, unfold(header, view)):
        yield record, kind


def decode_unfolded(
    header: BatchHeader, view: memoryview, section: memoryview
) -> Iterator[tuple[Record, int, Message]]:
    """As decode_messages, for a set whose messages `unfold` returned as `section`; each with its position there."""
    wrapper = _wrapper(header, view) if header.codec else None
    shift, distrust = 0, None
    if wrapper is None:
        messages, distrust = _find(section, 0, False)
    else:
        messages = _inner(section, wrapper, False)
        shift = _shift(wrapper, messages)
    for message in _each(messages):
        key, value = _key_and_value(section, message, wrapper)
        of = wrapper or message
        # The wrapper's timestamp type is that of its messages, but messages of v0 have none.
        kind = int(of.is_stamped) if message.magic and of.magic else NO_TIMESTAMP_TYPE
        timestamp = of.timestamp if kind == 1 else message.timestamp
        yield (
            Record(
                message.offset + shift,
                timestamp,
                None if key is None else bytes(key),
                None if value is None else bytes(value),
            ),
            kind,
            message,
        )
    if distrust is not None:
        raise distrust


def message_columns(sets: Sequence[tuple[BatchHeader, memoryview]]) -> BatchColumns:
    """The columns of sets of one magic, together; each set comes with its section from `unfold`.

    Raises Doubt for invalid data: decode_messages then raises the error.
    """
    magic = sets[0][0].magic
    joined = sets[0][1] if len(sets) == 1 else memoryview(b"".join(section for _, section in sets))
    ends = np.cumsum([len(section) for _, section in sets])
    found, distrust = _scan(joined, 0)
    if distrust is not None:
        raise Doubt from distrust
    last = np.searchsorted(found["end"], ends)  # the last row of each set
    if not len(found) or last[-1] >= len(found) or (found["end"][last] != ends).any():
        raise Doubt
    if (found["magic"] != magic).any():
        raise Doubt
    counts = np.diff(last, prepend=-1)
    headers = np.zeros(len(sets), HEADER)
    headers["partition_leader_epoch"] = -1
    fields = _fields(joined, found, magic)
    if not magic:
        types = np.full(len(found), NO_TIMESTAMP_TYPE, np.int32)
        return BatchColumns(joined, headers, fields, counts, found["offset"], found["timestamp"], types)
    is_wrapper = np.array([bool(header.codec) for header, _ in sets])
    is_stamped = np.array([header.has_log_append_time for header, _ in sets])
    shifts = np.where(is_wrapper, np.array([header.last_offset for header, _ in sets]) - found["offset"][last], 0)
    stamps = np.repeat(np.array([header.max_timestamp for header, _ in sets], np.int64), counts)
    timestamps = np.where(np.repeat(is_wrapper & is_stamped, counts), stamps, found["timestamp"])
    offsets = found["offset"] + np.repeat(shifts, counts)
    types = np.repeat(is_stamped, counts).astype(np.int32)
    return BatchColumns(joined, headers, fields, counts, offsets, timestamps, types)


def _fields(joined: memoryview, found: Messages, magic: int) -> Fields:
    key_length = _gather_number(joined, found["start"] + _KEY_AT[magic], ">i4")
    key_start = found["start"] + _KEY_AT[magic] + _INT32.size
    value_at = key_start + np.maximum(key_length, 0)
    if key_length.min() < -1 or (value_at + _INT32.size > found["end"]).any():
        raise Doubt
    value_length = _gather_number(joined, value_at, ">i4")
    value_start = value_at + _INT32.size
    if value_length.min() < -1 or (value_start + np.maximum(value_length, 0) != found["end"]).any():
        raise Doubt
    zeros = np.zeros(len(found), np.int64)
    return Fields(
        length=found["end"] - found["start"] - LOG_OVERHEAD,
        timestamp_delta=zeros,
        offset_delta=zeros,
        key_start=key_start,
        key_length=key_length,
        value_start=value_start,
        value_length=value_length,
        header_count=zeros,
        end=found["end"],
        headers=NO_HEADERS,
    )


def _gather(section: memoryview, positions: Int64s, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """The value of type `kind` at each position."""
    everywhere = np.ndarray((len(section) - kind.itemsize + 1,), f"V{kind.itemsize}", section, 0, (1,))
    return everywhere[positions].view(kind)


def _gather_number(section: memoryview, positions: Int64s, kind: str) -> Int64s:
    return _gather(section, positions, np.dtype([("", kind)]))["f0"].astype(np.int64)
