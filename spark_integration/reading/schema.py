"""The columns of a read as Spark and as Arrow types, and which of them a reader was asked for."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_integration.reading.options import ReadOptions
from tolerant_client.errors import OptionError
from tolerant_client.records.arrow import ALL_COLUMNS, TIMESTAMP

_RECORDS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
_LEADER_EPOCH: Final = StructField("leaderEpoch", IntegerType())
_SCHEMA_IDS: Final = {name: StructField(f"{name}SchemaId", IntegerType()) for name in ("key", "value")}

BATCHES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("baseOffset", LongType()),
        StructField("lastOffset", LongType()),
        StructField("recordCount", IntegerType()),
        StructField("leaderEpoch", IntegerType()),
        StructField("maxTimestamp", TimestampType()),
        StructField("compressionType", StringType()),
        StructField("isTransactional", BooleanType()),
        StructField("isControl", BooleanType()),
        StructField("batch", BinaryType()),
    ]
)
# A row for each task: what it copies.
RANGES: Final = "ranges array<struct<topic: string, partition: int, until_offset: bigint>>"

_ARROW: Final = {
    **{field.name: field.type for field in ALL_COLUMNS},
    **{field.name: pa.int32() for field in _SCHEMA_IDS.values()},
    "baseOffset": pa.int64(),
    "lastOffset": pa.int64(),
    "recordCount": pa.int32(),
    "maxTimestamp": TIMESTAMP,
    "compressionType": pa.string(),
    "isTransactional": pa.bool_(),
    "isControl": pa.bool_(),
    "batch": pa.binary(),
}


def full_schema(options: ReadOptions) -> StructType:
    """All columns of a read: those of Spark's own Kafka source first, in its order."""
    if options.payload == "batches":
        return BATCHES
    fields = [*_RECORDS]
    if options.include_headers:
        fields.append(_HEADERS)
    if options.include_leader_epoch:
        fields.append(_LEADER_EPOCH)
    return StructType([*fields, *(_SCHEMA_IDS[name] for name in options.framed)])


def chosen_columns(schema: StructType, options: ReadOptions) -> pa.Schema:
    """The columns of `schema`, which may be a user's own choice of full_schema's, in any order.

    Raises OptionError for a column that there is not, or not of this type.
    """
    known = full_schema(options)
    if not len(schema):
        raise OptionError(f"A schema without columns reads nothing; choose among {', '.join(known.names)}")
    types: dict[str, DataType] = {field.name: field.dataType for field in known}
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise OptionError(f"A schema has column {field.name!r} twice")
        if not field.nullable:
            raise OptionError(f"Column {field.name} may be null: write it without NOT NULL, or Spark leaves rows out")
        if field.name not in types:
            raise OptionError(f"There is no column {field.name!r}; a schema may choose among {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise OptionError(
                f"Column {field.name} is {types[field.name].simpleString()}, not {field.dataType.simpleString()};"
                " cast it after reading"
            )
    return pa.schema([pa.field(field.name, _ARROW[field.name]) for field in schema])
