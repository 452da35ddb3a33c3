"""The batch reader behind spark.read.format("tolerantkafka"), and what every task does with its range.

Laws:
- The driver resolves partitions and offsets once; a task reads exactly its range.
- A task holds one Fetch answer, perhaps the next one, and one piece of Arrow data, whatever the range.
- Connections belong to the Python worker process, which Spark reuses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_integration.connections import borrowed_cluster
from spark_integration.reading.batch_rows import batches_to_arrow
from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.options import ReadOptions
from spark_integration.reading.pushdown import Bounds, bounds_of
from spark_integration.reading.range_fetch import BYTES_SHARES, RangeFetch, damaged
from spark_integration.reading.resolve import resolve_ranges
from spark_integration.reading.schema_framing import split_framing
from tolerant_client.arrow import ALL_COLUMNS, iter_arrow
from tolerant_client.errors import RecordBatchError
from tolerant_client.record_batch import BatchHeader

# Records decoded in one piece; larger ones fall out of the processor's caches on their way to the JVM.
PIECE_BYTES: Final = 4 << 20

_PATIENCE_MS: Final = 10_000
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class RangePartition(InputPartition):
    """One task's range."""

    range: OffsetRange

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(None)
        self.range = wanted


class KafkaReader(DataSourceReader):
    """Reads the ranges that the options describe; `schema` has the columns to read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        with borrowed_cluster(self.options.kafka) as cluster:
            ranges = cluster.run(resolve_ranges, cluster, self.options, self.bounds)
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes up one partition of its own where there are none.
        if isinstance(partition, RangePartition):
            yield from read_range(self.options, partition.range, self.schema, self.bounds)


class FilteringKafkaReader(KafkaReader):
    """A reader that takes filters, for sessions with spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes bounds from the filters; all of them are still Spark's to evaluate."""
        if self.options.payload == "records":
            self.bounds = bounds_of(filters)
        return filters


def batch_reader(options: ReadOptions, schema: pa.Schema) -> KafkaReader:
    """The reader for this session: Spark refuses one with pushFilters where push-down is off."""
    takes_filters = _PUSHDOWN_WORKER in sys.modules
    return (FilteringKafkaReader if takes_filters else KafkaReader)(options, schema)


def read_range(
    options: ReadOptions, wanted: OffsetRange, schema: pa.Schema, bounds: Bounds = Bounds()
) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in pieces of bounded size."""
    # Waiting is up to the task, which looks again until kafkaConsumer.pollTimeoutMs.
    with borrowed_cluster(options.kafka, patience_ms=min(_PATIENCE_MS, options.poll_timeout_ms)) as cluster:
        fetch = RangeFetch(cluster, wanted, options)
        while not fetch.is_done:
            batches = cluster.run(fetch.next_batches)
            if options.payload == "batches":
                # One that reaches into the next range is a row of that one.
                mine = [batch for batch in batches if batch[0].last_offset < wanted.until_offset]
                if mine:
                    yield batches_to_arrow(mine, wanted.topic, wanted.partition, schema)
                continue
            try:
                yield from _records(batches, options, replace(wanted, from_offset=fetch.first_wanted), schema, bounds)
            except RecordBatchError as error:
                raise damaged(TopicPartition(wanted.topic, wanted.partition), error) from error


def _records(
    batches: list[tuple[BatchHeader, memoryview]],
    options: ReadOptions,
    wanted: OffsetRange,
    schema: pa.Schema,
    bounds: Bounds,
) -> Iterator[pa.RecordBatch]:
    columns = pa.schema([field for field in schema if field.name in ALL_COLUMNS.names])
    for name in options.framed:
        if f"{name}SchemaId" in schema.names and name not in columns.names:
            columns = columns.append(ALL_COLUMNS.field(name))
    has_times = bounds.until_ms < Bounds.until_ms and "timestamp" in columns.names
    for piece in iter_arrow(
        batches,
        wanted.topic,
        wanted.partition,
        wanted.from_offset,
        wanted.until_offset,
        columns,
        target_bytes=min(PIECE_BYTES, options.max_bytes_in_flight // BYTES_SHARES),
    ):
        if has_times:
            piece = piece.filter(pc.less(piece.column("timestamp").view(pa.int64()), bounds.until_ms * 1000))
        yield _unframed(piece, options.framed, schema) if options.framed else piece


def _unframed(piece: pa.RecordBatch, framed: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The piece as `schema`, the prefixes of `framed` columns split off."""
    arrays = {name: piece.column(name) for name in piece.schema.names}
    for name in framed:
        if name in arrays:
            arrays[name], arrays[f"{name}SchemaId"] = split_framing(arrays[name])
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in schema], schema=schema)
