"""The batch reader of spark.read.format("tolerantkafka"), and how every task reads its range.

Laws:
- The driver resolves partitions and offsets once; a task reads exactly its range, from the topic that had it then.
- A task holds one Fetch response, perhaps the next one, and one piece of Arrow data, whatever the range.
- maxBytesInFlight also limits the headers of a record: by default to about a million, twice what fits into 1 MB, the
  default maximum of producers.  A record with more fails the task, with an error that says how to read it.
- Connections belong to the Python worker process, which Spark reuses.
- Spark evaluates the filters: it reuses a Python source's plan for other scans (up to 4.3 for all scans of the same
  DataFrame, PythonDataSourceV2.getOrCreateReadInfo), so a range left out for one filter would be missing for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_integration.connections import borrowed_cluster
from spark_integration.reading.batch_rows import batches_to_arrow
from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.options import ReadOptions
from spark_integration.reading.range_fetch import BYTES_SHARES, RangeFetch, damaged
from spark_integration.reading.resolve import resolve_ranges
from spark_integration.reading.schema_framing import split_framing
from tolerant_client.errors import RecordBatchError
from tolerant_client.records.arrow import ALL_COLUMNS, HEADER_BYTES, iter_arrow
from tolerant_client.records.record_batch import BatchHeader
from tolerant_client.records.record_fields import MAX_HEADERS

# Bytes of records decoded in one piece; larger pieces drop out of the processor's caches on their way to the JVM.
PIECE_BYTES: Final = 4 << 20

_PATIENCE_MS: Final = 10_000


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

    def partitions(self) -> Sequence[InputPartition]:
        with borrowed_cluster(self.options.kafka) as cluster:
            ranges = cluster.run(resolve_ranges, cluster, self.options)
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark invents a partition if there are none.
        if isinstance(partition, RangePartition):
            yield from read_range(self.options, partition.range, self.schema)


def read_range(options: ReadOptions, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in pieces of bounded size."""
    # The task itself waits: it retries until kafkaConsumer.pollTimeoutMs.
    with borrowed_cluster(options.kafka, patience_ms=min(_PATIENCE_MS, options.poll_timeout_ms)) as cluster:
        fetch = RangeFetch(cluster, wanted, options)
        while not fetch.is_done:
            batches = cluster.run(fetch.next_batches)
            if options.payload == "batches":
                # A batch that extends into the next range is a row of that range.
                mine = [batch for batch in batches if batch[0].last_offset < wanted.until_offset]
                if mine:
                    yield batches_to_arrow(mine, wanted.topic, wanted.partition, schema)
                continue
            try:
                yield from _records(batches, options, replace(wanted, from_offset=fetch.first_wanted), schema)
            except RecordBatchError as error:
                raise damaged(TopicPartition(wanted.topic, wanted.partition), error) from error


def _records(
    batches: list[tuple[BatchHeader, memoryview]],
    options: ReadOptions,
    wanted: OffsetRange,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    columns = pa.schema([field for field in schema if field.name in ALL_COLUMNS.names])
    for name in options.framed:
        if f"{name}SchemaId" in schema.names and name not in columns.names:
            columns = columns.append(ALL_COLUMNS.field(name))
    for piece in iter_arrow(
        batches,
        wanted.topic,
        wanted.partition,
        wanted.from_offset,
        wanted.until_offset,
        columns,
        target_bytes=min(PIECE_BYTES, options.max_bytes_in_flight // BYTES_SHARES),
        most_headers=max(MAX_HEADERS, options.max_bytes_in_flight // HEADER_BYTES),
    ):
        yield _unframed(piece, options.framed, schema) if options.framed else piece


def _unframed(piece: pa.RecordBatch, framed: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The piece with the columns of `schema`; the prefixes of `framed` columns are split off."""
    arrays = {name: piece.column(name) for name in piece.schema.names}
    for name in framed:
        if name in arrays:
            arrays[name], arrays[f"{name}SchemaId"] = split_framing(arrays[name])
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in schema], schema=schema)
