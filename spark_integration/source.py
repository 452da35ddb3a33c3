"""format("tolerantkafka"): what Spark asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from spark_integration.schema import RANGES_SCHEMA, records_schema

# Spark makes a dozen short-lived Python workers for a query, and each imports this module: what reads and writes is
# imported by the ones that do.
if TYPE_CHECKING:
    from spark_integration.options import ReadOptions


class TolerantKafkaDataSource(DataSource):
    """Kafka topics as a DataFrame, with the options and columns of Spark's own `kafka` source.

    | option | meaning | default |
    |---|---|---|
    | kafka.bootstrap.servers | HOST:PORT[,HOST:PORT...] | required |
    | assign, subscribe, subscribePattern | exactly one: `{"t":[0,1]}`, topics, a regular expression | required |
    | startingOffsets | `earliest` or `{"t":{"0":23,"1":-2}}` | earliest |
    | startingTimestamp, startingOffsetsByTimestamp | ms since the epoch, for all or by partition | |
    | startingOffsetsByTimestampStrategy | `error` or `latest`, where no record is that young | error |
    | endingOffsets, endingTimestamp, endingOffsetsByTimestamp | as above, exclusive; -1 is latest | latest |
    | failOnDataLoss | fail when records are gone that should be read | true |
    | minPartitions, maxRecordsPerPartition | how the ranges are split into tasks | one each |
    | includeHeaders | adds the column `headers` | false |
    | isolation.level | `read_uncommitted` or `read_committed` | read_uncommitted |
    | kafkaConsumer.pollTimeoutMs | how long a task goes on without progress | 120000 |
    | payload | `records`, or `ranges` for mirroring | records |

    >>> spark.read.format("tolerantkafka").option("kafka.bootstrap.servers", "localhost:9092") \\
    ...     .option("subscribe", "clicks").load()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return "tolerantkafka"

    def schema(self) -> StructType | str:
        if self._is_ranges:
            return RANGES_SCHEMA
        options = self._read_options()
        return records_schema(options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_integration.reader import RecordsReader

        return RecordsReader(self._read_options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._need_ranges("a streaming read")
        from spark_integration.ranges import RangesStreamReader

        return RangesStreamReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        self._need_ranges("a streaming write")
        from spark_integration.ranges import RangesStreamWriter

        return RangesStreamWriter(self.options)

    @property
    def _is_ranges(self) -> bool:
        return str(self.options.get("payload", "records")) == "ranges"

    def _need_ranges(self, what: str) -> None:
        if not self._is_ranges:
            from tolerant_client.errors import OptionError

            raise OptionError(f"{what} of tolerantkafka needs payload=ranges; records are read by a batch query so far")

    def _read_options(self) -> ReadOptions:
        from spark_integration.options import parse_read_options
        from tolerant_client.errors import OptionError

        options = parse_read_options(self.options)
        if options.payload != "records":
            raise OptionError(f"payload={options.payload} is for streams; a batch read has payload=records")
        return options
