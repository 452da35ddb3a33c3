"""The four compression codecs of record batches, with a bound on the decompressed size.

Laws:
- Decompressed data is bounded before it is written anywhere: never more than
  MAX_DECOMPRESSED_BYTES, and never more than 1000 times its compressed size
  (up to RATIO_FLOOR any ratio is allowed: zeros compress better than that).
- Truncated, damaged or over-long data raises CodecError; it never yields a part.
- No message contains payload.

Kafka's framings: gzip is a plain gzip stream, lz4 the LZ4 frame format with
independent blocks (KafkaLZ4BlockInputStream reads no other), zstd a plain zstd
frame.  snappy has two framings and Java reads both: that of
xerial's snappy-java (Java and kafka-python) and one raw block (librdkafka).

    xerial: magic 82 "SNAPPY" 00 | int32 version | int32 compatible | blocks
    block:  int32 length | raw snappy block of that length
    lz4:    magic 04 22 4d 18 | descriptor 3 bytes | blocks | 00 00 00 00
    block:  little-endian uint32 length, highest bit set if not compressed | block
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import cramjam
import numpy as np

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
MAX_RATIO: Final = 1000
RATIO_FLOOR: Final = 64 * 1024 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x50\xfb"  # independent blocks of at most 256 KB; only the header checksum
_LZ4_BLOCK: Final = 256 * 1024
_LZ4_RAW_BIT: Final = 1 << 31
_LZ4_LENGTH: Final = struct.Struct("<I")
_GZIP_WINDOW: Final = 31  # the largest, in gzip's framing
_INT32: Final = struct.Struct(">i")

# The output buffer is as large as the bound, but only the pages that are written become resident.
_MODULES: Final[dict[int, Any]] = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}


class CodecError(ValueError):
    """Compressed data that is damaged, or decompresses to more than the bound."""


def codec_name(codec: int) -> str:
    """The name of a codec id, for messages and options."""
    return CODEC_NAMES[codec] if 0 <= codec < len(CODEC_NAMES) else f"unknown codec {codec}"


def decompress(codec: int, data: bytes | memoryview) -> memoryview:
    """`data` decompressed; for codec 0 a view of `data` itself.

    Raises CodecError for damaged data and for more bytes than the bound allows.
    """
    if codec == NONE:
        return memoryview(data)
    limit = min(MAX_DECOMPRESSED_BYTES, max(RATIO_FLOOR, MAX_RATIO * len(data)))
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), limit)
    module = _MODULES.get(codec)
    if module is None:
        raise CodecError(f"unknown codec {codec}")
    # The first buffer is small enough for the heap: a buffer as large as the bound is a new memory mapping each time.
    for room in (min(limit, max(64 * 1024, 6 * len(data))), limit):
        output = np.empty(room, np.uint8).data
        try:
            written = module.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise CodecError(f"damaged {codec_name(codec)} data of {len(data)} bytes") from error
        else:
            return output[:written]
    raise CodecError(f"{codec_name(codec)} data of {len(data)} bytes decompresses to more than {limit} bytes")


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """`data` compressed in the framing that Kafka's Java client reads.

    `level` is the compression level (KIP-390): gzip 1 to 9, lz4 1 to 12, zstd 1 to
    22; snappy has none.  None is the default of the codec.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        compressor = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=_GZIP_WINDOW)
        return compressor.compress(data) + compressor.flush()
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(memoryview(data), level)
    if codec != ZSTD:
        raise CodecError(f"unknown codec {codec}")
    return bytes(cramjam.zstd.compress(data, level=level))


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[Any] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK])
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    if level is not None:
        # cramjam.lz4.compress() would link the blocks.
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    # cramjam's own frames have blocks of 64 KB with checksums; a frame of larger blocks takes a quarter less time.
    parts: list[Any] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        raw = data[start : start + _LZ4_BLOCK]
        block = cramjam.lz4.compress_block(raw, store_size=False)
        if len(block) < len(raw):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            parts += (_LZ4_LENGTH.pack(len(raw) | _LZ4_RAW_BIT), raw)
    parts.append(_LZ4_LENGTH.pack(0))
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> memoryview:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        blocks = [data]
    else:
        blocks = list(_xerial_blocks(data))
    # A raw block begins with its decompressed length, so the bound is checked before anything is decompressed.
    try:
        lengths = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(lengths)
        if total > limit:
            raise CodecError(f"snappy data of {len(data)} bytes decompresses to {total} bytes, more than {limit}")
        output = np.empty(total, np.uint8).data
        position = 0
        for block, length in zip(blocks, lengths, strict=True):
            cramjam.snappy.decompress_raw_into(block, output[position : position + length])
            position += length
    except cramjam.DecompressionError as error:
        raise CodecError(f"damaged snappy data of {len(data)} bytes") from error
    return output


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # SnappyInputStream reads concatenated streams
            continue
        if len(data) - position < _INT32.size:
            raise CodecError("snappy block without a length")
        (length,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < length <= len(data) - position:
            raise CodecError(f"snappy block of {length} bytes, but {len(data) - position} bytes are left")
        blocks.append(data[position : position + length])
        position += length
    if position != len(data):
        raise CodecError("snappy header cut short")
    return blocks


def with_lz4_header_checksum(frame: memoryview) -> memoryview:
    """An LZ4 frame with the correct header checksum in place of the wrong one of message format v0 (KIP-57)."""
    size = 6 + (8 if len(frame) > 4 and frame[4] & 0x08 else 0) + (4 if len(frame) > 4 and frame[4] & 0x01 else 0)
    if len(frame) <= size:
        return frame  # too short for a frame: decompress raises for it
    mended = bytearray(frame)
    mended[size] = _xxh32(mended[4:size]) >> 8 & 0xFF
    return memoryview(mended)


def _xxh32(data: bytes | bytearray) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes; an LZ4 frame header is no longer."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 32 - bits) & mask

    result = prime5 + len(data) & mask
    words = len(data) // 4
    for (word,) in struct.iter_unpack("<I", data[: 4 * words]):
        result = rotated(result + word * prime3 & mask, 17) * prime4 & mask
    for byte in data[4 * words :]:
        result = rotated(result + byte * prime5 & mask, 11) * prime1 & mask
    result = (result ^ result >> 15) * prime2 & mask
    result = (result ^ result >> 13) * prime3 & mask
    return result ^ result >> 16
