"""The records of one partition's fetch: kafka-python's ConsumerRecord objects or Arrow, from one cursor.

Laws:
- Records, `next_fetch_offset` and `leader_epoch` are those of kafka-python's
  PartitionRecords after every `take`, and so are the arguments of deserializers;
  records before the fetch offset are not deserialized.
- Batches of every message format are decoded here, never by kafka-python, in pieces of `PIECE_BYTES` or one batch,
  whichever is more; large batches are decoded in slices (batch_columns.iter_columns).  Pieces without compression are
  views of the fetch, which is held until it is drained anyway.
- `take` and `take_arrow` move the same cursor: a record is given out once.
- Every decoding error is a CorruptRecordError.  It is raised once the records before it have been taken; then the rest
  of the fetch is dropped, and the next fetch starts at what could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import kafka.errors as Errors
import pyarrow as pa
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from tolerant_client.errors import RecordBatchError
from tolerant_client.records.batch_columns import Chosen, read_run
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    BatchHeader,
    read_header,
    records_section,
)
from tolerant_client.records.record_pieces import Piece, Rows, read_messages, read_pieces
from tolerant_client.records.record_sets import iter_record_sets, unfold
from tolerant_client.records.stretches import SMALLEST_BATCH, Stretch, survey
from tolerant_client.stock.stock_names import ConsumerRecord, Fetcher

PIECE_BYTES: Final = 1 << 20

_UNUSUAL: Final = CODEC_MASK | CONTROL_BIT
_ANY_PRODUCER_ID: Final = 2**63 - 1
_NO_PRODUCER_ID: Final = -1


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python is untyped
    """A drop-in for kafka.consumer.fetcher.Fetcher.PartitionRecords."""

    leader_epoch: int
    next_fetch_offset: int
    _next_inline_exception: Exception | None

    def __init__(
        self,
        fetch_offset: int,
        tp: TopicPartition,
        records: Any,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        **options: Any,
    ) -> None:
        # The stock iterator that this makes is never advanced: it only marks this object as not drained.
        super().__init__(fetch_offset, tp, records, key_deserializer, value_deserializer, **options)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        data = bytes(records._buffer)  # kafka-python's decoder has already made it bytes
        stretches, self.end = survey(data)
        self._is_committed = self.isolation_level == IsolationLevel.READ_COMMITTED
        self._aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in self.aborted_transactions)
        self._end_offset = fetch_offset
        self._piece: Piece | None = None
        self._pieces = self._decoded(data, stretches)

    def drain(self) -> None:
        """Drops what was not taken."""
        super().drain()
        self._piece, self._pieces = None, iter(())

    # -- giving out -----------------------------------------------------------

    def take(self, n: int | None = None) -> list[Any]:
        """At most `n` records, all of them by default.

        Raises CorruptRecordError, or what a deserializer raises.
        """
        self._raise_waiting()
        records: list[Any] = []
        try:
            while (n is None or len(records) < n) and (piece := self._current()) is not None:
                start = piece.position
                stop = piece.rows if n is None else min(piece.rows, start + n - len(records))
                rows, error = self._deserialized(piece.read(start, stop))
                # What ConsumerRecord's own constructor does, without a Python frame for each record.
                columns = zip(*map(repeat, self.topic_partition), *rows)
                records += map(tuple.__new__, repeat(ConsumerRecord), columns)
                self._took(piece, stop if error is None else start + len(rows.values))
                if error is not None:
                    raise error
        except Exception as error:
            self._keep(error, bool(records))
        return records

    def take_arrow(self, n: int, max_bytes: int, schema: pa.Schema) -> tuple[list[Any], int]:
        """At most `n` records as Arrow batches, and their bytes: at most one piece more than `max_bytes`.

        Deserializers are not applied.  Raises CorruptRecordError.
        """
        self._raise_waiting()
        topic, partition = self.topic_partition
        batches: list[Any] = []
        size = 0
        try:
            while n > 0 and size < max_bytes and (piece := self._current()) is not None:
                start, stop = piece.position, min(piece.rows, piece.position + n)
                batches.append(piece.arrow(topic, partition, schema).slice(start, stop - start))
                self._took(piece, stop)
                n -= stop - start
                size += piece.size(start, stop)
        except Exception as error:
            self._keep(error, bool(batches))
        return batches, size

    def _raise_waiting(self) -> None:
        error, self._next_inline_exception = self._next_inline_exception, None
        if error is not None:
            self.drain()
            raise error

    def _keep(self, error: Exception, has_records: bool) -> None:
        if not has_records:
            self.drain()
            raise error
        self._next_inline_exception = error

    def _current(self) -> Piece | None:
        """The piece with the next record; None, and drained, after the last one."""
        while True:
            piece = self._piece
            if piece is None:
                piece = self._piece = next(self._pieces, None)
                if piece is None:
                    if self:
                        self.next_fetch_offset = max(self.next_fetch_offset, self._end_offset)
                        self.drain()
                    return None
                self._took(piece, piece.find(self.fetch_offset) if piece.rows else 0)
            if piece.position < piece.rows:
                return piece
            self._piece = None
            if piece.end_epoch is not None:
                self.leader_epoch = piece.end_epoch
            if piece.end_offset is not None:
                self.next_fetch_offset = max(self.next_fetch_offset, piece.end_offset)
            if piece.error is not None:
                raise piece.error

    def _took(self, piece: Piece, stop: int) -> None:
        start, piece.position = piece.position, stop
        if stop > start:
            self.records_read += stop - start
            self.bytes_read += piece.size(start, stop)
            offset, self.leader_epoch = piece.last(stop)
            self.next_fetch_offset = max(self.next_fetch_offset, offset + 1)

    def _deserialized(self, rows: Rows) -> tuple[Rows, Exception | None]:
        """The rows before the first that a deserializer refuses, and what it raised."""
        for_key, for_value = self._key_deserializer, self._value_deserializer
        if for_key is None and for_value is None:
            return rows, None
        topic = self.topic_partition.topic
        keys: list[Any] = []
        values: list[Any] = []
        error = None
        try:
            for headers, key, value in zip(rows.headers, rows.keys, rows.values):
                key = self._deserialize(for_key, topic, headers, key)
                value = self._deserialize(for_value, topic, headers, value)
                keys.append(key)
                values.append(value)
        except Exception as failure:
            error = failure
        return rows._replace(offsets=rows.offsets[: len(values)], keys=keys, values=values), error

    # -- decoding -------------------------------------------------------------

    def _decoded(self, data: bytes, stretches: list[Stretch]) -> Iterator[Piece]:
        for stretch in stretches:
            if stretch.end - stretch.starts[0] < SMALLEST_BATCH:
                raise Errors.CorruptRecordError(
                    f"{self.topic_partition}: record batch that is too small at byte {stretch.starts[0]} of the fetch"
                )
            if stretch.is_legacy:
                yield from self._legacy_pieces(data, stretch)
            else:
                yield from self._v2_pieces(data, stretch)

    def _legacy_pieces(self, data: bytes, stretch: Stretch) -> Iterator[Piece]:
        sets: list[tuple[BatchHeader, memoryview, memoryview]] = []
        size = 0
        distrust: RecordBatchError | None = None
        try:
            part = memoryview(data)[stretch.starts[0] : stretch.end]
            for header, view in iter_record_sets(part, verify_crc=self.check_crcs):
                section = unfold(header, view)
                if sets and (size + len(section) > PIECE_BYTES or header.magic != sets[0][0].magic):
                    yield from map(self._named, read_messages(sets, self.leader_epoch))
                    sets, size = [], 0
                sets.append((header, view, section))
                size += len(section)
        except RecordBatchError as failure:
            distrust = failure
        if sets:
            yield from map(self._named, read_messages(sets, self.leader_epoch))
        yield self._named(Piece(0, error=distrust))

    def _named(self, piece: Piece) -> Piece:
        """The piece; its error names its partition."""
        error = piece.error
        if error is not None:
            piece.error = RecordBatchError(f"{self.topic_partition}: {error.args[0]}", error.offset)
            piece.error.__cause__ = error
        return piece

    def _v2_pieces(self, data: bytes, stretch: Stretch) -> Iterator[Piece]:
        run, distrust = read_run(data, stretch.starts, stretch.end, verify_crc=self.check_crcs)
        headers, view = run.headers, memoryview(data)
        # With read_committed, every batch with a producer id has to be checked.
        plain = _NO_PRODUCER_ID if self._is_committed else _ANY_PRODUCER_ID
        is_unusual = (headers["attributes"] & _UNUSUAL != 0) | (headers["producer_id"] > plain)
        epochs = headers["partition_leader_epoch"].tolist()
        chosen: list[Chosen] = []
        size = 0
        end_epoch: int | None = None
        end_offset: int | None = None  # after batches that were skipped after the last row

        def pieces() -> Iterator[Piece]:
            return map(self._named, read_pieces(run.sections(chosen), self.fetch_offset)) if chosen else iter(())

        columns = (run.starts, run.ends, headers["record_count"], is_unusual)
        try:
            for number, (start, end, count, is_odd) in enumerate(zip(*(column.tolist() for column in columns))):
                length, section = end - start - HEADER_SIZE, None
                if is_odd:
                    header, batch = read_header(data, start), view[start:end]
                    if self._is_skipped(header, batch):
                        end_epoch, end_offset = epochs[number], header.next_offset
                        continue
                    if header.codec:
                        section = records_section(header, batch)
                        length = len(section)
                if chosen and size + length > PIECE_BYTES:
                    yield from pieces()
                    chosen, size = [], 0
                end_epoch = epochs[number]
                if count:
                    chosen.append((number, section))
                    size += length
                    end_offset = None
        except RecordBatchError as failure:
            distrust = failure
        yield from pieces()
        if distrust is None:
            self._end_offset = read_header(data, stretch.starts[-1]).next_offset
        yield self._named(Piece(0, end_epoch, end_offset, distrust))

    def _is_skipped(self, header: BatchHeader, batch: memoryview) -> bool:
        """True for control batches, and with read_committed for batches of aborted transactions."""
        is_aborted = self._is_committed and self._aborted.cover(header, batch)
        return is_aborted or header.is_control
