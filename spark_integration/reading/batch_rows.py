"""payload=batches: one row for each record batch, its bytes as the broker sent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tolerant_client.records.arrow import TIMESTAMP, timestamps_to_arrow
from tolerant_client.records.codecs import CODEC_NAMES
from tolerant_client.records.record_batch import BatchHeader

# The columns that are fields of a batch's header.
_OF_HEADER: Final[Mapping[str, str]] = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "recordCount": "record_count",
    "leaderEpoch": "partition_leader_epoch",
    "isTransactional": "is_transactional",
    "isControl": "is_control",
}


def batches_to_arrow(
    batches: Sequence[tuple[BatchHeader, memoryview]], topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """One row per batch, control batches included, with the fields of `schema`; the bytes are copied once."""
    headers = [header for header, _ in batches]

    def column(field: pa.Field) -> Any:
        if field.type == TIMESTAMP:
            offsets = np.array([h.base_offset for h in headers], np.int64)
            return timestamps_to_arrow(offsets, np.array([h.max_timestamp for h in headers], np.int64))
        values: list[Any]
        match field.name:
            case "topic":
                values = [topic] * len(headers)
            case "partition":
                values = [partition] * len(headers)
            case "compressionType":
                values = [CODEC_NAMES[h.codec] if h.codec < len(CODEC_NAMES) else None for h in headers]
            case "batch":
                values = [batch for _, batch in batches]
            case name:
                values = [getattr(h, _OF_HEADER[name]) for h in headers]
        return pa.array(values, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
