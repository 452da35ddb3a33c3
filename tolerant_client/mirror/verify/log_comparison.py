"""Compares two logs of one partition offset by offset, whatever their batches are.  Pure: no I/O.

Laws:
- Only committed records count, at their offsets: attributes, codecs, producers and batch
  boundaries may differ; timestamps (milliseconds), keys, values and headers in their order may not.
- A batch with the same offsets and the same bytes on both sides is never decoded.
- A record of one side counts as missing on the other once that side is known beyond its offset.
- Filler of the mirror on the target is no record, and is allowed only where the source has none, or has a record that the
  target cannot take.
- If the ledger has a loss there, the comparison does not stop at a difference, but it still counts as one.
- At most DECODED_BYTES or one batch of each side are unfolded at once, and a slice (iter_columns) of that becomes columns:
  the memory of a window is bounded, however small its records are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tolerant_client.errors import RecordBatchError, TolerantClientError
from tolerant_client.mirror.verify.log_columns import (
    NO_BATCHES,
    Batches,
    Mask,
    differing,
    is_filler,
    iter_rows,
    key_column,
    unfold_batch,
)
from tolerant_client.mirror.verify.outcome import Difference
from tolerant_client.mirror.verify.superseded import Unproved
from tolerant_client.records.batch_columns import BatchColumns
from tolerant_client.records.record_batch import CODEC_MASK, HEADER_SIZE, TRANSACTIONAL_BIT
from tolerant_client.records.varint_columns import Int64s

DECODED_BYTES: Final = 2 << 20
MAX_UNPROVED_BYTES: Final = 64 << 20  # of keys kept for one partition of a compacted topic

_SIDES: Final = ("source", "target")
_DELETED_UNCOPIED: Final = (
    "; its tombstone may be gone there, uncopied (the mirror was down for longer than delete.retention.ms): write the tombstone on the"
    " source again, or delete the target topic and copy it anew"
)
_SHAPE: Final = ("length", "last_offset_delta", "base_timestamp", "max_timestamp", "record_count")
_ENDLESS: Final = 2**63 - 1
_NO_ROWS: Final = np.empty(0, np.int64)

Range = tuple[int, int]


class _Rows(NamedTuple):
    """Rows of columns, by their number, and their offsets."""

    columns: BatchColumns | None
    numbers: Int64s
    offsets: Int64s

    def chosen(self, mask: Mask) -> _Rows:
        return _Rows(self.columns, self.numbers[mask], self.offsets[mask])


_NOTHING: Final = _Rows(None, _NO_ROWS, _NO_ROWS)


class LogComparison:
    """Compares offsets [from_offset, until_offset) of one partition as both sides are fetched.

    `add` takes the batches of a fetch of SOURCE or TARGET, `compare` compares as far as both sides are known.
    `is_compacted` is about each side's topic.  `left_out` are the ascending offsets of records that, as was proved, the target
    cannot take: it may lack them, or have filler there.  `told` are ranges with a loss in the ledger: `go_behind` accepts a
    difference there as this loss, and the comparison resumes.
    Counted are equal `records`, `filler` records in the target's gaps, `compacted` records that are missing on a compacted side
    (and are proved to be superseded, or will be), `left_out_records`, and `told_records` that differ in the ledger's ranges,
    from `told_difference` on.
    """

    SOURCE, TARGET = 0, 1

    def __init__(
        self,
        from_offset: int,
        until_offset: int,
        *,
        is_compacted: tuple[bool, bool] = (False, False),
        told: Sequence[Range] = (),
        left_out: Sequence[int] = (),
    ) -> None:
        self.until_offset = until_offset
        self.is_compacted = is_compacted
        self.records = self.filler = self.compacted = self.left_out_records = self.told_records = 0
        self.difference: Difference | None = None
        self.told_difference: Difference | None = None
        self._told = tuple(told)
        self._admitted: tuple[Range, ...] = ()
        self._left_out = np.array(left_out, np.int64)
        self.unproved = Unproved()
        self._compared_until = from_offset
        self._batches: list[Batches] = [NO_BATCHES, NO_BATCHES]
        self._ends = [from_offset, from_offset]  # how far each side is known
        self._look: tuple[Range, Range] | None = None  # what is read again of each side
        self._resume = self._ends  # after that

    @property
    def compared_until(self) -> int:
        """All offsets before it were compared; records of a compacted topic may still lack their proof."""
        return self._compared_until

    @property
    def identical_until(self) -> int:
        """The offset before which all records are the same, with proof."""
        without_proof = self.unproved.first
        return self._compared_until if without_proof is None else min(self._compared_until, without_proof[0])

    @property
    def is_compared(self) -> bool:
        return self.difference is not None or self._compared_until >= self.until_offset

    @property
    def is_looking_back(self) -> bool:
        """Whether `add` takes what is read again, up to `look_until`; a look may begin and end anywhere in the comparison."""
        return self._look is not None

    @property
    def must_look_back(self) -> bool:
        """Whether so many keys are kept that a look must drop some before more is compared."""
        is_full = self._look is None and self.unproved.key_bytes > MAX_UNPROVED_BYTES
        return is_full and 2 * self.unproved.tombstones > len(self.unproved)

    @property
    def is_done(self) -> bool:
        return self.difference is not None or (self.is_compared and not len(self.unproved))

    def position(self, side: int) -> int:
        """The offset to fetch from next."""
        return self._ends[side]

    def held_bytes(self, side: int) -> int:
        """Fetched bytes of the batches that wait for the other side."""
        return int(self._batches[side].headers["length"].sum())

    def add(self, side: int, batches: Batches, next_offset: int) -> None:
        """Takes the batches of one fetch, after which `side` is known up to `next_offset`; ignores those that it has."""
        fresh = batches.chosen(batches.next_offsets > self._ends[side])
        if fresh.views:
            self._batches[side] = self._batches[side].followed_by(fresh)
        self._ends[side] = max(self._ends[side], next_offset)

    def start_over(self, offset: int | None = None) -> None:
        """Forgets the fetched batches and resumes at `offset`, by default the present position: both sides are fetched again.

        A look back begins again; with `offset` it is given up.
        """
        self._compared_until = max(self._compared_until, offset or 0)
        self.difference = None
        self._look = self._look if offset is None else None
        self._batches = [NO_BATCHES, NO_BATCHES]
        self._ends = [self._compared_until] * 2 if self._look is None else [look[0] for look in self._look]

    def go_behind(self) -> bool:
        """Accepts the difference as a loss of the ledger, and resumes after it; False if the ledger has none there."""
        found = self.difference
        ranges = () if found is None else tuple(span for span in self._told if span[0] <= found.offset < span[1])
        if not ranges:
            return False
        self.told_difference = self.told_difference or found
        self._admitted += ranges
        self.start_over()
        return True

    def compare(self) -> None:
        """Compares as far as both sides are known.

        Raises RecordBatchError, and TolerantClientError if too many records of a compacted topic lack their proof.
        """
        if self._look is not None:
            self._look_at_waiting()
            return
        known = min(*self._ends, self.until_offset)
        if not self.is_compared and known > self._compared_until:
            if self.unproved.key_bytes > MAX_UNPROVED_BYTES:
                raise TolerantClientError(
                    f"{len(self.unproved)} records of a compacted topic are missing on one side and not yet proved to be"
                    f" superseded; more than {MAX_UNPROVED_BYTES >> 20} MB of their keys are not kept: compare again after"
                    " both cleaners have run"
                )
            equal = self._drop_equal_batches(known)
            try:
                self._compare_windows(known)
            finally:  # batches after that are fetched again, and counted then
                passed = equal.headers[equal.headers["base_offset"] < self._compared_until]
                self.records += int(passed["record_count"].sum())
            self._meet(equal)
        if self.difference is None and self.is_compared:
            # Records after the compared range may supersede those that are missing in it.
            for side in (self.SOURCE, self.TARGET):
                waiting, self._batches[side] = self._batches[side], NO_BATCHES
                self._meet(waiting)

    def look_back(self, starts: Sequence[int]) -> None:
        """Begins a look at what is older than tombstones which a side lacks; `starts` are where the logs begin."""
        source, target = ((start, max(start, self.unproved.look_until(side))) for side, start in enumerate(starts))
        self._look = source, target
        self._resume = self._ends if self.is_compared else [self._compared_until] * 2
        self.start_over()

    def look_until(self, side: int) -> int:
        """Where the look at a side ends; it is begun."""
        assert self._look is not None
        return self._look[side][1]

    def end_look_back(self) -> None:
        """Call it once both sides were read up to `look_until`: the comparison resumes where it was."""
        self.unproved.end_look()
        self._look = None
        self._ends = self._resume

    def fail_without_proof(self) -> None:
        """Call it once both logs were read to their ends, and looked at: a record without proof is then a difference."""
        if (found := self.unproved.first) is not None:
            offset, side, is_outlived = found
            why = f"missing on the {_SIDES[side]}, and no later record has its key"
            if is_outlived:
                why = f"the tombstone is missing on the {_SIDES[side]}, which still has an older record of its key"
            elif side == self.SOURCE:
                why += _DELETED_UNCOPIED
            self.difference = Difference(offset, why)
            self._compared_until = offset

    # -- whole batches --------------------------------------------------------

    def _drop_equal_batches(self, known: int) -> Batches:
        """Removes the batches that are equal on both sides: neither has another record at their offsets."""
        source, target = self._batches
        _, mine, theirs = np.intersect1d(
            source.headers["base_offset"], target.headers["base_offset"], assume_unique=True, return_indices=True
        )
        if not len(mine):
            return NO_BATCHES
        one, other = source.headers[mine], target.headers[theirs]
        is_like = (one["attributes"] & ~TRANSACTIONAL_BIT) == (other["attributes"] & ~TRANSACTIONAL_BIT)
        is_like &= (one["magic"] == 2) & (other["magic"] == 2)
        for name in _SHAPE:
            is_like &= one[name] == other[name]
        is_like &= (one["base_offset"] >= self._compared_until) & (source.next_offsets[mine] <= known)
        kept = (np.ones(len(source.views), np.bool_), np.ones(len(target.views), np.bool_))
        for a, b in zip(mine[is_like].tolist(), theirs[is_like].tolist()):
            if pa.py_buffer(source.views[a][HEADER_SIZE:]).equals(pa.py_buffer(target.views[b][HEADER_SIZE:])):
                kept[0][a] = kept[1][b] = False
        equal = source.chosen(~kept[0])
        self._batches = [source.chosen(kept[0]), target.chosen(kept[1])]
        return equal

    # -- records --------------------------------------------------------------

    def _compare_windows(self, known: int) -> None:
        sides = [self._windows(side, known) for side in (self.SOURCE, self.TARGET)]
        decoded = [next(windows) for windows in sides]
        while self.difference is None and self._compared_until < known:
            end = max(self._compared_until, min(window.until_offset for window in decoded))
            source, target = (self._within(window.columns, end) for window in decoded)
            self.difference = self._compare_rows(source, target)
            self._met(source)
            self._met(target)
            self._compared_until = end if self.difference is None else self.difference.offset
            if end < known:
                for side, windows in enumerate(sides):
                    if decoded[side].until_offset <= end:
                        decoded[side] = next(windows)
        self._batches = [batches.chosen(batches.next_offsets > self._compared_until) for batches in self._batches]

    def _windows(self, side: int, known: int) -> Iterator[_Window]:
        try:
            yield from iter_windows(self._batches[side], known)
        except RecordBatchError as error:
            raise RecordBatchError(f"on the {_SIDES[side]}: {error.args[0]}", error.offset) from error

    def _within(self, columns: BatchColumns | None, end: int) -> _Rows:
        if columns is None:
            return _NOTHING
        offsets = columns.offsets
        numbers = np.flatnonzero((offsets >= self._compared_until) & (offsets < end))
        return _Rows(columns, numbers, offsets[numbers])

    def _compare_rows(self, source: _Rows, target: _Rows) -> Difference | None:
        """The first difference that counts; records after it are not counted."""
        lacking = extra = _NOTHING
        filler = _NO_ROWS
        if not np.array_equal(source.offsets, target.offsets):
            is_in_target, is_in_source = (
                np.isin(source.offsets, target.offsets),
                np.isin(target.offsets, source.offsets),
            )
            lacking, extra = source.chosen(~is_in_target), target.chosen(~is_in_source)
            source, target = source.chosen(is_in_target), target.chosen(is_in_source)
            if extra.columns is not None and len(extra.numbers):
                is_filled = is_filler(extra.columns, extra.numbers)
                filler, extra = extra.offsets[is_filled], extra.chosen(~is_filled)
        is_wrong, wrong = self._different(source, target)
        first = min([*wrong, *self._missing(lacking, self.TARGET), *self._missing(extra, self.SOURCE)], default=None)

        until = _ENDLESS if first is None else first.offset
        self.records += int((~is_wrong & (source.offsets < until)).sum())
        self.filler += int((filler < until).sum())
        for rows, side in ((source.chosen(is_wrong), None), (lacking, self.TARGET), (extra, self.SOURCE)):
            self._count(rows.chosen(rows.offsets < until), side)
        return first

    def _different(self, source: _Rows, target: _Rows) -> tuple[Mask, list[Difference]]:
        """Which rows at the same offsets differ, and the first difference that counts."""
        is_wrong: Mask = np.zeros(len(source.offsets), np.bool_)
        if source.columns is None or target.columns is None or not len(source.offsets):
            return is_wrong, []
        fields = differing(source.columns, target.columns, (source.numbers, target.numbers))
        if not fields:
            return is_wrong, []
        is_wrong = np.logical_or.reduce(list(fields.values()))
        counted = np.flatnonzero(is_wrong & ~self._within_ranges(source.offsets, self._admitted))
        is_filled = is_filler(target.columns, target.numbers[counted])
        is_left_out = is_filled & np.isin(source.offsets[counted], self._left_out)
        if is_left_out.all():
            return is_wrong, []
        first = int(is_left_out.argmin())
        place, offset = int(counted[first]), int(source.offsets[counted[first]])
        if is_filled[first]:
            return is_wrong, [Difference(offset, "the target has filler in place of the record")]
        return is_wrong, [Difference(offset, f"{next(name for name, mask in fields.items() if mask[place])} differs")]

    def _missing(self, rows: _Rows, side: int) -> list[Difference]:
        """The first of the other side's rows that `side` must not lack."""
        if self.is_compacted[side]:
            return []  # they need a proof instead
        counted = ~self._within_ranges(rows.offsets, self._admitted)
        if side == self.TARGET:
            counted &= ~np.isin(rows.offsets, self._left_out)
        return [Difference(int(offset), f"missing on the {_SIDES[side]}") for offset in rows.offsets[counted][:1]]

    def _count(self, rows: _Rows, lacking_side: int | None) -> None:
        """Counts rows that differ, or that `lacking_side` lacks, if that does not stop the comparison."""
        if rows.columns is None or not len(rows.numbers):
            return
        if lacking_side != self.SOURCE:
            is_left_out = np.isin(rows.offsets, self._left_out)
            self.left_out_records += int(is_left_out.sum())
            rows = rows.chosen(~is_left_out)
        if lacking_side is None or not self.is_compacted[lacking_side]:
            self.told_records += len(rows.numbers)
            return
        assert rows.columns is not None
        self.compacted += len(rows.numbers)
        fields = rows.columns.fields
        rows = rows.chosen(fields.key_length[rows.numbers] >= 0)
        if len(rows.numbers) and rows.columns is not None:
            is_tombstone = fields.value_length[rows.numbers] < 0
            self.unproved.add(key_column(rows.columns, rows.numbers), rows.offsets, is_tombstone, lacking_side)

    @staticmethod
    def _within_ranges(offsets: Int64s, ranges: Sequence[Range]) -> Mask:
        is_within = np.zeros(len(offsets), np.bool_)
        for from_offset, until_offset in ranges:
            is_within |= (offsets >= from_offset) & (offsets < until_offset)
        return is_within

    # -- proof ----------------------------------------------------------------

    def _meet(self, batches: Batches) -> None:
        """Passes the keys of whole batches to the records that lack their proof."""
        for columns, _ in iter_windows(batches, _ENDLESS) if len(self.unproved) else ():
            if columns is not None:
                self._met(_Rows(columns, np.arange(len(columns.offsets)), columns.offsets))

    def _met(self, rows: _Rows) -> None:
        if rows.columns is not None and len(rows.numbers) and len(self.unproved):
            self.unproved.met(key_column(rows.columns, rows.numbers), rows.offsets)

    def _look_at_waiting(self) -> None:
        for side in (self.SOURCE, self.TARGET):
            for columns, _ in iter_windows(self._batches[side], _ENDLESS):
                if columns is not None:
                    self.unproved.look(key_column(columns, np.arange(len(columns.offsets))), columns.offsets, side)
            self._batches[side] = NO_BATCHES


class _Window(NamedTuple):
    """All records of a log up to an offset."""

    columns: BatchColumns | None
    until_offset: int


def iter_windows(batches: Batches, known: int) -> Iterator[_Window]:
    """The records of a log's batches, which is known up to `known`; each window begins where the one before ends."""
    headers = batches.headers
    kinds = list(zip(headers["magic"].tolist(), (headers["attributes"] & CODEC_MASK).tolist()))
    first, last = 0, int(headers["base_offset"].searchsorted(known))
    while first < last:
        stop, size, sections = first, 0, list[memoryview]()
        while stop < last and size <= DECODED_BYTES and kinds[stop][0] == kinds[first][0]:
            view = batches.views[stop]
            is_plain = kinds[stop] == (2, 0)
            sections.append(view[HEADER_SIZE:] if is_plain else unfold_batch(headers[stop], view))
            size += len(sections[-1])
            stop += 1
        for columns in iter_rows(Batches(headers[first:stop], batches.views[first:stop]), sections):
            yield _Window(columns, min(int(columns.offsets[-1]) + 1, known))
        first = stop
    yield _Window(None, known)
