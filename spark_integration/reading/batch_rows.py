"""payload=batches: one row for each record batch, its bytes as the broker sent them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tolerant_client.records.arrow import TIMESTAMP, timestamps_to_arrow
from tolerant_client.records.record_batch import CODEC_MASK, BatchHeader

# Kafka's names (CompressionType.java), by the number in a batch's attributes.
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def batches_to_arrow(
    batches: Sequence[tuple[BatchHeader, memoryview]], topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of the fields of `schema`; control batches are among them, and the bytes are copied once."""
    headers = [header for header, _ in batches]

    def values(name: str) -> Sequence[Any]:
        if name == "topic":
            return [topic] * len(headers)
        if name == "partition":
            return [partition] * len(headers)
        if name == "baseOffset":
            return [h.base_offset for h in headers]
        if name == "lastOffset":
            return [h.last_offset for h in headers]
        if name == "recordCount":
            return [h.record_count for h in headers]
        if name == "leaderEpoch":
            return [h.partition_leader_epoch for h in headers]
        if name == "compressionType":
            return [
                CODECS[h.attributes & CODEC_MASK] if h.attributes & CODEC_MASK < len(CODECS) else None for h in headers
            ]
        if name == "isTransactional":
            return [h.is_transactional for h in headers]
        if name == "isControl":
            return [h.is_control for h in headers]
        return [batch for _, batch in batches]

    def times() -> Any:
        offsets = np.array([h.base_offset for h in headers], np.int64)
        return timestamps_to_arrow(offsets, np.array([h.max_timestamp for h in headers], np.int64))

    arrays = [times() if field.type == TIMESTAMP else pa.array(values(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
