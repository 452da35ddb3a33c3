"""Reads the varints of records at given positions into columns, and makes varints of columns.

Wire facts: org.apache.kafka.common.utils.ByteUtils, zigzag varints and varlongs of
7 bits a byte, lowest first, the highest bit set in all bytes but the last.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

# The value of a varint of one or two bytes, by its 14 bits.
_ZIGZAG: Final = np.array([(code >> 1) ^ -(code & 1) for code in range(1 << 14)], np.int64)


class Doubt(Exception):
    """The columns met inconsistent data; decoding record by record finds the error."""


def varints_at(data: Bytes, positions: Int64s, widest: int = 5) -> tuple[Int64s, Int64s]:
    """The varints of at most `widest` bytes at `positions`, and the positions after them; raises Doubt for a longer one."""
    byte = data.take(positions, mode="clip")
    if not byte.size or byte.max() < 0x80:
        return _ZIGZAG.take(byte), positions + 1
    second = data.take(positions + 1, mode="clip")
    has_second = byte >> 7
    second *= has_second
    if second.max() < 0x80:
        return _ZIGZAG.take((byte & 0x7F) | (second.astype(np.uint16) << 7)), positions + (has_second + np.uint8(1))
    values = (byte & 0x7F).astype(np.uint64)
    positions = positions + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while more.size:
        if shift == 7 * widest:
            raise Doubt
        if more.size == values.size:
            byte = data.take(positions, mode="clip")
            values |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            positions = positions + 1
        else:
            byte = data.take(positions[more], mode="clip")
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            positions[more] += 1
        # The last byte may have only the remaining bits of 32 or 64.
        if shift == 7 * (widest - 1) and bool((byte > (0x0F if widest == 5 else 1)).any()):
            raise Doubt
        more = more[byte >= 0x80]
        shift += 7
    signed = (values >> np.uint64(1)).view(np.int64)
    if bool((values & np.uint64(1)).any()):
        signed = signed ^ -(values & np.uint64(1)).view(np.int64)
    return signed, positions


def any_varints_at(data: Bytes, positions: Int64s) -> tuple[Int64s, Int64s]:
    """As varints_at, for positions where perhaps no valid varint begins: the value there is below -1."""
    byte = data.take(positions, mode="clip")
    values = (byte & 0x7F).astype(np.int64)
    widths = np.ones(len(positions), np.int64)
    more = byte >> 7
    for shift in (7, 14, 21, 28):
        if not more.any():
            break
        byte = data.take(positions + widths, mode="clip") * more
        values |= (byte & 0x7F).astype(np.int64) << shift
        widths += more
        more = byte >> 7
    values[(more > 0) | (values >> 32 > 0)] = 3  # the code of -2
    return (values >> 1) ^ -(values & 1), positions + widths


class Varints(NamedTuple):
    """The zigzag code of a number for each row, or one for all; `width` in bytes is one number if all rows agree."""

    code: UInt64s | int
    width: Int64s | int

    def rows(self, start: int, stop: int) -> Varints:
        return Varints(
            self.code if isinstance(self.code, int) else self.code[start:stop],
            self.width if isinstance(self.width, int) else self.width[start:stop],
        )


def varints(numbers: Int64s) -> Varints:
    """A varint for each number."""
    code = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    if not len(code):
        return Varints(code, 1)
    narrow, wide = varint_width(int(code.min())), varint_width(int(code.max()))
    if narrow == wide:
        return Varints(code, wide)
    width = np.full(len(code), narrow, np.int64)
    for number in range(narrow, wide):
        width += code >> (7 * number) != 0
    return Varints(code, width)


def varint_width(code: int) -> int:
    """The number of bytes that a zigzag code takes."""
    return max(1, -(-code.bit_length() // 7))
