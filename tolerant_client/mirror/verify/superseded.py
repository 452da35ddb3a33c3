"""Proves that the cleaner of a compacted topic may have removed a record which one side lacks.  Pure.

A cleaner removes a record when a later one has its key, and a tombstone (null value) some time after that, so no earlier than the
key's older records (org.apache.kafka.storage.internals.log.Cleaner).  So the newest committed record of a key must be on both
sides, and then all before it may be missing; or it is a tombstone, and the side that lacks it has no record of that key at all:
with an older one there, the key is alive on one side and deleted on the other.  A record without a key may be missing.

Logs are read forwards, and not all of their keys are kept: only after a tombstone was missed is it known which older records
matter.  So the side that lacks it is looked at again, from its start up to the tombstone.  An honest log is not called different for
what its cleaner does meanwhile: whoever has removed the tombstone has removed the older records before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tolerant_client.records.varint_columns import Int64s

_NO_KEYS: Final = pa.nulls(0, pa.binary())  # pa.array would import pandas
_ENDLESS: Final = 2**63 - 1
_RECORD, _TOMBSTONE, _OUTLIVED = 0, 1, 2  # a tombstone is outlived by an older record on the side that lacks it


class Unproved:
    """Records missing on one side for which no later record with the same key was seen yet.

    Only the last one of each key is kept: it stands for those before it.
    """

    def __init__(self) -> None:
        self._keys = _NO_KEYS
        self._offsets = np.empty(0, np.int64)
        self._sides = np.empty(0, np.int8)
        self._kinds = np.empty(0, np.int8)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def key_bytes(self) -> int:
        return int(self._keys.nbytes)

    @property
    def tombstones(self) -> int:
        """How many are tombstones for which the side that lacks them must be looked at again."""
        return int((self._kinds == _TOMBSTONE).sum())

    @property
    def first(self) -> tuple[int, int, bool] | None:
        """(offset, side that lacks it, whether that still has an older record of its key) of the first record without proof."""
        if not len(self._offsets):
            return None
        place = int(self._offsets.argmin())
        return int(self._offsets[place]), int(self._sides[place]), bool(self._kinds[place] == _OUTLIVED)

    def add(self, keys: pa.Array, offsets: Int64s, is_tombstone: npt.NDArray[np.bool_], side: int) -> None:
        """Records with a key that `side` lacks, in the order of their offsets."""
        self._keys = pa.concat_arrays([self._keys, keys])
        self._offsets = np.concatenate((self._offsets, offsets))
        self._sides = np.concatenate((self._sides, np.full(len(offsets), side, np.int8)))
        self._kinds = np.concatenate((self._kinds, np.where(is_tombstone, _TOMBSTONE, _RECORD).astype(np.int8)))

    def met(self, keys: pa.Array, offsets: Int64s) -> None:
        """Records that exist on some side, tombstones too: each proves the earlier ones of its key."""
        if not len(self._offsets) or not len(offsets):
            return
        own, others, size = self._numbered(keys)
        last = np.full(size, -1, np.int64)
        np.maximum.at(last, others, offsets)
        np.maximum.at(last, own, self._offsets)  # a missing record exists on the other side
        self._keep(self._offsets >= last[own])

    def forget(self, before: int) -> int:
        """Drops the records below an offset, which a log has lost meanwhile; returns how many of these lacked a proof."""
        is_kept = self._offsets >= before
        count = int((~is_kept & (self._kinds != _TOMBSTONE)).sum())
        self._keep(is_kept)
        return count

    # -- looking again at the side that lacks a tombstone ------------------------

    def look_until(self, side: int) -> int:
        """The offset behind the last tombstone that `side` lacks; 0 without any."""
        return int(self._offsets[(self._kinds == _TOMBSTONE) & (self._sides == side)].max(initial=-1)) + 1

    def look(self, keys: pa.Array, offsets: Int64s, side: int) -> None:
        """Records that `side` has now: an older one of a tombstone's key, or the tombstone itself (another leader still has it)."""
        if not len(self._offsets) or not len(offsets):
            return
        own, others, size = self._numbered(keys)
        first = np.full(size, _ENDLESS, np.int64)
        np.minimum.at(first, others, offsets)
        lacked = (self._kinds != _RECORD) & (self._sides == side)
        self._kinds[lacked & (first[own] < self._offsets)] = _OUTLIVED
        self._keep(~(lacked & np.isin(self._offsets, offsets)))

    def end_look(self) -> None:
        """Each tombstone that no older record was found for may be missing."""
        self._keep(self._kinds != _TOMBSTONE)

    def _numbered(self, keys: pa.Array) -> tuple[Int64s, Int64s, int]:
        """Numbers of the own keys and of `keys`, equal for equal ones, and the size of a list by them: its last entry is for null."""
        codes = pa.concat_arrays([self._keys, keys]).dictionary_encode().indices
        numbers = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers[: len(self._offsets)], numbers[len(self._offsets) :], int(numbers.max()) + 2

    def _keep(self, mask: npt.NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(mask)
        self._keys = self._keys.take(pa.array(kept))
        self._offsets, self._sides, self._kinds = self._offsets[kept], self._sides[kept], self._kinds[kept]
