"""Proves that the cleaner of a compacted topic may have removed a record which one side lacks.  Pure.

A cleaner removes a record when a later one has its key, and a tombstone (null value) some time after
that (org.apache.kafka.storage.internals.log.Cleaner).  So a record may be missing if it is a tombstone,
if it has no key, or if a later committed record of its key exists on either side: that one must itself be
on both sides, or be proved in turn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tolerant_client.records.varint_columns import Int64s

_NO_KEYS = pa.nulls(0, pa.binary())  # pa.array would import pandas


class Unproved:
    """Records missing on one side for which no later record with the same key was seen yet.

    Only the last one of each key is kept: it stands for those before it.
    """

    def __init__(self) -> None:
        self._keys = _NO_KEYS
        self._offsets = np.empty(0, np.int64)
        self._sides = np.empty(0, np.int8)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def key_bytes(self) -> int:
        return int(self._keys.nbytes)

    @property
    def first(self) -> tuple[int, int] | None:
        """(offset, side that lacks it) of the first record without proof."""
        if not len(self._offsets):
            return None
        place = int(self._offsets.argmin())
        return int(self._offsets[place]), int(self._sides[place])

    def add(self, keys: pa.Array, offsets: Int64s, side: int) -> None:
        """Records with a key and a value that `side` lacks, in the order of their offsets."""
        self._keys = pa.concat_arrays([self._keys, keys])
        self._offsets = np.concatenate((self._offsets, offsets))
        self._sides = np.concatenate((self._sides, np.full(len(offsets), side, np.int8)))

    def met(self, keys: pa.Array, offsets: Int64s) -> None:
        """Records that exist on some side, tombstones too: each proves the earlier ones of its key."""
        if not len(self._offsets) or not len(offsets):
            return
        codes = pa.concat_arrays([self._keys, keys]).dictionary_encode().indices
        numbers = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        own, others = numbers[: len(self._offsets)], numbers[len(self._offsets) :]
        # Indexed by the number of the key; the last entry is for null keys.
        last = np.full(int(numbers.max()) + 2, -1, np.int64)
        np.maximum.at(last, others, offsets)
        np.maximum.at(last, own, self._offsets)  # a missing record exists on the other side
        self._keep(self._offsets >= last[own])

    def forget(self, before: int) -> int:
        """Drops the records below an offset, which a log has lost meanwhile; returns how many these were."""
        count = len(self._offsets)
        self._keep(self._offsets >= before)
        return count - len(self._offsets)

    def _keep(self, mask: npt.NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(mask)
        self._keys = self._keys.take(pa.array(kept))
        self._offsets, self._sides = self._offsets[kept], self._sides[kept]
