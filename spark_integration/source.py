"""format("tolerantkafka"): the data source that Spark registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

# Spark starts a dozen short-lived Python workers for a query, and each imports this module: readers and writers are
# imported only where they are used.
if TYPE_CHECKING:
    from spark_integration.reading.options import ReadOptions


class TolerantKafkaDataSource(DataSource):
    """Kafka topics as a DataFrame, with the options and columns of Spark's own `kafka` source.

    | option of a read | meaning | default |
    |---|---|---|
    | kafka.bootstrap.servers | HOST:PORT[,HOST:PORT...]; other `kafka.*` are Java's client properties | required |
    | assign, subscribe, subscribePattern | exactly one: `{"t":[0,1]}`, topics, a regular expression | required |
    | startingOffsets | `earliest`, `latest` (streams only) or `{"t":{"0":23,"1":-2}}` | batch earliest, stream latest |
    | startingTimestamp, startingOffsetsByTimestamp | ms since the epoch, for all or by partition (-1: its end) | |
    | startingOffsetsByTimestampStrategy | `error` or `latest`, if no record is that young | error |
    | endingOffsets, endingTimestamp, endingOffsetsByTimestamp | as above, exclusive, batch only; -1 is latest | latest |
    | failOnDataLoss | fail when records that should be read are gone | true |
    | minPartitions, maxRecordsPerPartition | how the ranges are split into tasks | one each |
    | maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay | the size of micro-batches | none, none, 15m |
    | includeHeaders | adds the column `headers` | false |
    | kafkaConsumer.pollTimeoutMs | how long a task tries without progress | 120000 |
    | fetchOffset.numRetries, fetchOffset.retryIntervalMs | for offsets that a broker reports wrongly | 3, 1000 |
    | kafka.group.id, groupIdPrefix | the group of commitOffsets; reads join no group, so the prefix has no effect | |

    | beyond Spark's own source | meaning | default |
    |---|---|---|
    | isolation.level | `read_uncommitted` or `read_committed` | read_uncommitted |
    | commitOffsets | streams write their progress to the group kafka.group.id | false |
    | maxBytesInFlight | memory that a task may use for fetched and decoded records, bytes | 67108864 |
    | includeLeaderEpoch | adds the column `leaderEpoch` | false |
    | schemaRegistryFraming | `key`, `value` or `both`: splits their 5-byte prefix into `keySchemaId`, `valueSchemaId` | none |
    | payload | `records`, `batches` (one row for each record batch), or `ranges` for mirroring | records |

    The options of a write are those of spark_integration.writing.options.

        spark.read.format("tolerantkafka").option("kafka.bootstrap.servers", "a:9092").option("subscribe", "clicks").load()
    """

    @classmethod
    def name(cls) -> str:
        return "tolerantkafka"

    def schema(self) -> StructType | str:
        from spark_integration.reading.schema import RANGES, full_schema

        if self._is_ranges:
            return RANGES
        # Spark asks for the schema before it says whether it wants a batch or a stream: the readers refuse
        # options that are valid only for the other.
        return full_schema(self._read_options(is_stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_integration.reading.reader import KafkaReader
        from spark_integration.reading.schema import chosen_columns
        from tolerant_client.errors import OptionError

        if self._is_ranges:
            raise OptionError("payload=ranges is for streams; a batch read has payload=records or batches")
        options = self._read_options(is_stream=False)
        return KafkaReader(options, chosen_columns(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tolerant_client.errors import OptionError

        try:
            return self._stream_reader(schema)
        except OptionError as error:
            from spark_integration.reading.refused_stream import RefusedStream

            # Raised here it would not be the last line: Spark adds an UnboundLocalError of its own to it.
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if self._is_ranges:
            from spark_integration.mirror.stream_ranges import RangesStreamReader

            return RangesStreamReader(self.options)
        from spark_integration.reading.schema import chosen_columns
        from spark_integration.reading.stream_reader import KafkaStreamReader

        options = self._read_options(is_stream=True)
        return KafkaStreamReader(options, chosen_columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_integration.writing.writer import RecordsWriter

        return RecordsWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if self._is_ranges:
            from spark_integration.mirror.stream_ranges import RangesStreamWriter

            return RangesStreamWriter(self.options)
        from spark_integration.writing.writer import RecordsStreamWriter

        return RecordsStreamWriter(self.options, schema, overwrite)

    @property
    def _is_ranges(self) -> bool:
        return str(self.options.get("payload", "records")).strip().lower() == "ranges"

    def _read_options(self, *, is_stream: bool | None) -> ReadOptions:
        from spark_integration.reading.options import parse_read_options

        return parse_read_options(self.options, is_stream=is_stream)
