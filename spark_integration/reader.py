"""payload=records: the batch reader behind spark.read.format("tolerantkafka").

Laws:
- The driver resolves partitions and offsets once; a task reads exactly its range.
- A task holds one Fetch answer and one piece of Arrow data, whatever the range.
- Connections belong to the Python worker process, which Spark reuses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_integration.offsets import OffsetRange
from spark_integration.options import ReadOptions
from spark_integration.range_fetch import RangeFetch
from spark_integration.resolve import resolve_ranges
from tolerant_client.arrow import iter_arrow
from tolerant_client.raw import RawCluster

_POOL_SIZE: Final = 4
_pool: dict[tuple[int, str], RawCluster] = {}


@dataclass
class RangePartition(InputPartition):
    """One task's range."""

    range: OffsetRange

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(None)
        self.range = wanted


class RecordsReader(DataSourceReader):
    """Reads the ranges that the options describe as the columns of Spark's Kafka source."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        with RawCluster(self.options.kafka) as cluster:
            ranges = cluster.run(resolve_ranges, cluster, self.options)
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes up one partition of its own where there are none.
        if isinstance(partition, RangePartition):
            yield from read_range(self.options, partition.range)


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of one range, in pieces of bounded size."""
    with _borrowed(options) as cluster:
        fetch = RangeFetch(cluster, wanted, options)
        while not fetch.is_done:
            batches = cluster.run(fetch.next_batches)
            yield from iter_arrow(
                batches,
                wanted.topic,
                wanted.partition,
                wanted.from_offset,
                wanted.until_offset,
                options.include_headers,
            )


@contextlib.contextmanager
def _borrowed(options: ReadOptions) -> Iterator[RawCluster]:
    """A cluster of this process's pool, for one task; closed instead of returned after an error."""
    key = (os.getpid(), repr(sorted(options.kafka.items())))
    cluster = _pool.pop(key, None) or RawCluster(options.kafka)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    while len(_pool) >= _POOL_SIZE:
        _pool.pop(next(iter(_pool))).close()
    replaced = _pool.get(key)
    _pool[key] = cluster
    if replaced is not None:
        replaced.close()
