"""The five bytes that schema registry serializers put before a payload: magic 0, and the schema's id.

Layout: Confluent's wire format; byte 0 is 0, bytes 1 to 4 are the id, big-endian.
A value that does not begin so, or is shorter, stays unchanged and has no id.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tolerant_client.records.arrow import gather

PREFIX_SIZE: Final = 5


def split_framing(column: Any) -> tuple[Any, Any]:
    """(payloads, schema ids) of a binary array; ids are int32, null if there is no prefix."""
    _, offsets_buffer, data_buffer = column.buffers()
    if not len(column) or data_buffer is None or not data_buffer.size:
        return column, pa.nulls(len(column), pa.int32())
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    lengths[np.asarray(column.is_null())] = -1
    data = np.frombuffer(data_buffer, np.uint8)
    is_long = lengths >= PREFIX_SIZE
    is_framed = is_long & (data[np.where(is_long, starts, 0)] == 0)
    ids = np.zeros(len(column), np.uint32)
    for place in range(1, PREFIX_SIZE):
        ids = (ids << 8 | data[np.where(is_framed, starts + place, 0)]).astype(np.uint32)
    prefix = np.where(is_framed, PREFIX_SIZE, 0)
    payloads = gather(data_buffer, starts + prefix, lengths - prefix, np.arange(len(column)))
    return payloads, pa.array(ids.view(np.int32), mask=~is_framed)
