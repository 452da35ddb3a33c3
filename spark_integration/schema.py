"""The columns of a read, as Spark types; tolerant_client.arrow has the same as Arrow types."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

DDL: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,"
    " timestamp TIMESTAMP, timestampType INT"
)
DDL_WITH_HEADERS: Final = DDL + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

_COLUMNS: Final[tuple[tuple[str, DataType], ...]] = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
)
_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def records_schema(include_headers: bool) -> StructType:
    """The columns of Spark's own Kafka source."""
    fields = [StructField(name, kind) for name, kind in _COLUMNS]
    if include_headers:
        fields.append(StructField("headers", _HEADERS))
    return StructType(fields)

RANGES_SCHEMA = "topic string, partition int, from_offset bigint, until_offset bigint"
