"""Batches of one partition by the product's encoder, which takes the rows of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tolerant_client.records.batch_encoding import EncodedBatch, encode_groups


def encode_batches(keys: Any, values: Any, headers: Any, timestamps: Any, **options: Any) -> Iterator[EncodedBatch]:
    """As encode_groups, of one group."""
    return (batch for _, batch in encode_groups(keys, values, headers, timestamps, [len(values)], **options))
