"""Kafka's default partitioning for whole columns.

Laws:
- An explicit partition wins; else the key decides, as in every Java client, so that
  all records of a key are in one partition whoever produced them.
- Rows with neither go round-robin, a run of rows to each partition (KIP-480, KIP-794: full
  batches matter more than an even spread), from the caller's `first` on.

Wire facts: org.apache.kafka.common.utils.Utils.murmur2 and toPositive,
org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RUN_ROWS: Final = 1024

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_FEW_KEYS: Final = 16  # up to this many are hashed one by one: numpy's cost per call is higher

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]


class PartitionOrder(NamedTuple):
    """Rows sorted by partition: the first counts[0] of `order` go to partitions[0], and so on; the sort is stable."""

    order: Int64s
    partitions: Int32s
    counts: Int64s


def murmur2(keys: pa.Array) -> UInt32s:
    """Java's murmur2 of each key (binary or string, also large); the hash of a null key has no meaning."""
    starts, lengths, data = _places(keys)
    hashes: UInt32s = (lengths & _MASK).astype(np.uint32) ^ np.uint32(_SEED)
    if not len(data):
        return _finish(hashes)
    counts = lengths >> 2
    # A word begins at every byte of the data, aligned or not.
    words = np.ndarray((max(len(data) - 3, 0),), "<u4", data, strides=(1,))
    number, shortest = 0, int(counts.min())
    while len(counts) > _FEW_KEYS and number < shortest:
        hashes = hashes * np.uint32(_M) ^ _mixed(words[starts + 4 * number])
        number += 1
    longer = np.flatnonzero(counts > number)
    while len(longer) > _FEW_KEYS:
        hashes[longer] = hashes[longer] * np.uint32(_M) ^ _mixed(words[starts[longer] + 4 * number])
        number += 1
        longer = longer[counts[longer] > number]
    for row in longer.tolist():
        place = int(starts[row]) + 4 * number
        hashed = int(hashes[row])
        for word in _mixed(words[place : int(starts[row] + 4 * counts[row]) : 4]).tolist():
            hashed = hashed * _M & _MASK ^ word
        hashes[row] = hashed
    tails, rest = starts + 4 * counts, lengths & 3
    for place in (2, 1, 0):
        rows = np.flatnonzero(rest > place)
        hashes[rows] ^= data[tails[rows] + place].astype(np.uint32) << np.uint32(8 * place)
    hashes[rest > 0] *= np.uint32(_M)
    return _finish(hashes)


def _places(keys: Any) -> tuple[Int64s, Int64s, npt.NDArray[np.uint8]]:
    """The start of each key in the data, its length, and the data."""
    is_wide = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    keys = keys.cast(pa.large_binary() if is_wide else pa.binary())
    _, offset_buffer, data_buffer = keys.buffers()
    if not len(keys) or data_buffer is None:
        none = np.zeros(len(keys), np.int64)
        return none, none, np.empty(0, np.uint8)
    all_offsets = np.frombuffer(offset_buffer, np.int64 if is_wide else np.int32)
    offsets: Int64s = all_offsets[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    return offsets[:-1], np.diff(offsets), np.frombuffer(data_buffer, np.uint8)


def _mixed(words: UInt32s) -> UInt32s:
    words = words * np.uint32(_M)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    return words


def _finish(hashes: UInt32s) -> UInt32s:
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def partition_rows(
    keys: pa.Array | None,
    partition_column: pa.Array | None,
    partition_count: int,
    first: int,
    *,
    row_count: int | None = None,
    run_rows: int = RUN_ROWS,
) -> Int32s:
    """The partition of each row.

    Of the rows that have neither a partition nor a key, the first `run_rows` go
    to partition `first` modulo `partition_count`, the next ones to the
    partition after it, and so on.  `row_count` is required if both columns are
    None.  Raises ValueError, which names row and value, for a partition that the
    topic does not have.
    """
    given = keys if keys is not None else partition_column
    if given is not None:
        row_count = len(given)
    elif row_count is None:
        raise ValueError("row_count is required if there are neither keys nor partitions")
    partitions = np.zeros(row_count, np.int32)
    is_open = np.ones(row_count, np.bool_)
    if partition_column is not None:
        is_open = partition_column.is_null().to_numpy(zero_copy_only=False)
        chosen = partition_column.cast(pa.int64()).fill_null(0).to_numpy()
        wrong = np.flatnonzero((chosen < 0) | (chosen >= partition_count))
        if len(wrong):
            raise ValueError(
                f"row {wrong[0]} asks for partition {chosen[wrong[0]]}, but the topic has {partition_count} partitions,"
                f" 0 to {partition_count - 1}"
            )
        partitions[:] = chosen
    if keys is not None and is_open.any():
        keyed = is_open & keys.is_valid().to_numpy(zero_copy_only=False)
        is_open &= ~keyed
        if keyed.any():
            hashed = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)
            partitions[keyed] = hashed[keyed]
    rows = np.flatnonzero(is_open)
    partitions[rows] = (first + np.arange(len(rows)) // run_rows) % partition_count
    return partitions


def sort_by_partition(partitions: Int32s) -> PartitionOrder:
    """The rows grouped by partition, for batch_encoding.encode_groups."""
    counts = np.bincount(partitions)
    present = np.flatnonzero(counts)
    # numpy uses a radix sort for 16-bit numbers, which is ten times as fast.
    narrow = partitions.astype(np.int16) if len(counts) <= 2**15 else partitions
    return PartitionOrder(np.argsort(narrow, kind="stable"), present.astype(np.int32), counts[present])
