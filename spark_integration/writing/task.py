"""Writes one task's rows to a producer: partitions, encodes and enqueues them while earlier ones are being sent.

Laws:
- Small Arrow batches are joined, so that record batches are large whatever the number of partitions.
- A row that cannot be written is never dropped silently: it fails the task, or it becomes a dead letter.
- Records get the time at which they are written, as with Spark's own sink.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from spark_integration.writing.columns import WriteColumns, WriteRows
from spark_integration.writing.dead_letters import dead_letter, records_of, trimmed
from spark_integration.writing.exactly_once import RowDigest
from spark_integration.writing.options import WriteOptions
from tolerant_client.cluster.producer.batch_producer import BatchProducer, Refused
from tolerant_client.errors import OptionError, RecordRefusedError
from tolerant_client.records.batch_encoding import EncodedBatch, encode_groups
from tolerant_client.records.partitioner import partition_rows, sort_by_partition
from tolerant_client.records.record_batch import Record, encode_batch

PIECE_BYTES: Final = 8 << 20
PIECE_SECONDS: Final = 0.2  # rows do not wait for long while a slow query produces the next ones
_PUMP_BYTES: Final = 512 << 10
_RUN_ROWS: Final = 1024
_NO_ROW: Final = -1  # the row number of a dead letter, which is not one of the task's rows


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, each of about PIECE_BYTES or of the rows that arrived within PIECE_SECONDS."""
    waiting: list[pa.RecordBatch] = []
    size, since = 0, 0.0
    for batch in batches:
        now = time.monotonic()
        since = since if waiting else now
        waiting.append(batch)
        size += batch.nbytes
        if size >= PIECE_BYTES or now - since >= PIECE_SECONDS:
            yield from _joined(waiting)
            waiting, size = [], 0
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


