"""Columns of numbers as the varints of records, each row a short run of bytes in an Arrow array.

Wire facts: org.apache.kafka.common.utils.ByteUtils, zigzag varints and varlongs of
7 bits a byte, lowest first, the highest bit set in all bytes but the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


class Varints(NamedTuple):
    """The zigzag code of a number for each row, or one for all; `width`, in bytes, is one number where all agree."""

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
    """How many bytes a zigzag code takes."""
    return max(1, -(-code.bit_length() // 7))


def varint_runs(kind: Any, rows: int, columns: Sequence[Varints]) -> Any:
    """For each row a binary of its varints, one behind the other; a scalar where all rows have the same ones.

    `kind` is pa.binary() or pa.large_binary().
    """
    if all(isinstance(column.code, int) and column.width == 1 for column in columns):
        return pa.scalar(bytes(column.code for column in columns), kind)
    widest = [int(np.max(column.width)) for column in columns]
    table = np.empty((rows, sum(widest)), np.uint8)
    is_used = None
    place = 0
    for (code, width), most in zip(columns, widest, strict=True):
        for number in range(most):
            byte = code >> (7 * number)
            if isinstance(width, int):
                table[:, place] = byte | 0x80 if number < width - 1 else byte
            else:
                table[:, place] = byte & 0x7F | (width > number + 1).astype(np.uint64) << 7
                if is_used is None:
                    is_used = np.ones(table.shape, np.bool_)
                is_used[:, place] = width > number
            place += 1
    if is_used is None:
        return binary_array(kind, np.arange(1, rows + 1) * place, table)
    return binary_array(kind, np.cumsum(sum(column.width for column in columns)), table[is_used])


def binary_array(kind: Any, ends: Int64s, data: npt.NDArray[Any]) -> Any:
    """A binary array over `data`, of which row n ends at ends[n]."""
    offsets = np.zeros(len(ends) + 1, np.int64 if kind == pa.large_binary() else np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(kind, len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