class WriteTask:
    """Writes the rows of one task; `digest` (for exactlyOnce) includes each of them."""

    def __init__(
        self,
        producer: BatchProducer,
        options: WriteOptions,
        columns: WriteColumns,
        task: int,
        digest: RowDigest | None = None,
    ) -> None:
        self.rows = 0
        self.dead = 0
        self.topics: set[str] = set()
        self._producer = producer
        self._options = options
        self._columns = columns
        self._task = task
        self._digest = digest
        # The first partition for rows without a key: tasks start at different ones.
        self._first = random.randrange(1 << 20)
        self._letters: list[Record] = []
        self._refused_topics: dict[str, str] = {}
        self._unsent = 0
        producer.on_refused = self._on_refused if options.dead_letter_topic else None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Enqueues all rows and waits until they are in their logs."""
        for piece in pieces(batches):
            if piece.num_rows:
                self._write_piece(piece)
        self._pump(0)
        self._producer.cluster.run(self._producer.flush)
        while self._letters:
            self._write_letters()
            self._producer.cluster.run(self._producer.flush)

    def _rows_of(self, piece: pa.RecordBatch) -> tuple[WriteRows, WriteRows | None, Any]:
        """The rows with a topic; with a dead letter topic also those without one, and a mask of these."""
        orphans, is_orphan = None, np.zeros(piece.num_rows, bool)
        try:
            if self._options.dead_letter_topic is not None and isinstance(self._columns.topic, int):
                topics = piece.column(self._columns.topic)
                if topics.null_count:
                    is_orphan = topics.is_null().to_numpy(zero_copy_only=False)
                    columns = piece.filter(pa.array(is_orphan)).columns
                    # `rows` refuses a null topic.
                    columns[self._columns.topic] = pa.array([""] * len(columns[self._columns.topic]))
                    orphans = self._columns.rows(pa.RecordBatch.from_arrays(columns, names=piece.schema.names))
                    piece = piece.filter(pa.array(~is_orphan))
            rows = self._columns.rows(piece)
        except ValueError as error:
            raise RecordRefusedError(f"Task {self._task}, from its row {self.rows} on: {error}") from error
        if self._digest is not None:
            self._digest.add(rows)
            if orphans is not None:
                self._digest.add(orphans)
        return rows, orphans, is_orphan

    def _write_piece(self, piece: pa.RecordBatch) -> None:
        rows, orphans, is_orphan = self._rows_of(piece)
        every: Any = np.arange(self.rows, self.rows + piece.num_rows)
        self.rows += piece.num_rows
        numbers, now = every[~is_orphan], time.time_ns() // 1_000_000
        if orphans is not None:
            lost = records_of(orphans, range(len(orphans.values)), now)
            self._bury(lost, "the topic is null", "", every[is_orphan])
        if isinstance(rows.topics, str):
            self._write_topic(rows.topics, rows, numbers, now)
        else:
            coded = rows.topics.dictionary_encode()
            codes = coded.indices.to_numpy(zero_copy_only=False)
            topics = coded.dictionary.to_pylist()
            if self._options.dead_letter_topic is not None:
                self._look_for(topics)
            for code, topic in enumerate(topics):
                chosen = np.flatnonzero(codes == code)
                self._write_topic(topic, _take(rows, chosen), numbers[chosen], now)
        if self._letters:
            self._write_letters()  # even a task whose rows are all refused holds only one piece of letters

    def _look_for(self, topics: Sequence[str]) -> None:
        """Finds the topics that cannot be written, all at once: for a missing one it may have to wait."""
        unknown = [topic for topic in topics if topic not in self._refused_topics]
        found = self._producer.cluster.run(self._producer.partition_counts, unknown)
        self._refused_topics |= {t: str(why) for t, why in found.items() if isinstance(why, RecordRefusedError)}

    def _write_topic(self, topic: str, rows: WriteRows, numbers: Any, now: int) -> None:
        try:
            if topic in self._refused_topics:
                raise RecordRefusedError(self._refused_topics[topic], topic)
            count = self._producer.cluster.run(self._producer.partition_count, topic)
        except RecordRefusedError as error:
            if self._options.dead_letter_topic is None:
                raise
            self._refused_topics[topic] = str(error)
            self._bury(records_of(rows, range(len(numbers)), now), str(error), topic, numbers)
            return
        if _is_beyond(rows.partitions, count).any():
            # Partitions may have been added since the last lookup.
            count = self._producer.cluster.run(self._producer.partition_count, topic, True)
            rows, numbers = self._without_wrong_partitions(topic, count, rows, numbers, now)
        if not len(numbers):
            return
        self.topics.add(topic)
        keys = None if self._options.ignores_keys else rows.keys
        run_rows = max(_RUN_ROWS, -(-len(numbers) // count))
        partitions = partition_rows(
            keys, rows.partitions, count, self._first, row_count=len(numbers), run_rows=run_rows
        )
        self._first += -(-len(numbers) // run_rows)
        order, present, counts = sort_by_partition(partitions)
        if len(present) > 1:
            rows, numbers = _take(rows, order), numbers[order]
        names = [TopicPartition(topic, number) for number in present.tolist()]
        options = self._options
        largest = self._producer.largest_batch(topic) or options.max_batch_bytes
        for group, batch in encode_groups(
            rows.keys,
            rows.values,
            rows.headers,
            now,
            counts,
            codec=options.codec,
            level=options.level,
            max_batch_bytes=min(options.max_batch_bytes, largest),
        ):
            self._enqueue(names[group], batch, numbers[batch.first_row : batch.first_row + batch.record_count])

    def _enqueue(self, partition: TopicPartition, batch: EncodedBatch, numbers: Sequence[int]) -> None:
        self._producer.enqueue(partition, batch, numbers)
        self._pump(len(batch.data))

    def _pump(self, size: int) -> None:
        """Sends once enough data for full requests has gathered, and waits if too much is in flight."""
        self._unsent += size
        if size and self._unsent < _PUMP_BYTES:
            return
        self._unsent = 0
        self._producer.pump()
        if self._producer.bytes_in_flight >= self._options.producer.max_bytes_in_flight:
            self._producer.cluster.run(self._producer.room)
        if self._letters:
            self._write_letters()

    # -- what cannot be written --------------------------------------------------

    def _without_wrong_partitions(
        self, topic: str, count: int, rows: WriteRows, numbers: Any, now: int
    ) -> tuple[WriteRows, Any]:
        is_wrong = _is_beyond(rows.partitions, count)
        if not is_wrong.any():
            return rows, numbers
        wrong = np.flatnonzero(is_wrong)
        given: Any = rows.partitions
        row, partition = int(numbers[wrong[0]]), given[int(wrong[0])].as_py()
        if self._options.dead_letter_topic is None:
            raise RecordRefusedError(
                f"Row {row} of task {self._task} has partition {partition}, but topic {topic} has"
                f" {f'{count} partitions, 0 to {count - 1}' if count > 1 else '1 partition, 0'}; leave the column `partition`"
                " out, or add partitions to the topic",
                topic,
                partition,
                row,
            )
        for number, record in zip(wrong, records_of(rows, wrong.tolist(), now), strict=True):
            reason = (
                f"partition {given[int(number)].as_py()}, but topic {topic} has {count} partition{'s' * (count != 1)}"
            )
            self._bury([record], reason, topic, numbers[number : number + 1])
        right = np.flatnonzero(~is_wrong)
        return _take(rows, right), numbers[right]

    def _bury(self, records: Sequence[Record], reason: str, topic: str, numbers: Sequence[int]) -> None:
        for record, number in zip(records, numbers, strict=True):
            self._letters.append(dead_letter(record, reason, topic, int(number), self._task))
        self.dead += len(records)

    def _on_refused(self, refused: Refused) -> None:
        """Called on the event loop; the letter is written later, outside it."""
        if refused.row != _NO_ROW:
            self._bury([refused.record], str(refused.error), refused.partition.topic, [refused.row])
            return
        letter = trimmed(refused.record)
        if letter is None:
            raise refused.error
        self._letters.append(letter)

    def _write_letters(self) -> None:
        topic = self._options.dead_letter_topic
        assert topic is not None
        letters, self._letters = self._letters, []
        try:
            count = self._producer.cluster.run(self._producer.partition_count, topic)
        except RecordRefusedError as error:
            raise OptionError(f"deadLetterTopic: {error}") from error
        self.topics.add(topic)
        for letter in letters:
            data = encode_batch([letter])
            self._first += 1
            partition = TopicPartition(topic, self._first % count)
            self._producer.enqueue(partition, EncodedBatch(memoryview(bytearray(data)), 1, 0, len(data)), [_NO_ROW])
            if self._producer.bytes_in_flight >= self._options.producer.max_bytes_in_flight:
                self._producer.cluster.run(self._producer.room)


def _is_beyond(partitions: Any, count: int) -> Any:
    """Which rows name a partition that a topic of `count` partitions does not have."""
    if partitions is None:
        return np.zeros(1, bool)
    given = partitions.fill_null(0).to_numpy(zero_copy_only=False)
    return (given < 0) | (given >= count)


def _take(rows: WriteRows, chosen: Any) -> WriteRows:
    numbers = pa.array(chosen)
    topics = rows.topics if isinstance(rows.topics, str) else rows.topics.take(numbers)
    return WriteRows(
        topics,
        None if rows.keys is None else rows.keys.take(numbers),
        rows.values.take(numbers),
        None if rows.headers is None else rows.headers.take(numbers),
        None if rows.partitions is None else rows.partitions.take(numbers),
    )
